"""From the arguments of ``sepal.run`` and ``sepal.compare`` to flat keys, and code among them to names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from sepal import user_modules
from sepal.api.code_digest import code_digest, importable
from sepal.errors import ConfigError

Function = Callable[..., Any]


@dataclass(frozen=True)
class OwnKeys:
    """Private data of each client, from a function; see :func:`own`."""

    keys: Mapping[str, Any]


def own(
    load: Function | str,
    *,
    shape: int | Sequence[int] | str,
    classes: int = 0,
    vocabulary: int = 0,
    task: Function | str = "classification",
) -> OwnKeys:
    """Return a data set for :func:`run`: each client's data comes from ``load``.

    Args:
        load: Returns (x_train, y_train, x_test, y_test); it may take the client's number, from 0. Or its name,
            ``package.module:function``.
        shape: Shape of one example, such as (1, 28, 28); 30 is (30,). Of several inputs, a text (docs/own-data.md).
        classes: Number of classes; of labels (multilabel), numbers to predict (regression; 0: one) or token ids
            (tokens; 0: ``vocabulary``).
        vocabulary: Number of token ids; 0 if the data is not text.
        task: What is learned: a task's name, or an own one (docs/tasks.md).

    Raises:
        ConfigError: An argument is of the wrong type.
    """
    text = shape if isinstance(shape, str) else _shape_text(shape)
    keys = {"dataset": "own", "own.data": code_key("data", load), "own.shape": text, "own.classes": classes}
    keys |= {} if task == "classification" else {"task": code_key("task", task)}
    return OwnKeys({**keys, "own.vocabulary": vocabulary})


def _shape_text(shape: int | Sequence[int]) -> str:
    """Return ``1x28x28`` for (1, 28, 28), and ``30`` for (30,) or 30."""
    sides = shape if isinstance(shape, Iterable) else (shape,)
    try:
        whole = [index(side) for side in sides]
    except TypeError:
        whole = []
    if not whole or min(whole) < 1 or any(isinstance(side, bool) for side in sides):
        raise ConfigError("shape", "a whole number or a tuple of them, such as (30,) or (1, 28, 28)", repr(shape))
    return "x".join(map(str, whole))


def name_of(function: Function) -> str:
    """Return ``package.module:function`` for a function or class; one of a notebook's cell, or a closure, is kept.

    It is kept by value, under the digest of its code and what it refers to: the same cell has the same name in every
    session (:mod:`sepal.api.code_digest`, :func:`sepal.user_modules.keep`).
    """
    if name := importable(function):
        return name
    import cloudpickle

    content: bytes = cloudpickle.dumps(function)
    plain = getattr(function, "__name__", type(function).__name__)  # the latter of a functools.partial
    return user_modules.keep(f"{plain.strip('<>')}_{code_digest(function)[:12]}", content, function)


def code_key(key: str, value: Function | str) -> str:
    """Return the value of the run-config key ``key``, for a function or its name.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, str):
        return value
    if not callable(value):
        raise ConfigError(key, "a function, or package.module:function", type(value).__name__)
    return name_of(value)


def flat_keys(method: str, dataset: str | OwnKeys, model: Function | str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat keys of a run; without ``method`` if it is empty.

    Raises:
        ConfigError: An argument is of the wrong type, or stands in the wrong place.
    """
    if not isinstance(method, str):
        got = "data (sepal.own)" if isinstance(method, OwnKeys) else type(method).__name__
        raise ConfigError("method", "a method's name, then data and model: sepal.run('fedpse', data, model)", got)
    if not isinstance(dataset, str | OwnKeys):
        hint = "; clients' own data are sepal.own(load, shape=…, classes=…)" if callable(dataset) else ""
        got = getattr(dataset, "__name__", type(dataset).__name__)
        raise ConfigError("dataset", f"a data set's name, or sepal.own(…){hint}", got)
    if hasattr(model, "state_dict") and not isinstance(model, type):
        expected = "a function (input shape, classes) that builds a module, so that each client has its own"
        raise ConfigError("model", expected, f"a module, {type(model).__name__}")
    flat = dict(dataset.keys) if isinstance(dataset, OwnKeys) else {"dataset": dataset}
    flat |= {"method": method} if method else {}
    if model != "auto":
        flat["model"] = code_key("model", model)
    return {**flat, **settings_keys(keys)}


def settings_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys of Python, ``batch_size=8, partition={"alpha": 1}``, as flat keys; functions become their names."""
    flat = {key.replace("_", "-"): value for key, value in flatten_mapping(keys).items()}
    return {key: _plain(value) for key, value in flat.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return name_of(value) if callable(value) else value


def flatten_mapping(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a mapping with dotted keys: ``{"partition": {"alpha": 1}}`` → ``{"partition.alpha": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten_mapping(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def listed(key: str, values: Iterable[Any], example: str) -> list[Any]:
    """Return ``values`` as a list.

    Raises:
        ConfigError: It is one value: whether ``seeds=2`` means one seed or two is not guessed.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(key, f"a list, such as {example}", values)
    return list(values)
