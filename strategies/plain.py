"""A run in a user's own Flower app: the user's model and data, and keys that only the server has.

Server and clients both come through here, so both have the same layout, weights and hyperparameters
(docs/decisions/0033-plain-flower.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord

from sepal.config import Mark, OwnSettings, RunConfig, flatten, kebab, marked
from sepal.config.base import flat_keys, validate
from sepal.data import DatasetInfo, OwnData
from sepal.data.own import own_info
from sepal.errors import ConfigError, ModelError
from sepal.method import Method
from sepal.strategies.assembly import Assembly, assemble
from sepal.user_modules import described

if TYPE_CHECKING:
    from torch import nn

    from sepal.server.plain import Beginning

KEYS = frozenset(marked(RunConfig, Mark.PLAIN))
CLIENT_KEYS = KEYS - frozenset(marked(RunConfig, Mark.SERVER_ONLY)) | {"rounds"}  # the shared keys that clients get
# What the strategy's own arguments, or `start`, say instead of a key.
INSTEAD = {
    "rounds": "num_rounds of start()",
    "timeout": "timeout of start()",
    "clients": "min_available_nodes",
    "clients-per-round": "fraction_train",
    "evaluate-clients": "fraction_evaluate",
    "model": "the first argument, which builds the module",
}
# Beginnings of keys without whose effect clients are less protected than somebody believes: a typo counts, too.
PROTECTING = ("privacy.", "secure")
# Rounds go on without clients that fail, as Flower's do, and evaluations are Flower's own step.
FIXED = {"dataset": "own", "on-missing": "skip", "on-divergence": "stop", "evaluate-every": 0}


@dataclass(frozen=True)
class OwnModel:
    """The user's model with the weights of the run's first round.

    Attributes:
        build: Returns a new module, whatever its weights; or a module, which is copied.
        arrays: W_0 and all else of its ``state_dict``, by name.
    """

    build: Callable[[], nn.Module]
    arrays: ArrayRecord = field(repr=False)

    def __call__(self, seed: int = 0) -> nn.Module:
        """Return a new module with these weights.

        Raises:
            ModelError: ``build`` fails, or its module has other tensors.
        """
        from torch import nn

        from sepal.models.outputs import take_logits
        from sepal.modules import refuse_unfit_tensors, set_aside
        from sepal.seeding import generators_seeded

        try:
            with generators_seeded(seed):
                model = copy.deepcopy(self.build) if isinstance(self.build, nn.Module) else self.build()
        except Exception as error:
            raise ModelError("model", "a function or class that returns a module", described(error)) from error
        if not isinstance(model, nn.Module):
            raise ModelError("model", "a function or class that returns a module", type(model).__name__)
        try:
            model.load_state_dict(self.arrays.to_torch_state_dict())
        except Exception as error:
            expected = "the tensors of initial_arrays, which is ArrayRecord(model.state_dict())"
            raise ModelError("model", expected, str(error).replace("\n\t", " ")) from error
        take_logits(model)
        refuse_unfit_tensors(model)
        return set_aside(model.train())


def argument_keys(method: Method, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments (``keep``, ``local_epochs``) as flat keys: the method's own, or else shared ones.

    Raises:
        ConfigError: A shared key has no effect in a plain Flower app. Unknown ones are refused where keys are parsed.
    """
    method_keys, flat = set(flat_keys(method.hyper)), {}
    for name, value in keys.items():
        key = kebab(name)
        if key in method_keys or key not in flat_keys(RunConfig):
            flat[f"{method.name}.{key}"] = value
            continue
        check_key(key, value)
        flat[key] = value
    return flat


def check_key(key: str, value: Any) -> None:
    """Raise ConfigError if a shared key has no effect in a plain Flower app."""
    if key not in KEYS:
        otherwise = "a key that works in a Flower app of your own (docs/flower-app.md), or another name if it is yours"
        expected = INSTEAD.get(key, otherwise)
        raise ConfigError(key, expected, value)


