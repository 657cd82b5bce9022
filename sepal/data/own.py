"""Private data of a client, returned by the user's function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from sepal.config import OwnSettings
from sepal.data.catalogue import default_model
from sepal.data.examples import ClientData, DatasetInfo, Examples, Index, InputKind
from sepal.data.incoming import checked_examples
from sepal.data.streams import is_dataset, stream
from sepal.errors import ConfigError, DataError
from sepal.rng import derive, derive_seed
from sepal.tasks import Targets
from sepal.tasks.inputs import Input, row_size, several
from sepal.user_modules import described, load

log = logging.getLogger("sepal")
_WHAT = "(x_train, y_train, x_test, y_test), a ClientData, or Datasets (train, test)"


BUILT_IN = ("classification", "multilabel", "regression")  # tasks that built-in models have outputs for
OWN = "own"  # the value of the run-config key ``dataset``
PRIVATE = "clients' data is their own: no client holds test data of the others"


@dataclass(frozen=True)
class OwnData:
    """Private data, from a function on the client's machine: ``dataset = "own"``.

    See :class:`sepal.data.federation.FederatedData`.

    Attributes:
        info: Metadata from the run config; the function's data must match it.
        target: ``package.module:function``; empty if neither the node nor the run names one.
        validation: Fraction of the training part held out, if the function returns no validation part.
        seed: The run's seed, for that split.
        targets: What targets look like; None for class numbers.
    """

    info: DatasetInfo
    target: str
    validation: float = 0.1
    seed: int = 0
    private: str = PRIVATE
    targets: Targets | None = None

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return the function's data for client ``number``.

        Raises:
            ConfigError: No function is configured.
            DataError: The function fails, or its data does not match the run config.
        """
        if not self.target:
            raise ConfigError(f"{name}: data", "package.module:function in the node config, or own.data", "none")
        seed = derive_seed(self.seed, "own-data", name) % 2**32
        kind = self.targets, self.info.inputs
        from sepal.seeding import generators_seeded

        with generators_seeded(seed):  # the function may draw from them
            data = own_data(self.target, self.info.classes, self.validation, seed, number, *kind)
        for part in (data.train, data.test):
            shape = part.first(1).x.shape[1:]
            if len(part) and shape != self.info.input_shape:
                raise DataError(f"{name}: data", f"examples of shape {self.info.input_shape}, as the run says", shape)
        whole = any(len(part) and part.first(1).x.dtype == np.int32 for part in (data.train, data.test))
        if whole and not self.info.vocabulary and not self.info.inputs:
            say_tokens(self.target)
        return data

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Raise, because private data is not pooled.

        Raises:
            DataError: Always.
        """
        raise DataError("test data of all clients", "a data set that clients share", self.private)


@cache
def say_tokens(target: str) -> None:
    """Say, once in a process, that a function's whole numbers go to the model as tokens."""
    way = "return floats if they are numbers, or set own.vocabulary if they are tokens"
    log.warning("%s: its whole numbers are taken for tokens, int32 as they are: %s", target, way)


def own_data(
    target: str,
    classes: int = 0,
    validation: float = 0.1,
    seed: int = 0,
    client: int = 0,
    targets: Targets | None = None,
    inputs: tuple[Input, ...] = (),
) -> ClientData:
    """Call ``package.module:function`` and return its result as checked :class:`ClientData`.

    Args:
        target: The function.
        classes: This, and all but ``client``, as for :func:`checked_data`.
        validation: See above.
        seed: See above.
        client: The client's number, passed to the function if it takes an argument.
        targets: See above.
        inputs: See above.

    Raises:
        DataError: The function cannot be imported or fails, or its data is invalid.
    """
    try:
        function = load("own data", target, DataError)
        result = function(client) if inspect.signature(function).parameters else function()
    except DataError:
        raise
    except SystemExit as stop:
        if not isinstance(stop.code, str):  # a signal's, for example
            raise
        raise DataError(target, f"to return {_WHAT}", f"SystemExit: {stop.code}") from stop
    except Exception as error:
        raise DataError(target, f"to return {_WHAT}", described(error)) from error
    return checked_data(target, result, classes, validation, seed, targets, inputs)


