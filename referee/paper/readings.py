"""Prints as JSON what a method has learned of each client of a run: ``python -m referee.paper.readings KIND RUN``.

KIND is ``masks`` (:func:`sepal.report.learned_rows.masks`), ``clusters`` (:func:`sepal.report.learned_rows.clusters`)
or ``pruning``: for each client of Sub-FedAvg, ``clients``: its course, and ``distances``: those of its candidate masks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sepal.errors import SepalError, one_line
from sepal.report.learned_rows import clusters, masks
from sepal.runs.stored_run import Allowed, read_run
from sepal.strategies.subfedavg.pruning_reader import courses, distances

BAD_INPUT = 2  # exit code, as that of `sepal`


def pruning(path: Path) -> dict[str, Any]:
    """Return the courses and distances of the run in ``path``."""
    lines = read_run(path).lines
    return {"run": path.name, "clients": courses(lines), "distances": distances(lines)}


READ = Allowed(data=True)  # the data of the runs here, which are ours
KINDS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "masks": partial(masks, allowed=READ),
    "clusters": partial(clusters, allowed=READ),
    "pruning": pruning,
}


def main() -> None:
    """Print the analysis that the command line names; a problem is one line and exit code 2."""
    parser = argparse.ArgumentParser(description="What a method has learned of each client, as JSON.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("run", type=Path, help="run directory")
    args = parser.parse_args()
    try:
        analysis = KINDS[args.kind](args.run)
    except SepalError as problem:
        print(one_line(str(problem)), file=sys.stderr)
        sys.exit(BAD_INPUT)
    print(json.dumps(analysis))


if __name__ == "__main__":
    main()
