"""Metrics as sums that add up over batches and clients, and what is computed from them. Imports no torch.

The sums of some examples under a task are one vector of float64: the number of examples, their summed loss, and then
those of each metric in turn. Vectors of different examples are added; a metric's value is a function of its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sepal.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    import torch

Sums: TypeAlias = Sequence[float]
MOST_SUMS = 1024  # of a task, in each view
GREATEST_SUM = 1e18
HEADS = 2  # number of examples, loss
MOST_EXAMPLES = 2**40
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}\Z")  # of a metric
UNIT = re.compile(r"[^\[\]<>&\"'\\]{0,16}\Z")  # of a metric: no markup of terminals and pages


@dataclass(frozen=True)
class Measure:
    """A metric's name, unit and direction: what people need to read its values.

    Attributes:
        name: Such as ``accuracy``.
        unit: ``%``: values are shares and are shown times 100; else the unit itself, or nothing.
        higher: Whether higher is better.
    """

    name: str = "accuracy"
    unit: str = "%"
    higher: bool = True

    @property
    def percent(self) -> bool:
        """Whether values are shares, shown in per cent."""
        return self.unit == "%"

    @property
    def factor(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    @property
    def sign(self) -> float:
        """1 if higher is better, else -1: times this, higher is better."""
        return 1.0 if self.higher else -1.0

    @property
    def axis(self) -> str:
        """The name with its unit, for heads of tables and axes: ``accuracy, %``."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def in_unit(self) -> str:
        """`` in %``; empty without a unit."""
        return f" in {self.unit}" if self.unit else ""

    @property
    def points(self) -> str:
        """What differences are in: ``points`` for shares, else the unit, or the metric's name."""
        return "points" if self.percent else self.unit or f"in {self.name}"

    def number(self, value: float, sign: str = "", digits: int = 1) -> str:
        """Return a value as text without its unit: shares with ``digits`` decimals, others with four figures."""
        return f"{100 * value:{sign}.{digits}f}" if self.percent else f"{value:{sign}.4g}"

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def rounded(self, value: float) -> float:
        """Return a value as shown, for a chart: shares in per cent with two decimals, others with six figures."""
        return round(100 * value, 2) if self.percent else float(f"{value:.6g}")

    def better(self, value: float, reference: float) -> bool:
        """Return whether ``value`` is better than ``reference``."""
        return self.sign * value > self.sign * reference

    def rise(self, share: float, value: float) -> float:
        """Return what counts as a small step: ``share`` of a metric in %, or that share of ``value``."""
        return share if self.percent else share * abs(value)


ACCURACY = Measure()


@dataclass(frozen=True)
class Metric:
    """One metric of a task.

    Attributes:
        name: Lower-case letters, digits and hyphens.
        size: Number of its sums.
        sums: Returns the sums of a batch, from the model's outputs and the targets.
        value: Returns the value that sums stand for; None if they determine none.
        unit: See :class:`Measure`.
        higher: Whether higher is better.
        least: Smallest possible value.
        most: Greatest possible value.
        classes: Where the sums are the true positives, the false positives and the false negatives of each class, in
            this order: the number of classes; else 0.
        targets: With ``classes``, how many targets of an example are counted at most: one, its labels, or its pixels.
    """

    name: str
    size: int
    sums: Callable[[torch.Tensor, torch.Tensor], Iterable[float]]
    value: Callable[[Sums], float | None]
    unit: str = "%"
    higher: bool = True
    least: float = 0.0
    most: float = 1.0
    classes: int = 0
    targets: int = 1

    @property
    def measure(self) -> Measure:
        """What people need to read its values."""
        return Measure(self.name, self.unit, self.higher)

    def computed(self, sums: Sums) -> float | None:
        """Return the value of its sums; None also where they cannot be computed with, as no honest client's are."""
        try:
            value = self.value(sums)
            return None if value is None else float(value)
        except Exception:  # a client chooses the sums, and the value may be an own task's
            return None

    def countable(self, sums: Sums, examples: float) -> bool:
        """Return whether counts by class may be those of so many examples: whole, and no more than their targets."""
        tp, fp, fn = (sums[k * self.classes : (k + 1) * self.classes] for k in range(3))
        whole = all(value >= 0 and float(value).is_integer() for value in sums)
        return whole and sum(tp) + max(sum(fp), sum(fn)) <= examples * self.targets

    def possible(self, value: float) -> bool:
        """Return whether a value is finite and from ``least`` to ``most``."""
        return self.least - 1e-6 <= value <= min(self.most + 1e-6, GREATEST_SUM)


