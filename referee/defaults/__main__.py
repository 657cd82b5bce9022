"""``make -C referee defaults``: run every method with all its defaults, and compare each with FedAvg + fine-tuning.

With no seed may a method be more than ``MOST_BEHIND`` behind, in the view that it deploys, or more than ``BEHIND`` says
if ``NOTES`` explains why the method itself is behind, and not a default: a mean would hide a seed that failed. The exit
status is 1 if one is. A run that is killed is continued by the same command.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from referee.calibrate.rows import commit_now
from referee.defaults.rows import YARDSTICK, by_seed, lowest_words, rows_of, store, worst
from sepal.report.progress import PlanDisplay
from sepal.strategies import registry
from sepal.study.comparison import read_comparison, write_index
from sepal.study.plans.execute import execute
from sepal.study.plans.model import PlanFile
from sepal.study.plans.plan import make_plan, read_table
from sepal.study.results import Variant
from sepal.study.statistics import Estimate

HERE = Path(__file__).parent
MOST_BEHIND, NOISE = 0.05, 0.03
NOTES = HERE.parents[1] / "strategies" / "baselines" / "NOTES.md"
# Data set → method → by how many points the worst stored seed is behind, which NOTES explains with measurements. NOISE
# is what other seeds and another processor may add.
BEHIND: Mapping[str, Mapping[str, float]] = {
    "digits": {"fedmask": 16.4, "fedsa-lora": 26.6, "flasc": 24.1},
    "har": {
        **{"fedavg": 5.7, "fedstc": 5.7, "fedscr": 6.0, "fedprox": 5.7, "flasc": 17.2, "feddst": 6.2},
        **{"heterofl": 6.0, "fjord": 5.8, "fedrolex": 6.0, "flanc": 5.8, "tailorfl": 5.8},
        **{"fedadam": 5.3, "fedyogi": 5.0, "fedadagrad": 5.2},
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print a table for each data set."""
    parser = argparse.ArgumentParser(prog="make -C referee defaults", description="every method with its default keys")
    parser.add_argument("--datasets", nargs="*", default=["digits", "har"], choices=["digits", "har"])
    parser.add_argument("--methods", nargs="*", default=list(registry.METHODS), choices=registry.METHODS)
    parser.add_argument("--seeds", nargs="*", type=int, help="by default 0, 1 and 2")
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one a core")
    parser.add_argument("--hours", type=float, default=12.0, help="start no run after so many hours")
    parser.add_argument("--store", action="store_true", help="put rows and tables into referee/results/defaults.*")
    given = parser.parse_args(arguments)
    bad = []
    for dataset in given.datasets:
        groups = run(dataset, given.methods, given.seeds, given.out.absolute(), given.jobs, given.hours)
        verdicts = {label: verdict(dataset, group, groups.get(YARDSTICK)) for label, group in groups.items()}
        Console().print(shown(dataset, groups, verdicts))
        if given.store:
            store(rows_of(dataset, groups, given.seeds or seeds_of(dataset), commit_now()))
        missing = [method for method in given.methods if method not in groups]
        bad += [f"{name} on {dataset}" for name, words in verdicts.items() if words == "behind"]
        bad += [f"{name} on {dataset} (no result)" for name in missing]
    if bad:
        bar = f"expected each seed at most {100 * MOST_BEHIND:g} points behind {YARDSTICK}"
        sys.exit(f"defaults: {bar}, got {', '.join(bad)}")


def run(
    dataset: str, methods: Sequence[str], seeds: Sequence[int] | None, out: Path, jobs: int, hours: float
) -> Mapping[str, Variant]:
    """Run what is missing on a data set; return the runs of each method, over seeds."""
    file = HERE / f"{dataset}.toml"
    table = read_table(file)
    plan: PlanFile = make_plan(file, {**table, "methods": list(methods), "seeds": list(seeds or table["seeds"])})
    runs, place = list(plan.runs()), out / dataset
    execute(runs, place, PlanDisplay(Console(stderr=True)), jobs=jobs, hours=hours)
    write_index(plan, runs, place)
    comparison = read_comparison([str(place)])
    return {group.label: group for cell in comparison.cells for group in comparison.variants(cell)}


def seeds_of(dataset: str) -> list[int]:
    """Return the seeds of a data set's plan."""
    return list(read_table(HERE / f"{dataset}.toml")["seeds"])


def verdict(dataset: str, group: Variant, yardstick: Variant | None) -> str:
    """Return "" for a method that is behind with no seed, "explained" or "behind"."""
    lowest = worst(by_seed(group), by_seed(yardstick)) if yardstick else None
    if lowest is None or lowest[0] >= -100 * MOST_BEHIND:
        return ""
    explained = -lowest[0] <= BEHIND[dataset].get(group.method, -math.inf) + 100 * NOISE
    return "explained" if explained else "behind"


def deployed(group: Variant) -> Estimate | None:
    """Return the accuracy of the model that the method deploys."""
    return group.accuracy(group.deployed)


def shown(dataset: str, groups: Mapping[str, Variant], verdicts: Mapping[str, str]) -> Table:
    """Return the table of a data set."""
    table = Table(title=f"{dataset}: all defaults, accuracy of the deployed model in %, mean ± SD over seeds")
    for name in ("method", "lr", "deployed", "accuracy", f"minus {YARDSTICK}", "worst seed", ""):
        table.add_column(name, justify="right" if name not in ("method", "deployed", "") else "left")
    yardstick = deployed(groups[YARDSTICK]) if YARDSTICK in groups else None
    for label, group in groups.items():
        found = deployed(group)
        gap = f"{100 * (found.mean - yardstick.mean):+.1f}" if found and yardstick else "-"
        lowest = worst(by_seed(group), by_seed(groups[YARDSTICK])) if YARDSTICK in groups else None
        rate = f"{group.results[0].stored.config['lr']:g}"
        table.add_row(
            label, rate, group.deployed, found.text() if found else "-", gap, lowest_words(lowest), verdicts[label]
        )
    return table


if __name__ == "__main__":
    main()
