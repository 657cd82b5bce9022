"""Runs with all defaults, under one kind of arithmetic or this processor's, and what their records say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from sepal.strategies import registry
from sepal.study.plans.plan import read_table
from sepal.study.record import RunRecord, recorded
from sepal.study.statistics import LEVEL, holm, interval

YARDSTICK = "fedavg-ft"
MOST_BEHIND, NOISE = 0.05, 0.03
# Data set → method → by how many points the worst stored seed is behind, which NOTES.md of the baselines explains with
# measurements. NOISE is what other seeds and another processor may add.
BEHIND: Mapping[str, Mapping[str, float]] = {
    "digits": {"fedmask": 16.4, "fedsa-lora": 26.6, "flasc": 24.1},
    "har": {
        **{"fedavg": 5.7, "fedstc": 5.7, "fedscr": 6.0, "fedprox": 5.7, "flasc": 17.2, "feddst": 6.2},
        **{"heterofl": 6.0, "fjord": 5.8, "fedrolex": 6.0, "flanc": 5.8, "tailorfl": 5.8},
        **{"fedadam": 5.3, "fedyogi": 5.0, "fedadagrad": 5.2},
    },
}
COLLAPSED = 2 / 3  # of the method's best run on the data: less is a collapse, as on the leaderboard
MOST_DIFFERENCE = 0.01  # between kinds of arithmetic, in [0, 1]; a larger one must not be established
KINDS: Mapping[str, Mapping[str, str]] = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
FLAGS = {"avx2": "avx2", "avx512": "avx512f"}  # kind → the processor flag that it needs


def kinds_here(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the kinds of arithmetic that this processor has."""
    flags = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return [kind for kind in KINDS if kind not in FLAGS or FLAGS[kind] in flags]


@dataclass(frozen=True)
class DefaultRun:
    """A method with all its defaults; ``kind`` is a kind of arithmetic, empty for this processor's own."""

    dataset: str
    method: str
    seed: int
    kind: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """The run's keys: nothing set but the data."""
        settings = read_table(Path(__file__).with_name(f"{self.dataset}.toml"))["settings"]
        return {**settings, "dataset": self.dataset, "method": self.method, "seed": self.seed}

    def defaults(self) -> dict[str, Any]:
        """Return the keys whose default a calibration or a decision may change: they date a record."""
        from sepal.config import flatten
        from sepal.strategies.assembly import assemble

        setup = assemble(self.config).setup
        method_keys = flatten(setup.hyper, f"{setup.config.method}.")
        return {"lr": float(setup.config.lr), "clip-gradient": setup.config.clip_gradient, **method_keys}


def run_of(record: RunRecord) -> DefaultRun:
    """Return the run that a record is of."""
    return DefaultRun(record.dataset, record.method, record.seed, record.labels.get("kind", ""))


def execute(planned: DefaultRun, commit: str) -> RunRecord:
    """Execute a run; the process must have been started with the variables of its kind.

    Raises:
        RuntimeError: It was not.
    """
    import os

    variables = KINDS.get(planned.kind, {})
    if any(os.environ.get(name) != value for name, value in variables.items()):
        raise RuntimeError(f"{planned.kind}: expected the variables {dict(variables)} in the environment")
    record = recorded(planned.config, {"kind": planned.kind} if planned.kind else {}, commit, ("accuracy",))
    return record.model_copy(update={"figures": {"defaults": planned.defaults()}})


