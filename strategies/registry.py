"""The table of methods: name → ``module:object``, imported on demand.

Another package adds a method through an entry point in the group ``sepal.methods``; one's own code needs none: it is
named by its place, ``method = "package.module:FedMine"``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple

from sepal.config import RunConfig, Settings, flatten, former_values, method_name, unknown_method
from sepal.config.parse import NOT_SET
from sepal.errors import ConfigError
from sepal.method import Method
from sepal.method.interface import resolve
from sepal.method.readers import Reader
from sepal.protocol.types import Scalar
from sepal.user_modules import load

METHODS = {
    "fedavg": "sepal.strategies.baselines.fedavg:FedAvg",
    "local": "sepal.strategies.baselines.local:Local",
    "local-width": "sepal.strategies.baselines.local_width:LocalWidth",
    "fedavg-ft": "sepal.strategies.baselines.fedavg_ft:FedAvgFt",
    "per-fedavg": "sepal.strategies.baselines.per_fedavg:PerFedAvg",
    "fedstc": "sepal.strategies.baselines.fedstc:FedSTC",
    "fedscr": "sepal.strategies.baselines.fedscr:FedSCR",
    "fedavgm": "sepal.strategies.baselines.fedavgm:FedAvgM",
    "fedadam": "sepal.strategies.baselines.fedopt:FedAdam",
    "fedyogi": "sepal.strategies.baselines.fedopt:FedYogi",
    "fedadagrad": "sepal.strategies.baselines.fedopt:FedAdagrad",
    "fedbuff": "sepal.strategies.baselines.fedbuff:FedBuff",
    "fedprox": "sepal.strategies.baselines.fedprox:FedProx",
    "scaffold": "sepal.strategies.baselines.scaffold:Scaffold",
    "moon": "sepal.strategies.baselines.moon:Moon",
    "ditto": "sepal.strategies.baselines.ditto:Ditto",
    "apfl": "sepal.strategies.baselines.apfl:APFL",
    "fedala": "sepal.strategies.baselines.fedala:FedALA",
    "fedrod": "sepal.strategies.baselines.fedrod:FedRoD",
    "fedper": "sepal.strategies.baselines.fedper:FedPer",
    "fedrep": "sepal.strategies.baselines.fedrep:FedRep",
    "fedbabu": "sepal.strategies.baselines.fedbabu:FedBabu",
    "lg-fedavg": "sepal.strategies.baselines.lg_fedavg:LgFedAvg",
    "fedbn": "sepal.strategies.baselines.fedbn:FedBN",
    "fedsa-lora": "sepal.strategies.baselines.fedsa_lora:FedSaLora",
    "flasc": "sepal.strategies.baselines.flasc:Flasc",
    "heterofl": "sepal.strategies.baselines.heterofl:HeteroFL",
    "fjord": "sepal.strategies.baselines.fjord:Fjord",
    "fedrolex": "sepal.strategies.baselines.fedrolex:FedRolex",
    "flanc": "sepal.strategies.baselines.flanc:Flanc",
    "tailorfl": "sepal.strategies.baselines.tailorfl:TailorFL",
    "pfedhn": "sepal.strategies.baselines.pfedhn:PFedHN",
    "mtl": "sepal.strategies.baselines.mtl:Mtl",
    "pfedme": "sepal.strategies.baselines.pfedme:PFedMe",
    "fedem": "sepal.strategies.baselines.fedem:FedEM",
    "fedmask": "sepal.strategies.baselines.fedmask:FedMask",
    "ifca": "sepal.strategies.baselines.ifca:IFCA",
    "fedproto": "sepal.strategies.baselines.fedproto:FedProto",
    "feddst": "sepal.strategies.baselines.feddst:FedDST",
    "fedpse": "sepal.strategies.fedpse:FedPSE",
    "dmpfl": "sepal.strategies.dmpfl:DmPfl",
    "subfedavg": "sepal.strategies.subfedavg:SubFedAvg",
    "pa3dfl": "sepal.strategies.pa3dfl:Pa3dFL",
    "pfedgate": "sepal.strategies.pfedgate:PFedGate",
    "fiarse": "sepal.strategies.baselines.fiarse:Fiarse",
    "sparsyfed": "sepal.strategies.baselines.sparsyfed:SparsyFed",
    "spafl": "sepal.strategies.baselines.spafl:SpaFL",
    "fedselect": "sepal.strategies.baselines.fedselect:FedSelect",
    "fedrts": "sepal.strategies.baselines.fedrts:FedRTS",
    "fedpm": "sepal.strategies.baselines.fedpm:FedPM",
}
GROUP = "sepal.methods"
_loaded: dict[str, Method] = {}  # of the user's own code, by place
YARDSTICKS = ("local", "fedavg-ft")  # baselines for every method: no federation, and plain federation


def table() -> dict[str, str]:
    """Return name → reference of all methods, built-in ones first; another package cannot replace a built-in one."""
    return _table(entry_points)


@lru_cache(maxsize=1)
def _table(find: Callable[..., Any]) -> dict[str, str]:
    """Search the installed packages once per process: each of a run's keys asks for the table."""
    others = {point.name: point.value for point in find(group=GROUP)}
    return {**METHODS, **{name: value for name, value in sorted(others.items()) if name not in METHODS}}


