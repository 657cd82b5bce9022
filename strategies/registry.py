"""The table of methods: name → ``module:object``, imported on demand.

Another package adds a method through an entry point in the group ``sepal.methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

from sepal.config import RunConfig, Settings, flatten
from sepal.errors import ConfigError, suggest
from sepal.protocol.method import Method, Scalar, resolve

METHODS = {
    "fedavg": "strategies.baselines.fedavg:FedAvg",
    "local": "strategies.baselines.local:Local",
    "local-width": "strategies.baselines.local_width:LocalWidth",
    "fedavg-ft": "strategies.baselines.fedavg_ft:FedAvgFt",
    "fedstc": "strategies.baselines.fedstc:FedSTC",
    "fedscr": "strategies.baselines.fedscr:FedSCR",
    "fedprox": "strategies.baselines.fedprox:FedProx",
    "ditto": "strategies.baselines.ditto:Ditto",
    "apfl": "strategies.baselines.apfl:APFL",
    "fedper": "strategies.baselines.fedper:FedPer",
    "fedrep": "strategies.baselines.fedrep:FedRep",
    "fedbabu": "strategies.baselines.fedbabu:FedBabu",
    "lg-fedavg": "strategies.baselines.lg_fedavg:LgFedAvg",
    "heterofl": "strategies.baselines.heterofl:HeteroFL",
    "fjord": "strategies.baselines.fjord:Fjord",
    "fedrolex": "strategies.baselines.fedrolex:FedRolex",
    "flanc": "strategies.baselines.flanc:Flanc",
    "tailorfl": "strategies.baselines.tailorfl:TailorFL",
    "pfedhn": "strategies.baselines.pfedhn:PFedHN",
    "mtl": "strategies.baselines.mtl:Mtl",
    "pfedme": "strategies.baselines.pfedme:PFedMe",
    "fedem": "strategies.baselines.fedem:FedEM",
    "fedmask": "strategies.baselines.fedmask:FedMask",
    "feddst": "strategies.baselines.feddst:FedDST",
    "fedpse": "strategies.fedpse:FedPSE",
    "dmpfl": "strategies.dmpfl:DmPfl",
    "subfedavg": "strategies.subfedavg:SubFedAvg",
    "pa3dfl": "strategies.pa3dfl:Pa3dFL",
    "pfedgate": "strategies.pfedgate:PFedGate",
}
GROUP = "sepal.methods"


def table() -> dict[str, str]:
    """Return name → reference of all methods, built-in ones first; another package cannot replace a built-in one."""
    return _table(entry_points)


@lru_cache(maxsize=1)
def _table(find: Callable[..., Any]) -> dict[str, str]:
    """Search the installed packages once per process: each of a run's keys asks for the table."""
    others = {point.name: point.value for point in find(group=GROUP)}
    return {**METHODS, **{name: value for name, value in sorted(others.items()) if name not in METHODS}}


def names() -> tuple[str, ...]:
    """Return the names of all methods, in order."""
    return tuple(table())


def get(name: str) -> Method:
    """Return the method called ``name``.

    Raises:
        ConfigError: There is none, or the registered object is not a Method.
    """
    known = table()
    if name not in known:
        raise ConfigError("method", f"one of {', '.join(known)}", suggest(name, name, known))
    found = getattr(resolve(known[name]), "method", resolve(known[name]))
    if not isinstance(found, Method):
        raise ConfigError("method", f"{known[name]} to be a sepal.protocol.method.Method", type(found).__name__)
    return found


def deployed(name: str) -> str:
    """Return the view of the model that a user of a deployed client predicts with; empty for an unknown method."""
    return get(name).deployed if name in table() else ""


def defaults() -> dict[str, Scalar]:
    """Return every run-config key with its default: shared keys, then each method's own keys."""
    keys: dict[str, Scalar] = RunConfig().flat()
    for method in map(get, names()):
        keys |= flatten(method.hyper(), f"{method.name}.")
    return keys


class Hypers(Mapping[str, type[Settings]]):
    """Method name → the model of its own keys; a method is imported when its keys are accessed."""

    def __getitem__(self, name: str) -> type[Settings]:
        if name not in table():
            raise KeyError(name)
        return get(name).hyper

    def __iter__(self) -> Iterator[str]:
        return iter(table())

    def __len__(self) -> int:
        return len(table())
