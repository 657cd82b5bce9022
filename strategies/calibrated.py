"""The default rates of each method: the table ``calibrated.toml``, and which of its entries a run gets.

``lr = 0``, and ``auto`` for a method's own rates, mean the value in this table. ``python -m referee.calibrate``
makes it, from validation data alone; ``referee/results/calibration.md`` has the evidence.

A run on a data set that is not listed gets the rates of the nearest one that is: one of the same optimizer, if possible
of the same kind of input, and among these the one whose examples have the closest size. A method that is not listed
there gets its rates of the nearest data set that lists it. Of these, ``lr`` is multiplied by the quotient of FedAvg's
rates on the two data sets, if that is below 1: larger images want smaller rates, as a rule. A method that is listed
nowhere gets FedAvg's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from sepal.data import DatasetInfo

FALLBACK = "fedavg"
FINDS = "`sepal tune`, or --set lr=search, searches for yours (in your own Flower app, pass lr=)"


@dataclass(frozen=True)
class CalibratedRates:
    """One data set of the table.

    Attributes:
        dataset: Its name.
        model: The model that the rates are for.
        optimizer: The optimizer that they are for.
        kind: Kind of input, as in :class:`sepal.data.DatasetInfo`.
        size: Numbers in one example.
        rates: Method → run-config key → value.
    """

    dataset: str
    model: str
    optimizer: str
    kind: str
    size: int
    rates: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Rates:
    """The rates of one run.

    Attributes:
        keys: Run-config keys such as ``lr`` and ``ditto.lambda``; empty if the table has nothing for the optimizer.
        origin: Where they come from, to be shown: ``calibrated for ditto on digits``.
        exact: Whether they were calibrated for this method, data set and model.
        other_method: The method for which they were calibrated, on whatever data; empty if it is this one.
    """

    keys: Mapping[str, float] = field(default_factory=dict)
    origin: str = ""
    exact: bool = True
    other_method: str = ""

    def of_method(self, method: str) -> dict[str, float]:
        """Return the method's own keys, without their prefix."""
        prefix = f"{method}."
        return {key.removeprefix(prefix): value for key, value in self.keys.items() if key.startswith(prefix)}


def rates(method: str, info: DatasetInfo, model: str, optimizer: str) -> Rates:
    """Return the rates for a run.

    Args:
        method: The method's name.
        info: The run's data.
        model: The run's model, as in the run config.
        optimizer: ``sgd`` or ``adam``.
    """
    for name in dict.fromkeys((method, FALLBACK)):
        entries = [entry for entry in table() if entry.optimizer == optimizer and name in entry.rates]
        if entries:
            entry = min(entries, key=lambda entry: _distance(entry, info))
            exact = name == method and (entry.dataset, entry.model) == (info.name, model)
            times, scaled = _scale(entry, info)
            keys = dict(entry.rates[name])
            if times < 1 and "lr" in keys:
                keys["lr"] = float(f"{times * keys['lr']:.3g}")
            return Rates(keys, _origin(entry, name, method, info, model, exact, scaled), exact, name * (name != method))
    return Rates()


def _scale(entry: CalibratedRates, info: DatasetInfo) -> tuple[float, str]:
    """Return by what a rate of ``entry`` is multiplied for ``info``, and words about it; 1 where ``entry`` is nearest.

    Of the 20 methods that digits and MNIST both list, 19 have a smaller rate on MNIST, by a factor of 2 to 10. On
    CIFAR-10, FedPSE's rate is a tenth of that on digits, as is FedAvg's.
    """
    those = [
        candidate for candidate in table() if candidate.optimizer == entry.optimizer and FALLBACK in candidate.rates
    ]
    nearest = min(those, key=lambda candidate: _distance(candidate, info), default=entry)
    if nearest is entry or FALLBACK not in entry.rates:
        return 1.0, ""
    times = nearest.rates[FALLBACK]["lr"] / entry.rates[FALLBACK]["lr"]
    return (times, f", times {times:.3g} as {FALLBACK}'s rate on {nearest.dataset}") if times < 1 else (1.0, "")


@cache
def table() -> tuple[CalibratedRates, ...]:
    """Return the entries of ``calibrated.toml``, in its order."""
    entries = tomllib.loads((files("sepal.strategies") / "calibrated.toml").read_text(encoding="utf-8"))
    return tuple(_entry(name, values) for name, values in entries.items())


def datasets() -> frozenset[str]:
    """Return the names of the data sets in the table."""
    return frozenset(entry.dataset for entry in table())


def _entry(dataset: str, values: Mapping[str, Any]) -> CalibratedRates:
    facts = (values["model"], values["optimizer"], values["kind"], values["size"])
    return CalibratedRates(dataset, *facts, values["rates"])


def _distance(entry: CalibratedRates, info: DatasetInfo) -> tuple[bool, bool, float]:
    """Return how far an entry is from a data set: by name, then by kind, then by size."""
    return entry.dataset != info.name, entry.kind != info.kind, abs(math.log(entry.size / math.prod(info.input_shape)))


def _origin(
    entry: CalibratedRates, name: str, method: str, info: DatasetInfo, model: str, exact: bool, scaled: str
) -> str:
    text = f"calibrated for {name} on {entry.dataset}"
    if exact:
        return text
    basis = (f"{text} with {entry.model}" if entry.model != model else text) + scaled
    target = f"{method} on {info.name}" if name != method or entry.dataset != info.name else f"the model {model}"
    return f"{basis}, not for {target}; {FINDS}"
