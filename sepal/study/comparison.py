"""Runs side by side: which belong together, whether they can be compared, and ``comparison.json``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from sepal.config import Flat, Mark, RunConfig, marked
from sepal.config.elsewhere import PLACES
from sepal.data.locations import data_directory
from sepal.data.sources import FILES
from sepal.errors import ConfigError, DataError, StateError, printable
from sepal.protocol.views import CLOSING_VIEWS
from sepal.runs.stored_run import NOTHING, Allowed, stored_config
from sepal.simulated_time import DeviceProfile, read_profile
from sepal.storage.files import write_atomically
from sepal.storage.regular import is_inside, is_regular
from sepal.strategies.registry import as_begun
from sepal.study.plans.model import PlanFile, PlannedRun
from sepal.study.results import RunResult, Variant, read_result
from sepal.study.runs import INDEX, find_place, is_run, read_index, runs_of
from sepal.study.simulated_time import DRAWS, ONE_DRAW
from sepal.study.statistics import Difference
from sepal.tasks.scoring import ACCURACY, Measure

SEEDS = 3  # below these there is no interval over seeds
NEAR = 0.95  # the default target: this share of the best accuracy at the end
MOST_TITLES = 4  # a report of this many runs gives their number instead of their names
PLAIN = re.compile(r"[A-Za-z0-9_.+-]{1,255}")  # a run's name in a comparison, as a plan makes it
Row: TypeAlias = tuple[Path, str, str]  # run directory, label, cell
# The clients and their data, which must be the same in all compared runs. The seed may differ.
DATA = marked(RunConfig, Mark.DATA)
FILES_READ = marked(RunConfig, Mark.FILES)
SEEDS_OF_ONE = marked(RunConfig, Mark.FREE, Mark.REPEAT)  # runs that differ in these alone are seeds of one method


@dataclass(frozen=True)
class TuningResult:
    """The values that trials tried for one variant in one cell, and the values that they chose.

    Attributes:
        cell: The reported runs' swept settings, as text.
        label: The variant.
        view: View of the validation accuracy by which it was judged.
        seeds: The trials' seeds.
        values: A trial's values as text, and their mean validation accuracy over seeds; None if it failed.
        chosen: The chosen values as text; empty while trials are missing.
        edge: Whether a chosen number is the least or the largest that was tried.
    """

    cell: str
    label: str
    view: str
    seeds: tuple[int, ...]
    values: tuple[tuple[str, float | None], ...]
    chosen: str
    edge: bool


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        results: The runs, in the order shown; differences are the first label's accuracy minus each other's.
        view: View of the target and the differences.
        target: Accuracy to be reached; None for :data:`NEAR` of the best in the cell.
        notes: Lines about the runs' rates.
        tuning: What trials tried and chose before the runs.
        devices: The profile of devices by which hours are simulated, in place of those of the runs.
    """

    title: str
    results: tuple[RunResult, ...]
    view: str = "trained"
    target: float | None = None
    notes: tuple[str, ...] = ()
    tuning: tuple[TuningResult, ...] = ()
    devices: DeviceProfile | None = None

    @cached_property
    def measure(self) -> Measure:
        """The metric that the runs are compared by."""
        return next((result.measure for result in self.results if result.stored.lines), ACCURACY)

    @cached_property
    def draws(self) -> int:
        """By how many draws of the devices hours are simulated: one if it has decided which uploads of a run count."""
        judged = (r for r in self.results if r.devices is not None and self.devices in (None, r.devices))
        return ONE_DRAW if any(result.times.acted for result in judged) else DRAWS

    @cached_property
    def cells(self) -> list[str]:
        """The swept settings, in order."""
        return list(dict.fromkeys(result.cell for result in self.results))

    @cached_property
    def labels(self) -> list[str]:
        """The variants' labels, in order."""
        return list(dict.fromkeys(result.label for result in self.results))

    def variants(self, cell: str) -> list[Variant]:
        """Return the variants of a cell, in the order of labels."""
        by_label: dict[str, list[RunResult]] = {}
        for result in self.results:
            if result.cell == cell and result.stored.lines:
                by_label.setdefault(result.label, []).append(result)
        target = self.aim(cell)
        return [
            Variant(label, cell, tuple(by_label[label]), target, self.view, self.devices, self.draws)
            for label in self.labels
            if label in by_label
        ]

    def all_variants(self) -> Iterator[Variant]:
        """Yield the variants of all cells."""
        for cell in self.cells:
            yield from self.variants(cell)

    def aim(self, cell: str) -> float:
        """Return the accuracy to be reached in a cell, as a fraction; of another metric, its value."""
        if self.target is not None:
            return self.target
        accuracies = [r.accuracy(self.view) for r in self.results if r.cell == cell]
        measure = self.measure
        best = max(
            (accuracy["mean"] for accuracy in accuracies if accuracy), key=lambda mean: measure.sign * mean, default=0.0
        )
        if not measure.percent:
            return float(f"{best - measure.sign * (1 - NEAR) * abs(best):.4g}")
        return math.floor(100 * NEAR * best) / 100

    def differences(self, cell: str, view: str) -> list[tuple[str, Difference]]:
        """Return the first variant's accuracy minus each other's, paired, with a label.

        With ``deployed``, each variant's is that of its own deployed view. The intervals are over what
        :meth:`paired_over` says: of one difference, only one interval is shown.
        """
        variants = self.variants(cell)
        kind = Variant.difference_by_seed if self.paired_over(cell) == "seeds" else Variant.difference
        pairs = [(f"{variants[0].label} − {rival.label}", kind(variants[0], rival, view)) for rival in variants[1:]]
        return [(label, difference) for label, difference in pairs if difference]

    def paired_over(self, cell: str) -> str:
        """Return ``seeds`` where there are enough of them for the interval of the conclusions; else ``clients``."""
        seeds = [{result.seed for result in variant.results} for variant in self.variants(cell)]
        return "seeds" if any(len(seeds[0] & others) >= SEEDS for others in seeds[1:]) else "clients"