def checked_data(
    target: str,
    result: Any,
    classes: int = 0,
    validation: float = 0.1,
    seed: int = 0,
    targets: Targets | None = None,
    inputs: tuple[Input, ...] = (),
) -> ClientData:
    """Return what a user's function has returned as checked :class:`ClientData`.

    Args:
        target: Names the function in errors.
        result: (x_train, y_train, x_test, y_test), a ClientData, or torch Datasets (train, test) or (train, validation,
            test), which are read when examples are needed.
        classes: Number of classes; labels must be smaller. 0 accepts any label.
        validation: Fraction of the training part that becomes the validation part, if there is none.
        seed: Seed of that split.
        targets: What targets look like; None for class numbers.
        inputs: What one example has, if that is several inputs: x is then a dict or tuple of arrays.

    Raises:
        DataError: It is something else, or invalid.
    """
    check = partial(checked_examples, classes=classes, targets=targets, inputs=inputs)
    if isinstance(result, tuple | list) and len(result) in (2, 3) and all(map(is_dataset, result)):
        return _streams(target, result, check, validation, seed)
    if isinstance(result, ClientData):
        parts = {name: (getattr(result, name).x, getattr(result, name).y) for name in ("train", "validation", "test")}
    elif isinstance(result, tuple | list) and len(result) == 4:
        parts = {"train": (result[0], result[1]), "test": (result[2], result[3])}
    else:
        raise DataError(target, f"to return {_WHAT}", type(result).__name__)
    checked = {name: check(f"{target} {name}", x, y) for name, (x, y) in parts.items()}
    _check_alike(target, checked)
    if "validation" not in checked:
        checked["train"], checked["validation"] = _validation(checked["train"], validation, seed)
    return ClientData(checked["train"], checked["validation"], checked["test"])


def _check_alike(target: str, parts: dict[str, Examples]) -> None:
    train = parts["train"]
    if not len(train) and not len(parts["test"]):
        raise DataError(f"{target} train, test", "at least one example", "none")
    for name, part in parts.items():
        if len(part) and len(train) and (part.x.shape[1:], part.x.dtype) != (train.x.shape[1:], train.x.dtype):
            expected = f"inputs as in the train part, {train.x.dtype} {train.x.shape[1:]}"
            raise DataError(f"{target} {name}", expected, f"{part.x.dtype} {part.x.shape[1:]}")


def _streams(
    target: str, datasets: Sequence[Any], check: Callable[[str, Any, Any], Examples], fraction: float, seed: int
) -> ClientData:
    """Return Datasets (train, test) or (train, validation, test) as a client's data."""
    names = ("train", "test") if len(datasets) == 2 else ("train", "validation", "test")
    parts = {name: stream(f"{target} {name}", dataset, check) for name, dataset in zip(names, datasets, strict=True)}
    if not len(parts["train"]) and not len(parts["test"]):
        raise DataError(f"{target} train, test", "at least one example", "none")
    if "validation" not in parts:
        rest, held_out = _places(len(parts["train"]), fraction, seed)
        parts |= {"train": parts["train"].subset(rest), "validation": parts["train"].subset(held_out)}
    streams: Any = parts
    return ClientData(streams["train"], streams["validation"], streams["test"])


def _validation(train: Examples, fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Split off the validation part."""
    rest, held_out = _places(len(train), fraction, seed)
    if not len(held_out):
        return train, Examples(train.x[:0], train.y[:0])
    return Examples(train.x[rest], train.y[rest]), Examples(train.x[held_out], train.y[held_out])


def _places(examples: int, fraction: float, seed: int) -> tuple[Index, Index]:
    """Return the places of training and validation part: one at least if ``fraction`` is above 0, and never all."""
    if not 0 <= fraction < 1:
        raise DataError("split.validation", "a fraction in [0, 1)", fraction)
    count = min(max(1, round(fraction * examples)), max(examples - 1, 0)) if fraction else 0
    order = derive(seed, "own-validation").permutation(examples)
    return np.sort(order[count:]), np.sort(order[:count])


def kind_of(shape: Sequence[int], vocabulary: int) -> InputKind:
    """Return what examples of a shape are: tokens where there is a vocabulary, and else images or signals."""
    return "text" if vocabulary else "image" if len(shape) == 3 else "signal"


def own_info(keys: OwnSettings, task: str = "classification") -> DatasetInfo:
    """Return the metadata from the keys ``own.*``."""
    inputs = several(keys.shape)
    shape = (row_size(inputs),) if inputs else tuple(int(side) for side in keys.shape.split("x"))
    kind = kind_of(shape, keys.vocabulary)
    # Our own choice of defaults for unknown data.
    defaults: dict[str, str | int | float] = {"rounds": 20, "local-epochs": 1, "batch-size": 32, "lr": 0.01}
    if task in BUILT_IN and not inputs:
        defaults["model"] = default_model(kind, shape)
    facts = DatasetInfo(OWN, keys.count(task), shape, kind, False, {**defaults, "optimizer": "sgd"}, keys.vocabulary)
    return replace(facts, labelled=task == "classification", inputs=inputs)