def read_keys(method: Method, run_config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a user's run config that are Sepal's, and the names of the others, which are his own.

    Raises:
        ConfigError: A key with a dot that is one of Sepal's, such as ``compress.keep``, has no effect in a plain Flower
            app; nor has any of ``PROTECTING``. Another name without a dot may be the user's own (``dataset``), and a
            caller names those that are not read.
    """
    known = set(flat_keys(RunConfig))
    for key, value in run_config.items():
        if ("." in key and key in known) or key.startswith(PROTECTING):
            check_key(key, value)
    sepal_keys = {key: value for key, value in run_config.items() if key in KEYS or key.startswith(f"{method.name}.")}
    return sepal_keys, [key for key in run_config if key not in sepal_keys]


def assemble_plain(
    method: Method,
    model: OwnModel,
    keys: Mapping[str, Any],
    beginning: Beginning | None = None,
    data: OwnData | None = None,
) -> Assembly:
    """Return the run's parts.

    Args:
        method: The method's record.
        model: The user's model.
        keys: Flat keys.
        beginning: On the server: what the run starts from.
        data: On a client: its data.

    Raises:
        SepalError: A key, the model or the data is invalid, or the method decides itself who trains.
    """
    if method.chooses:
        expected = "one whose clients fraction_train draws (`sepal run` and deployments have this one)"
        raise ConfigError("method", expected, f"{method.name}, which decides from its state who trains")
    flat = {**FIXED, **keys, "model": f"own:{getattr(model.build, '__name__', type(model.build).__name__)}"}
    size = ("", 0)
    if beginning:
        flat |= {"rounds": beginning.rounds, "timeout": float(beginning.timeout), "clients": beginning.clients}
        size = beginning.shape, beginning.classes
    facts = data.info if data else own_facts(*size)
    if beginning and beginning.shape:
        _check_example(model, facts.input_shape)
    flat |= {"own.shape": shape_text(facts.input_shape), "own.classes": facts.classes}
    return assemble(flat, method, data=data or OwnData(facts, ""), make=model, arrays=model.arrays)


def _check_example(model: OwnModel, shape: Sequence[int]) -> None:
    """Refuse a shape that clients claim of which one example takes half of the free memory: some servers try one.

    Raises:
        ConfigError: See above.
    """
    import psutil
    import torch

    from sepal.training.allocation import AllocatedBytes

    module, made, room = model().to("meta").eval(), AllocatedBytes(), psutil.virtual_memory().available // 2
    # A layer may have no result without memory: then what was asked for so far counts.
    with suppress(Exception), torch.device("meta"), torch.no_grad(), made:
        module(torch.zeros(1, *shape))
    if made.bytes > room:
        got = f"{shape_text(shape)}, {made.bytes / 2**30:.3g} GiB"
        raise ConfigError("shape of clients' examples", f"one of at most {room / 2**30:.3g} GiB", got)


def own_facts(shape: str, classes: int) -> DatasetInfo:
    """Return the metadata of examples of ``shape`` (``1x28x28``), as with ``dataset = "own"``; empty: not yet known.

    Raises:
        ConfigError: A client has said something else than a shape and a number of outputs.
    """
    return own_info(validate(OwnSettings, {"shape": shape or "1", "classes": classes or 2}, "own."))


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as ``1x28x28``."""
    return "x".join(map(str, shape))


def client_keys(assembly: Assembly) -> dict[str, Any]:
    """Return the keys that clients get, every default replaced, so that none of them has to know one."""
    setup = assembly.setup
    shared = {key: value for key, value in setup.config.flat().items() if key in CLIENT_KEYS}
    return {"method": assembly.method.name, **shared, **flatten(setup.hyper, f"{assembly.method.name}.")}


def check_client_keys(method: Method, keys: Mapping[str, Any]) -> None:
    """Raise if a server has another method, or sends a client another key than those of :func:`client_keys`.

    Such a key may name code or a path.

    Raises:
        ConfigError: See above.
    """
    if keys.get("method") != method.name:
        raise ConfigError("method", f"{keys.get('method')}, as the server's strategy", f"{method.name} in wrap_client")
    for key, value in keys.items():
        if key != "method" and key not in CLIENT_KEYS and not key.startswith(f"{method.name}."):
            raise ConfigError(key, f"a key of {method.name}'s training, from the server", value)