def write_index(
    plan: PlanFile,
    runs: Sequence[PlannedRun],
    out: Path,
    notes: Sequence[str] = (),
    tuning: Sequence[TuningResult] = (),
) -> None:
    """Write the list of runs that the directory ``out`` compares, all but trials, with the notes about them."""
    rows = [{"name": r.name, "label": r.variant, "cell": _cell(r)} for r in runs if r.block not in plan.trial_blocks]
    index: dict[str, Any] = {"title": plan.title, "view": plan.view, "target": plan.target, "runs": rows}
    index |= {"notes": list(notes), "tuning": [asdict(entry) for entry in tuning]}
    index |= {"one-processor": True} if plan.one_processor else {}
    write_atomically(out / INDEX, f"{json.dumps(index, indent=1)}\n".encode())


def _cell(run: PlannedRun) -> str:
    return ", ".join(filter(None, (run.block, run.cell)))


def read_comparison(places: Sequence[str], allowed: Allowed = NOTHING, devices: str = "") -> Comparison:
    """Return the comparison of runs, of directories of `sepal compare`, or of both.

    Args:
        places: Run directories, runs' names, or directories with runs in them.
        allowed: What may be done beyond reading the runs' files.
        devices: A profile of devices by which hours are simulated: a built-in one, or a file. Empty: the runs' own.

    Raises:
        ConfigError: There is no such run or profile, or two runs have different data; or the plan demands one kind of
            processor, and there are several.
        StateError: A run's files are damaged.
    """
    profile = read_profile(devices) if devices else None
    comparisons: list[Comparison] = [_of_place(text, allowed) for text in places]
    by_path = {  # each run once
        result.stored.path.resolve(): result for comparison in comparisons for result in comparison.results
    }
    results = _labelled(list(by_path.values()))
    check_comparable(results)
    head = comparisons[0]
    titles = [comparison.title for comparison in comparisons]
    title = ", ".join(titles) if len(titles) < MOST_TITLES else f"{len(titles)} runs"
    lines = [line for comparison in comparisons for line in comparison.notes]
    notes = tuple(dict.fromkeys((*lines, *mixed_processors(results))))
    tuning = tuple(dict.fromkeys(entry for comparison in comparisons for entry in comparison.tuning))
    return replace(head, title=title, results=tuple(results), notes=notes, tuning=tuning, devices=profile)


def _of_place(text: str, allowed: Allowed) -> Comparison:
    path = find_place(text)
    if is_run(path):
        return Comparison(printable(path.name), (read_result(path, allowed=allowed),))
    if is_regular(path / INDEX):
        return _indexed(path, allowed)
    rows = _once((_inside(path, run), "", "") for run in sorted(runs_of(path)))
    results = tuple(read_result(*row, allowed) for row in rows)
    return Comparison(printable(path.resolve().name), results)