def ordered(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return one record for each run, the last one, by data set, method and seed in the registry's order."""
    last = {run_of(record): record for record in records}
    order = {method: number for number, method in enumerate(registry.METHODS)}
    return sorted(last.values(), key=lambda r: (r.dataset != "har", order.get(r.method, 99), run_of(r).kind, r.seed))


@dataclass(frozen=True)
class KindDifference:
    """Two kinds of arithmetic, paired over seeds.

    Attributes:
        kinds: Their names.
        mean: Mean of the first minus the second.
        largest: Largest difference of a seed, without its sign.
        p: p-value of a paired t, not corrected; 1 for fewer than two seeds or no difference at all.
    """

    kinds: tuple[str, str]
    mean: float
    largest: float
    p: float


@dataclass(frozen=True)
class MethodResults:
    """All records of one method on one data set."""

    dataset: str
    method: str
    rows: Sequence[RunRecord]

    @property
    def lr(self) -> float:
        """The default rate."""
        return float(self.rows[0].figures["defaults"]["lr"])

    def by_kind(self) -> dict[str, dict[int, float]]:
        """Return kind → seed → accuracy of the deployed model; a run that ended with an error has 0."""
        accuracies: dict[str, dict[int, float]] = {}
        for row in self.rows:
            accuracies.setdefault(run_of(row).kind, {})[row.seed] = row.reached or 0.0
        return accuracies

    def accuracies(self) -> list[float]:
        """Return the accuracies of the runs that did not end with an error."""
        return [row.reached for row in self.rows if row.reached is not None]

    def worst(self, rival: MethodResults) -> tuple[float, int] | None:
        """Return the lowest difference to another method over its seeds, in points, and the seed.

        It is −∞ if this method has no figure with that seed. None if the other method has no figure at all.
        """
        reached = {row.seed: row.reached for row in self.rows}
        gaps = [
            (-math.inf if (accuracy := reached.get(row.seed)) is None else 100 * (accuracy - row.reached), row.seed)
            for row in rival.rows
            if row.reached is not None
        ]
        return min(gaps, default=None)

    def verdict(self, yardstick: MethodResults) -> str:
        """Return "" for a method that is behind with no seed, "explained" or "behind"."""
        lowest = self.worst(yardstick)
        if lowest is None or lowest[0] >= -100 * MOST_BEHIND:
            return ""
        explained = -lowest[0] <= BEHIND[self.dataset].get(self.method, -math.inf) + 100 * NOISE
        return "explained" if explained else "behind"

    def collapsed(self) -> list[RunRecord]:
        """Return the runs with less than two thirds of the best one's accuracy, or none."""
        best = max(self.accuracies(), default=0.0)
        return [row for row in self.rows if row.reached is None or row.reached < COLLAPSED * best]

    def over_seeds(self) -> float | None:
        """Return the standard deviation over seeds, mean over kinds; None with fewer than two seeds."""
        spreads = [stdev(by_seed.values()) for by_seed in self.by_kind().values() if len(by_seed) > 1]
        return mean(spreads) if spreads else None

    def over_kinds(self) -> float | None:
        """Return the standard deviation over kinds of a seed's run, mean over seeds; None without two kinds."""
        by_kind = self.by_kind()
        seeds = set.intersection(*(set(by_seed) for by_seed in by_kind.values())) if len(by_kind) > 1 else set()
        spreads = [stdev(by_seed[seed] for by_seed in by_kind.values()) for seed in sorted(seeds)]
        return mean(spreads) if spreads else None

    def differences(self) -> Iterator[KindDifference]:
        """Yield the differences of each two kinds, over the seeds that both have."""
        for (kind, accuracies), (rival_kind, rival_accuracies) in combinations(self.by_kind().items(), 2):
            if gaps := [
                accuracies[seed] - rival_accuracies[seed]
                for seed in sorted(accuracies.keys() & rival_accuracies.keys())
            ]:
                bounds = interval(np.array(gaps)[:, None], "seeds") if len(set(gaps)) > 1 else None
                yield KindDifference((kind, rival_kind), mean(gaps), max(map(abs, gaps)), bounds.p if bounds else 1.0)


def method_results(rows: Iterable[RunRecord]) -> list[MethodResults]:
    """Return the records by data set and method, in their order."""
    grouped: dict[tuple[str, str], list[RunRecord]] = {}
    for row in rows:
        grouped.setdefault((row.dataset, row.method), []).append(row)
    return [MethodResults(dataset, method, records) for (dataset, method), records in grouped.items()]


def established(results: Sequence[MethodResults]) -> dict[tuple[str, str], list[KindDifference]]:
    """Return the differences above a point that remain after Holm's correction over all results and pairs of kinds."""
    tested = [(result, difference) for result in results for difference in result.differences()]
    bad: dict[tuple[str, str], list[KindDifference]] = {}
    for (result, difference), p in zip(tested, holm([difference.p for _, difference in tested]), strict=True):
        if p < LEVEL and abs(difference.mean) > MOST_DIFFERENCE:
            bad.setdefault((result.dataset, result.method), []).append(difference)
    return bad
