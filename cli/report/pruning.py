"""The course of pruning by client, as data for plots: Vahidian et al., ICDCS Workshops 2021, Figure 1.

``python -m sepal.cli.report.pruning RUN`` prints JSON: the run's name, and for each client of Sub-FedAvg

- ``clients``: the rounds in which it was evaluated, the share of all parameters that was pruned, and its accuracy
  after training;
- ``distances``: the rounds in which it took part, and the distance between its two candidate masks, which the gates
  compare with ε.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sepal.cli.report.printing import print_analysis
from sepal.cli.runs import read_run

DISTANCES = ("distance", "channel-distance")
Course = dict[str, list[Any]]  # figure → values, lists of equal length


def courses(lines: Iterable[Mapping[str, Any]]) -> dict[str, Course]:
    """Return the course of each client in a run's metrics; empty if the method prunes nothing.

    Args:
        lines: Lines of metrics.jsonl, in order.
    """
    found: dict[str, Course] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for client in line["clients"]:
            pruned, accuracy = client["metrics"].get("pruned"), client["trained"]
            if pruned is not None and accuracy is not None:
                _add(found[client["name"]], {"round": line["round"], "pruned": pruned, "accuracy": accuracy})
    return dict(sorted(found.items()))


def distances(lines: Iterable[Mapping[str, Any]]) -> dict[str, Course]:
    """Return the distances between each client's candidate masks; arguments as in :func:`courses`."""
    found: dict[str, Course] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for client in line["clients"]:
            figures = {key: client["metrics"][key] for key in DISTANCES if key in client["metrics"]}
            if figures:
                _add(found[client["name"]], {"round": line["round"], **figures})
    return dict(sorted(found.items()))


def _add(course: Course, figures: Mapping[str, float]) -> None:
    for key, value in figures.items():
        course[key].append(round(value, 6))


def analyse(path: Path) -> dict[str, Any]:
    """Return the courses and distances of the run in ``path``."""
    lines = list(read_run(path).lines)
    return {"run": path.name, "clients": courses(lines), "distances": distances(lines)}


if __name__ == "__main__":
    print_analysis(analyse, "The course of pruning by client, as JSON.")