def _once(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without repeats of a run, also through a link: each run that is read takes memory."""
    first: dict[Path, Row] = {}
    for row in rows:
        first.setdefault(row[0].resolve(), row)
    return list(first.values())


def _inside(folder: Path, run: Path) -> Path:
    """Return ``run``, whose directory is in ``folder``.

    Raises:
        StateError: It is a link that leads out of the folder.
    """
    if run.is_symlink() and not is_inside(run, folder):
        raise StateError(str(run), f"a run in {folder}", "a link that leads out of it")
    return run


def _indexed(directory: Path, allowed: Allowed) -> Comparison:
    file = directory / INDEX
    try:
        index = read_index(directory)
        rows = [(directory / _plain(row["name"]), str(row["label"]), str(row["cell"])) for row in index["runs"]]
        title, view, target = str(index["title"]), index["view"], index["target"]
        notes, tuning = tuple(map(str, index.get("notes", ()))), tuple(map(_tuning_result, index.get("tuning", ())))
        if view not in CLOSING_VIEWS or not (target is None or isinstance(target, int | float)):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise StateError(str(file), "the list of a comparison's runs", "a damaged file") from None
    begun = [row for row in _once(rows) if stored_config(_inside(directory, row[0]))]
    if not begun:
        raise ConfigError("run", "a comparison with runs", f"{directory}, none of whose {len(rows)} runs has begun")
    results = tuple(read_result(*row, allowed) for row in begun)
    if index.get("one-processor") is True:
        _check_one_processor(directory, results)
    return Comparison(title, results, view, target, notes, tuning)


def mixed_processors(results: Sequence[RunResult]) -> list[str]:
    """Return a line about the kinds of processor on which runs were made, if there are several; else nothing."""
    counts: dict[str, int] = {}
    for result in results:
        for kind in result.processors:
            counts[kind] = counts.get(kind, 0) + 1
    if len(counts) < 2:
        return []
    kinds = ", ".join(f"{kind} ({count} run{'s' * (count > 1)})" for kind, count in sorted(counts.items()))
    return [f"Several kinds of processor, so figures of equal runs may differ by rounding: {kinds}."]


def _check_one_processor(directory: Path, results: Sequence[RunResult]) -> None:
    if kinds := mixed_processors(results):
        way = f"delete those of another kind under {directory} and run them again"
        raise ConfigError("one-processor", f"runs on one kind of processor; {way}", kinds[0])


def _plain(name: Any) -> str:
    """Return a run's name if it is one, and no path.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(name, str) or not PLAIN.fullmatch(name) or not name.strip("."):
        raise ValueError(name)
    return name


def _tuning_result(row: Mapping[str, Any]) -> TuningResult:
    values = tuple((str(name), value if value is None else float(value)) for name, value in row["values"])
    words = {key: str(row[key]) for key in ("cell", "label", "view", "chosen")}
    return TuningResult(**words, seeds=tuple(map(int, row["seeds"])), values=values, edge=row["edge"] is True)


def _labelled(results: Sequence[RunResult]) -> list[RunResult]:
    """Return ``results`` with labels that tell runs of one method apart by the keys in which they differ."""
    labelled = []
    for result in results:
        twins = [r for r in results if (r.label, r.cell) == (result.label, result.cell)]
        keys = sorted({key for r in twins for key in _differing(result.stored.config, r.stored.config)})
        configs = [as_begun(r.stored.config, load=False) for r in (result, *twins)] if keys else []
        extra = " ".join(f"{key.rpartition('.')[2]}={_in_label(key, configs)}" for key in keys)
        if sum(r.seed == result.seed and not any(_differing(r.stored.config, result.stored.config)) for r in twins) > 1:
            extra = f"{extra} ({printable(result.stored.path.name)})".strip()  # equal settings are not two seeds
        labelled.append(replace(result, label=" ".join(filter(None, (result.label, extra)))))
    return labelled


def _in_label(key: str, configs: Sequence[Flat]) -> str:
    """Return the value of ``key`` in the first of ``configs`` as a label shows it: so that it differs from the others'.

    Reports are passed on, so a label shows only the last part of a path outside the run.
    """
    value = str(configs[0].get(key))
    if key not in PLACES:
        return value
    places = sorted({str(config.get(key)) for config in configs})
    names = [Path(location).name for location in places]
    name = Path(value).name
    return name if names.count(name) == 1 else f"{name} ({places.index(value) + 1})"


def _differing(a: Flat, b: Flat) -> Iterator[str]:
    if a.keys() != b.keys():  # one of an earlier version lacks keys that are newer
        a, b = as_begun(a, load=False), as_begun(b, load=False)
    yield from (key for key in {**a, **b} if key not in SEEDS_OF_ONE and a.get(key) != b.get(key))


def check_comparable(results: Iterable[RunResult]) -> None:
    """Refuse runs of one cell whose clients do not hold the same data, and runs of different headline metrics.

    Raises:
        ConfigError: They differ; the error names the first key that differs, and both runs.
    """
    results, first = list(results), dict[str, RunResult]()
    begun = [result for result in results if result.stored.lines]
    for result in begun:
        if result.measure != begun[0].measure:
            expected = f"{begun[0].measure.axis}, as in {begun[0].stored.path}"
            raise ConfigError("metric", expected, f"{result.measure.axis} in {result.stored.path}")
    for result in results:
        reference = first.setdefault(result.cell, result)
        data, reference_data = _data(result.stored.config), _data(reference.stored.config)
        for key in {**reference_data, **data}:
            if data.get(key) != reference_data.get(key):
                expected = f"{reference_data.get(key)!r}, as in {reference.stored.path}"
                raise ConfigError(key, expected, f"{data.get(key)!r} in {result.stored.path}")


def _data(config: Mapping[str, Any]) -> dict[str, Any]:
    config = {**RunConfig().flat(), **as_begun(config, load=False)}  # one of an earlier version lacks newer keys
    keys = {key: config[key] for key in DATA}
    if config["dataset"] in FILES:  # a public data set is the same wherever it is stored
        keys |= {key: config[key] for key in FILES_READ}
        with suppress(DataError):  # a run from elsewhere may name the home of a user whom this machine does not know
            keys["data-dir"] = str(data_directory(str(config["data-dir"])))
    return keys
