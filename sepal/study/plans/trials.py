"""Blocks of a plan whose cells are trials: each variant takes the values with the best validation accuracy.

Where a block names a variant's calibrated rate, another must be better by more than a standard error
(:mod:`sepal.study.plans.tuning`).

Test data is never looked at. The criterion is the mean validation accuracy of the closing round over the trials' seeds:
in the view that :meth:`sepal.study.plans.model.PlanFile.judged` names.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sepal.errors import SepalError
from sepal.storage.files import write_atomically
from sepal.storage.regular import read_text
from sepal.study.comparison import TuningResult, write_index
from sepal.study.plans.execute import Display, Place, execute
from sepal.study.plans.model import Chosen, PlanBlock, PlanFile, PlannedRun, cell_name
from sepal.study.plans.plan import check_keys
from sepal.study.plans.rates import data_notes, rate_notes
from sepal.study.run_keys import Value
from sepal.study.search import choose, error_over_clients, mean_of_trials, mean_validation, measure_in, validation

FAILED = "failed.txt"
Execute = Callable[[Sequence[PlannedRun]], Iterable[str]]


def chosen(plan: PlanFile, out: Path, failed: Collection[str] = ()) -> Chosen:
    """Return the values that trials under ``out`` have chosen, for the variants whose trials have all ended.

    A cell with a trial named in ``failed``, for example because training diverged at a large learning rate, is neither
    chosen nor waited for.
    """
    blocks = {block.name: block for block in plan.block}
    choices: dict[str, dict[str, dict[str, Value]]] = {}
    for block in plan.block:
        if block.trials:
            source = blocks[block.trials]
            runs = list(plan.runs(source.name))
            choices[block.name] = {}
            for variant in block.variants:
                if variant not in source.variants:  # nothing to choose
                    choices[block.name][variant] = {}
                    continue
                variant_runs = [run for run in runs if run.variant == variant]
                lost = {run.cell for run in variant_runs if run.name in failed}
                best = _best(plan, source, [run for run in variant_runs if run.cell not in lost], out)
                if best is not None:
                    choices[block.name][variant] = best
    return choices


def tuning_results(plan: PlanFile, out: Path, failed: Collection[str] = ()) -> list[TuningResult]:
    """Return what the trials under ``out`` of a plan with ``tune = true`` have tried and chosen."""
    results, best = [], chosen(plan, out, failed)
    for block in plan.block if plan.tune else ():
        source = next((candidate for candidate in plan.block if candidate.name == block.trials), block)
        runs = list(plan.runs(source.name)) if block.trials else []
        for variant in dict.fromkeys(run.variant for run in runs):
            variant_runs = [run for run in runs if run.variant == variant]
            view, values = plan.judged(variant_runs[0]), []
            for cell in dict.fromkeys(run.cell for run in variant_runs):
                places = [out / run.name for run in variant_runs if run.cell == cell and run.name not in failed]
                values.append((cell, mean_validation(places, view) if len(places) == len(source.seeds) else None))
            keys = best[block.name].get(variant, {})
            lists = {key: _numbers(source.grid_of(variant)[key]) for key in keys}
            edge = any(len(numbers) > 1 and keys[key] in (numbers[0], numbers[-1]) for key, numbers in lists.items())
            results.append(TuningResult(block.name, variant, view, source.seeds, tuple(values), cell_name(keys), edge))
    return results


def _numbers(values: Sequence[Value]) -> list[float]:
    return sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))


def _best(plan: PlanFile, block: PlanBlock, runs: Sequence[PlannedRun], out: Path) -> dict[str, Value] | None:
    """Return the values of the best cell, the first in a tie; None while a trial is missing.

    If a rate is calibrated: the cell with the rate nearest to it, of those within a standard error of the best.
    """
    if not runs:
        return None
    view, variant = plan.judged(runs[0]), runs[0].variant
    cells: dict[str, list[float]] = {}
    for run in runs:
        value = validation(out / run.name, view)
        if value is None:
            return None
        cells.setdefault(run.cell, []).append(value)
    sign = measure_in(out / run.name for run in runs).sign
    means = {cell: sign * mean_of_trials(values) for cell, values in cells.items()}
    keys = {run.cell: run.keys for run in runs}
    best = choose(list(means), means.__getitem__)
    if variant in block.calibrated:
        error = error_over_clients([out / run.name for run in runs if run.cell == best], view)
        away = {cell: abs(math.log(float(keys[cell]["lr"]) / block.calibrated[variant])) for cell in means}
        best = choose(list(means), means.__getitem__, away.__getitem__, lambda a, b: means[b] >= means[a] - error)
    return {key: keys[best][key] for key in block.grid_of(variant)}


def in_stages(plan: PlanFile, only: str, out: Path, execute: Execute) -> list[str]:
    """Run a plan's blocks in order, each after its trials; return the names of runs that failed.

    A block that waits for trials is run as soon as they have ended, before trials further down in the file.

    Args:
        plan: The plan.
        only: Name of one block, which is run with the block of its trials; empty: all.
        out: Directory of run directories.
        execute: Executes the missing runs of a list, and returns the names of those that failed.
    """
    names = {block.name for block in plan.block if only in ("", block.name)}
    names |= {block.trials for block in plan.block if block.name in names}
    failed: list[str] = []
    tried: set[str] = set()
    list(plan.runs(only))  # raises if ``only`` is not a block
    while True:
        every = plan.runs(chosen=chosen(plan, out, failed))
        missing_runs = [run for run in every if run.block in names and run.name not in tried]
        stage = list(itertools.takewhile(lambda run: run.ready, missing_runs)) or [
            run for run in missing_runs if run.ready
        ]
        if not stage:
            return failed
        tried |= {run.name for run in stage}
        failed += execute(stage)


def without_result(plan: PlanFile, runs: Sequence[PlannedRun], failed: Sequence[str]) -> list[str]:
    """Return the failed runs that leave a variant without a result.

    Trials of ``tune = true`` may fail, as training diverges at a large rate, but not all of a variant's.
    """
    searched: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if plan.tune and run.block in plan.trial_blocks:
            searched.setdefault((run.block, run.variant), []).append(run.name)
    kept = {name for names in searched.values() for name in names if not set(names) <= set(failed)}
    return [name for name in failed if name not in kept]


class Executor:
    """Executes lists of runs one after the other, within a shared limit of hours.

    Args:
        out: Directory of run directories.
        displays: Returns a display for each list.
        jobs: As for :func:`sepal.study.plans.execute.execute`.
        workers: As there.
        hours: No run is started after this many hours.
        place: As there.
    """

    def __init__(
        self,
        out: Path,
        displays: Callable[[], Display],
        jobs: int,
        workers: int,
        hours: float,
        place: Place | None = None,
    ) -> None:
        self._displays, self._place = displays, place
        self._out, self._jobs, self._workers = out, jobs, workers
        self._hours, self._begun = hours, time.monotonic()

    def __call__(self, runs: Sequence[PlannedRun]) -> dict[str, str]:
        """Execute the missing ones of ``runs``; return the names of those that failed, each with its cause."""
        hours_left = max(0.0, self._hours - (time.monotonic() - self._begun) / 3600)
        failed = execute(
            runs,
            self._out,
            self._displays(),
            jobs=self._jobs,
            workers=self._workers,
            hours=hours_left,
            place=self._place,
        )
        tried = {run.name for run in runs}
        causes = {name: cause for name, cause in failures(self._out).items() if name not in tried} | failed
        lines = "".join(f"{name}: {causes[name]}\n" for name in sorted(causes))
        if lines:
            write_atomically(self._out / FAILED, lines.encode())
        else:
            (self._out / FAILED).unlink(missing_ok=True)
        return failed


class PlanOutcome(NamedTuple):
    """What became of a plan's runs.

    Attributes:
        runs: The plan's runs, with what trials have chosen.
        failed: Those that failed.
        lost: Those of them that leave a variant without a result, each with its cause.
    """

    runs: list[PlannedRun]
    failed: list[str]
    lost: dict[str, str]


def run_plan(
    plan: PlanFile,
    out: Path,
    displays: Callable[[Sequence[str]], Display],
    *,
    jobs: int = 0,
    workers: int = 0,
    hours: float | None = None,
    file: str = "",
    place: Place | None = None,
) -> PlanOutcome:
    """Execute the missing runs of a plan under ``out``, and write the list of its runs there.

    Args:
        plan: The plan.
        out: Directory of run directories.
        displays: Returns a display for each list of runs; its argument are lines to show first, once.
        jobs: As for :func:`sepal.study.plans.execute.execute`.
        workers: As there.
        hours: No run is started after this many hours; None for the plan's own limit.
        file: The plan file's name, for messages.
        place: As for :func:`sepal.study.plans.execute.execute`.

    Raises:
        ConfigError: A key is unknown or invalid, or ``out`` has a run of the same name with other keys.
    """
    runs = list(plan.runs())
    check_keys(file or plan.title, runs)
    notes = iter([[*rate_notes(plan, runs), *data_notes(runs)]])
    limit = plan.hours if hours is None else hours
    execute = Executor(out, lambda: displays(next(notes, ())), jobs, workers, limit, place)
    failed = in_stages(plan, "", out, execute)
    runs = list(plan.runs(chosen=chosen(plan, out, failures(out))))
    write_index(plan, runs, out, rate_notes(plan, runs), tuning_results(plan, out, failures(out)))
    causes = failures(out)
    return PlanOutcome(runs, failed, {name: causes[name] for name in without_result(plan, runs, failed)})


def failure(command: str, runs: int, failed: Mapping[str, str]) -> SepalError:
    """Return the error that says how many of ``runs`` failed, and the first of them with its cause."""
    name, cause = next(iter(failed.items()))
    return SepalError(command, f"{runs} runs that end", f"{len(failed)} that failed, the first: {name}: {cause}")


def failures(out: Path) -> dict[str, str]:
    """Return the names of the runs under ``out`` whose last attempt failed, each with its cause.

    Raises:
        StateError: The list is no text, too long, or elsewhere.
    """
    try:
        lines = [line.partition(": ") for line in read_text(out / FAILED, within=out).splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {name: cause.strip() for name, _, cause in lines}  # of an earlier version: names alone
