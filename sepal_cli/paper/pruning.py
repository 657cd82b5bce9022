"""Accuracy by what a client has pruned, as data for plots: Vahidian et al., ICDCS Workshops 2021, Figure 1.

``python -m sepal_cli.paper.pruning RUN`` prints JSON: the run's name, and for each client of Sub-FedAvg the rounds in
which it pruned and was evaluated, the share of all parameters that was pruned, and its accuracy after training.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sepal_cli.runs import read_run

Course = dict[str, list[Any]]  # "round", "pruned", "accuracy": lists of equal length


def courses(lines: Iterable[Mapping[str, Any]]) -> dict[str, Course]:
    """Return the course of each client in a run's metrics; no client where the method prunes nothing.

    Args:
        lines: Of metrics.jsonl, in order.
    """
    found: dict[str, Course] = defaultdict(lambda: {"round": [], "pruned": [], "accuracy": []})
    for line in lines:
        for client in line["clients"]:
            pruned, accuracy = client["metrics"].get("pruned"), client["trained"]
            if pruned is not None and accuracy is not None:
                for key, value in (("round", line["round"]), ("pruned", pruned), ("accuracy", accuracy)):
                    found[client["name"]][key].append(round(value, 4))
    return dict(sorted(found.items()))


def main() -> None:
    """Print the courses of a run's clients."""
    parser = argparse.ArgumentParser(description="Accuracy by what a client has pruned, as JSON.")
    parser.add_argument("run", type=Path, help="run directory")
    path = parser.parse_args().run
    print(json.dumps({"run": path.name, "clients": courses(read_run(path).lines)}))


if __name__ == "__main__":
    main()
