"""Results of runs: accuracy by round and by MB, figures of each client, bytes, and differences between groups of runs.

A point of a curve belongs to a number of completed rounds. *Received* scores the server's model after that many rounds,
*trained* and *pooled* the models that clients make from it; all three have cost the same bytes of training. Only full
evaluations are points (``evaluate-every``): a mean over sampled clients is a different figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from sepal.cli.runs import Line, StoredRun, read_rows, read_run

MEGA = 1e6
DIRECTIONS = ("up", "down")


@dataclass(frozen=True)
class Point:
    """One evaluation of all clients.

    Attributes:
        round: Rounds completed.
        megabytes: Payload bytes of training until then, up and down, over all clients, / 10⁶.
        seconds: Wall-clock time until then.
        mean: Mean accuracy over clients.
        bottom_decile: Accuracy of the ⌊C/10⌋-th worst of C clients.
    """

    round: int
    megabytes: float
    seconds: float
    mean: float
    bottom_decile: float


@dataclass(frozen=True)
class Result:
    """One run among those that are compared.

    Attributes:
        label: Its name among the others: that of its method or of a variant.
        cell: The swept values that it shares with others; empty if none are swept.
    """

    label: str
    cell: str
    seed: int
    stored: StoredRun

    @cached_property
    def lines(self) -> Sequence[Line]:
        """Lines of rounds that evaluated all clients, each with the model that a user of its method would get.

        In other rounds, *trained* is the model of the training itself, which some methods tune further for a user.
        """
        return [line for line in self.stored.lines if line["full"] or line["phase"] == "closing"]

    @cached_property
    def _spent(self) -> Mapping[int, tuple[float, float]]:
        """Rounds completed → MB and seconds until then."""
        spent, seconds = {0: (0.0, 0.0)}, 0.0
        for line in self.stored.lines:
            seconds += line["seconds"]["total"] + line["seconds"]["server"]
            spent[line["round"]] = (line["bytes"]["up"] + line["bytes"]["down"]) / MEGA, seconds
        return spent

    def points(self, view: str) -> list[Point]:
        """Return the view's curve; empty if the method has no such view."""
        return [
            Point(line["model_round"], *self._spent[line["model_round"]], found["mean"], found["bottom_decile"])
            for line in self.lines
            if (found := line["accuracy"].get(view))
        ]

    def accuracy(self, view: str) -> Mapping[str, float] | None:
        """Return the view's last figures over all clients; None if there are none."""
        return next((line["accuracy"][view] for line in reversed(self.lines) if line["accuracy"].get(view)), None)

    def clients(self, view: str) -> dict[str, float]:
        """Return each client's last accuracy in a view, by name."""
        line = next((line for line in reversed(self.lines) if line["accuracy"].get(view)), None)
        values = {c["name"]: c.get(view, c["further"].get(view)) for c in line["clients"]} if line else {}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def _ledger(self) -> Sequence[Mapping[str, Any]]:
        return read_rows(self.stored.path / "ledger.jsonl")

    @cached_property
    def sent(self) -> dict[str, dict[str, float]]:
        """Direction → client → MB of training payloads."""
        sums: dict[str, dict[str, float]] = {direction: {} for direction in DIRECTIONS}
        for row in self._ledger:
            if row["purpose"] == "training":
                sums[row["direction"]].setdefault(row["client"], 0.0)
                sums[row["direction"]][row["client"]] += row["payload"] / MEGA
        return sums

    @cached_property
    def multiply_adds(self) -> float:
        """Multiply-adds of the training that the server asked for, over all clients, without evaluation."""
        asked = {(row["round"], row["client"]) for row in self._ledger if row["purpose"] == "training"}
        done = ((line["round"], client) for line in self.stored.lines for client in line["clients"])
        return float(sum(c["metrics"].get("multiply-adds", 0.0) for n, c in done if (n, c["name"]) in asked))

    @cached_property
    def rounds(self) -> int:
        """The rounds of the run: those that it had if it has ended, and otherwise the most that it may have."""
        return int((self.stored.summary or {}).get("rounds", self.stored.config["rounds"]))

    def reached(self, view: str, target: float) -> Point | None:
        """Return the first point at which the view's mean is ``target`` or more."""
        return next((point for point in self.points(view) if point.mean >= target), None)