@dataclass(frozen=True)
class Scoring:
    """The metrics of a task, and which of them is its headline.

    Attributes:
        metrics: The metrics, in the order of their sums.
        headline: Name of the one by which clients, rounds and methods are compared.
        counted: Whether the headline is the accuracy of a classification, for which clients send the counts ``correct``
            and ``examples`` and no sums.
    """

    metrics: tuple[Metric, ...] = ()
    headline: str = "accuracy"
    counted: bool = False

    @property
    def size(self) -> int:
        """Number of sums of a view."""
        return HEADS + sum(metric.size for metric in self.metrics)

    @property
    def measure(self) -> Measure:
        """What people need to read the headline's values."""
        return ACCURACY if self.counted else self.metric(self.headline).measure

    def metric(self, name: str) -> Metric:
        """Return a metric.

        Raises:
            ConfigError: There is none of that name.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise ConfigError("metric", f"one of {', '.join(metric.name for metric in self.metrics)}", name)

    def value(self, sums: Sums, name: str = "") -> float | None:
        """Return the value of a metric, by default the headline; None if the sums determine none that is possible."""
        metric = self.metric(name or self.headline)
        value = self._computed(metric, sums) if sums[0] else None
        return value if value is not None and metric.possible(value) else None

    def _computed(self, metric: Metric, sums: Sums) -> float | None:
        return metric.computed(self._part(metric, sums))

    def _part(self, metric: Metric, sums: Sums) -> Sums:
        at = HEADS + sum(before.size for before in self.metrics[: self.metrics.index(metric)])
        return sums[at : at + metric.size]

    def by_class(self, sums: Sums) -> dict[str, list[float]]:
        """Return counts by class: ``tp``, ``fp`` and ``fn``; empty if no metric of the task has them."""
        metric = next((metric for metric in self.metrics if metric.classes), None)
        if metric is None:
            return {}
        part, n = self._part(metric, sums), metric.classes
        return {name: list(part[k * n : (k + 1) * n]) for k, name in enumerate(("tp", "fp", "fn"))}

    def values(self, sums: Sums) -> dict[str, float]:
        """Return the mean loss and the value of every metric that the sums determine."""
        by_metric = {metric.name: self.value(sums, metric.name) for metric in self.metrics}
        present = {name: value for name, value in by_metric.items() if value is not None}
        return {"loss": sums[1] / sums[0], **present} if sums[0] else {}

    def check(self, key: str, sums: Sums) -> None:
        """Check sums that a client claims.

        Raises:
            ProtocolError: Their number is not the task's, or a value is impossible.
        """
        if len(sums) != self.size:
            raise ProtocolError(key, f"{self.size} sums", len(sums))
        if not all(abs(value) <= GREATEST_SUM for value in sums):
            raise ProtocolError(key, f"finite sums up to {GREATEST_SUM:g}", "another")
        if not (float(sums[0]).is_integer() and 0 < sums[0] < MOST_EXAMPLES):
            raise ProtocolError(key, "a number of examples, at least 1", sums[0])
        for metric in self.metrics:
            if metric.classes and not metric.countable(self._part(metric, sums), sums[0]):
                raise ProtocolError(key, f"counts by class of {sums[0]:g} examples", f"others for {metric.name}")
            value = self._computed(metric, sums)
            if value is not None and not metric.possible(value):
                raise ProtocolError(key, f"{metric.name} from {metric.least:g} to {metric.most:g}", f"{value:g}")


BY_ACCURACY = Scoring(counted=True)


def added(parts: Iterable[Sums]) -> tuple[float, ...]:
    """Return the sums of all examples together; exactly rounded, so that the order of parts does not matter."""
    return tuple(map(math.fsum, zip(*parts, strict=True)))


def measured(figures: Mapping[str, Any], view: str, part: str, scoring: Scoring) -> tuple[float, float] | None:
    """Return a client's headline in a view and the number of examples; None where it has no value.

    Args:
        figures: The reply's counts and sums by name.
        view: Name of the view.
        part: ``validation-`` for validation data, or nothing.
        scoring: The task's metrics.
    """
    if scoring.counted:
        examples = figures.get(f"{view}.{part}examples", 0)
        return (figures[f"{view}.{part}correct"] / examples, examples) if examples > 0 else None
    sums = figures.get(f"{view}.{part}sums")
    value = None if sums is None else scoring.value(sums)
    return None if sums is None or value is None else (value, sums[0])


def check_name(view: str, views: Sequence[str]) -> bool:
    """Return whether a key of sums, ``VIEW.sums`` or ``VIEW.validation-sums``, is of one of ``views``."""
    name, dot, kind = view.partition(".")
    return bool(dot) and name in views and kind in ("sums", "validation-sums")


def measure_of(stored: Mapping[str, Any]) -> Measure:
    """Return the measure of a line of metrics.jsonl or of summary.json; accuracy where it names none.

    A run from elsewhere may hold anything: what is not as Sepal writes it is read as a metric without a unit.
    """
    metric = stored.get("metric")
    if not isinstance(metric, Mapping):
        return ACCURACY
    name, unit = str(metric.get("name", "")), str(metric.get("unit", ""))
    name, unit = name if NAME.match(name) else "metric", unit if UNIT.match(unit) and unit.isprintable() else ""
    return Measure(name, unit, metric.get("higher") is not False)


def headline(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headline's figures by view, of a line of metrics.jsonl or of summary.json."""
    figures: Mapping[str, Any] = stored.get("accuracy", stored.get("headline", {}))
    return figures