class Description(NamedTuple):
    """What lists and reports say of a method; the fields are those of :class:`sepal.method.interface.Method`.

    Attributes:
        learned: Kind → reader of what the method has learned.
        former: Its own keys whose default has changed, flat, with their former defaults.
    """

    title: str
    source: str
    deployed: str
    learned: Mapping[str, Reader] = MappingProxyType({})
    former: Mapping[str, Scalar] = MappingProxyType({})


@cache
def _descriptions() -> dict[str, Description]:
    """Return the descriptions of the built-in methods, whose modules import torch: ``python -m tools.methods``."""
    tables = tomllib.loads((files("sepal.strategies") / "descriptions.toml").read_text(encoding="utf-8"))
    descriptions = {}
    for name, values in tables.items():
        learned = {kind: Reader(**reader) for kind, reader in values.pop("learned", {}).items()}
        descriptions[name] = Description(**values, learned=learned)
    return descriptions


def description(name: str) -> Description:
    """Return what lists and reports say of a method in :func:`table`; a built-in one is not imported for that."""
    return _descriptions()[name] if name in METHODS and name in _descriptions() else describe(get(name))


def describe(method: Method) -> Description:
    """Return the description of a method that is imported."""
    former_defaults = former_values(method.hyper, f"{method.name}.")
    return Description(method.title, method.source, method.deployed, method.learned, former_defaults)


def names() -> tuple[str, ...]:
    """Return the names of all methods, in order."""
    return tuple(table())


def get(name: str) -> Method:
    """Return the method called ``name``.

    Raises:
        ConfigError: There is none, or the registered object is not a Method.
    """
    if ":" in name:
        return _of_user(name)
    if name not in table():
        raise unknown_method(name, table())
    method = resolve(table()[name])
    if not isinstance(method, Method):
        raise ConfigError("method", f"{table()[name]} to be a sepal.method.interface.Method", type(method).__name__)
    return method


def is_method(name: str) -> bool:
    """Return whether ``name`` is a value of the key ``method``: a method's name, or where the user's own one is."""
    return ":" in name or name in table()


def _of_user(reference: str) -> Method:
    """Return the method at ``package.module:NAME`` in the user's own code."""
    method = _loaded.get(reference) or load("method", reference, ConfigError)
    if not isinstance(method, Method):
        raise ConfigError(
            "method", f"{reference} to be what sepal.strategies.registration.register returns", type(method).__name__
        )
    lowered = method_name(reference)
    if method.name != lowered or lowered in table():
        if lowered in table():
            raise ConfigError("method", f"a name for {reference} that no other method has", f'"{lowered}"')
        expected = f'{reference} to be registered under the name "{lowered}", the variable in lower case'
        expected += " (hyphens are for built-in and installed methods)" * ("-" in method.name)
        raise ConfigError("method", expected, f'"{method.name}"')
    _loaded[reference] = method
    return method


def deployed(name: str) -> str:
    """Return the view of the model that a user of a deployed client predicts with; empty for an unknown method.

    The user's own method is unknown until a run has loaded it: looking at a run from elsewhere runs none of its code.
    """
    if ":" in name:
        return _loaded[name].deployed if name in _loaded else ""
    return description(name).deployed if name in table() else ""


def defaults(user_method: str = "") -> dict[str, Scalar]:
    """Return every run-config key with its default: shared keys, then those of each method, also of ``user_method``.

    A key whose default depends on the data has the word for it (:data:`sepal.config.parse.NOT_SET`).
    """
    keys: dict[str, Scalar] = {**RunConfig().flat(), **NOT_SET}
    for method in map(get, (*names(), *([user_method] if ":" in user_method else ()))):
        keys |= flatten(method.hyper(), f"{method.name}.")
    return keys


def former(name: str) -> dict[str, Scalar]:
    """Return the keys whose default has changed, for a run of the method ``name``, each with its former default."""
    if not is_method(name):
        return former_values(RunConfig)
    return {**former_values(RunConfig), **(description(name) if name in table() else describe(get(name))).former}


def as_begun(stored: Mapping[str, Any], load: bool = True) -> dict[str, Any]:
    """Return a stored run's flat keys, with the former value of each that it lacks (:func:`sepal.config.renewed`).

    All code that builds a run from a stored config, or compares two, calls this.

    Args:
        stored: The flat keys.
        load: Whether the user's own method may be loaded for its keys: looking at a run from elsewhere runs none of its
            code.

    Raises:
        ConfigError: The user's own method cannot be loaded.
    """
    name = str(stored.get("method", former_values(RunConfig)["method"]))
    return {**former(name if load or ":" not in name or name in _loaded else ""), **stored}


class Hypers(Mapping[str, type[Settings]]):
    """Method name → the model of its own keys; a method is imported when its keys are accessed."""

    def __getitem__(self, name: str) -> type[Settings]:
        if not is_method(name):
            raise KeyError(name)
        return get(name).hyper

    def __iter__(self) -> Iterator[str]:
        return iter(table())

    def __len__(self) -> int:
        return len(table())