def read_result(path: Path, label: str = "", cell: str = "") -> Result:
    """Return the run in ``path``; without a label, it gets its method's name."""
    stored = read_run(path)
    return Result(label or str(stored.config["method"]), cell, int(stored.config["seed"]), stored)


@dataclass(frozen=True)
class Estimate:
    """A figure over seeds, or a difference over clients.

    Attributes:
        spread: Standard deviation over seeds (ddof 1), or half the width of the 95 % interval; None if there are too
            few values.
        count: Number of values that it is the mean of.
    """

    mean: float
    spread: float | None
    count: int

    def text(self, digits: int = 1, factor: float = 100.0, sign: str = "") -> str:
        """Return ``93.1 ± 0.4``: in per cent by default."""
        mean = f"{factor * self.mean:{sign}.{digits}f}"
        return mean if self.spread is None else f"{mean} ± {factor * self.spread:.{digits}f}"


def over_seeds(values: Sequence[float]) -> Estimate | None:
    """Return mean and standard deviation over seeds; None without values."""
    if not values:
        return None
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Estimate(float(np.mean(values)), spread, len(values))


BySeed = Mapping[int, Mapping[str, float]]  # seed → client → accuracy


def difference(ours: Sequence[Result], theirs: Sequence[Result], view: str, other: str = "") -> Estimate | None:
    """Return the paired difference of accuracies, ours minus theirs (:func:`paired`).

    ``other`` is the view of ``theirs`` if it is not ``view``.
    """
    return paired(*_sides(ours, theirs, view, other or view))


def difference_by_seed(ours: Sequence[Result], theirs: Sequence[Result], view: str, other: str = "") -> Estimate | None:
    """Return the same difference with the interval over seeds (:func:`paired_by_seed`)."""
    return paired_by_seed(*_sides(ours, theirs, view, other or view))


def _sides(ours: Sequence[Result], theirs: Sequence[Result], view: str, other: str) -> Iterator[BySeed]:
    for group, each in ((ours, view), (theirs, other)):
        yield {result.seed: result.clients(each) for result in group}


def paired(ours: BySeed, theirs: BySeed) -> Estimate | None:
    """Return the paired difference of accuracies, ours minus theirs, with the 95 % interval of Student's t.

    Each client's difference is averaged over the seeds that both have. Clients of one federation are not independent,
    so the interval is a guide, not a test. With fewer than three clients there is no interval.
    """
    pairs: dict[str, list[float]] = {}
    for differences in _differences(ours, theirs).values():
        for name, value in differences.items():
            pairs.setdefault(name, []).append(value)
    return _with_interval([float(np.mean(found)) for found in pairs.values()])


def paired_by_seed(ours: BySeed, theirs: BySeed) -> Estimate | None:
    """Return the same difference with the interval over seeds: each seed counts once, with its mean over clients.

    It is for claims about other draws of the data and of W_0. With fewer than three seeds there is no interval.
    """
    return _with_interval([float(np.mean([*found.values()])) for found in _differences(ours, theirs).values() if found])


def _differences(ours: BySeed, theirs: BySeed) -> BySeed:
    """Return seed → client → difference, for what both have."""
    return {
        seed: {name: clients[name] - theirs[seed][name] for name in clients if name in theirs[seed]}
        for seed, clients in ours.items()
        if seed in theirs
    }


def _with_interval(values: Sequence[float]) -> Estimate | None:
    if len(values) < 3:
        return Estimate(float(np.mean(values)), None, len(values)) if len(values) else None
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return Estimate(float(np.mean(values)), float(half), len(values))
