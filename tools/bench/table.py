"""Reading a table of 10⁶ rows and 50 columns of numbers, as a run does: read, cached, dealt and standardised.

``BEFORE=/path/to/checkout`` names another checkout, such as one of an earlier commit: both read the same file in turn,
each in a process of its own, and a row is the ratio of the medians. Without it, a row is the ratio to pyarrow, which
only parses the cells.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS, TURNS = 10**6, 50, 3
HERE = Path(__file__).resolve().parents[2]
PARSE = """
import json, resource, sys, time
from pyarrow import csv
cpu, begun = time.process_time(), time.monotonic()
table = csv.read_csv(sys.argv[1] + "/table.csv")
found = {"cpu_s": time.process_time() - cpu, "s": time.monotonic() - begun}
print(json.dumps({**found, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def write_table(path: Path, rows: int = ROWS, columns: int = COLUMNS) -> None:
    """Write a table: ``columns`` columns, the first of labels of two classes, the others numbers of six digits."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import csv

    rng = np.random.default_rng(0)
    names = ["label", *(f"x{number}" for number in range(1, columns))]
    kinds = [pa.int64(), *(pa.float64() for _ in names[1:])]
    with csv.CSVWriter(path, pa.schema(list(zip(names, kinds, strict=True)))) as to:
        for begin in range(0, rows, 50_000):
            count = min(50_000, rows - begin)
            numbers = [np.round(rng.normal(size=count), 5) for _ in names[1:]]
            label = (numbers[0] > 0).astype(np.int64)
            to.write_table(pa.table(dict(zip(names, [label, *numbers], strict=True))))


def measure(rows: int = ROWS) -> list[dict[str, Any]]:
    """Return two rows: CPU seconds and peak memory of this checkout over those of the other, or of pyarrow."""
    before = os.environ.get("BEFORE", "")
    with tempfile.TemporaryDirectory(prefix="sepal-bench-") as scratch:
        place = Path(scratch) / "data"
        place.mkdir()
        write_table(place / "table.csv", rows)
        ways = ["this", "before" if before else "pyarrow"]
        turns = [{way: _read(way, place, before) for way in ways} for _ in range(TURNS)]
    middle = {way: {key: statistics.median(turn[way][key] for turn in turns) for key in turns[0][way]} for way in ways}
    this, other = (middle[way] for way in ways)
    against = f"the checkout {_commit(before)}" if before else "pyarrow's parsing alone"
    return [
        {
            "what": f"a table of {rows:,} rows, {COLUMNS} columns: {what}, over {against}",
            "ratio": this[key] / other[key],
            "goal": "no worse: at most 1" if before else "",
            "met": this[key] <= other[key] if before else None,
            "this": this[key],
            "other": other[key],
        }
        for what, key in (("CPU seconds", "cpu_s"), ("peak memory, MiB", "mib"))
    ]


def _commit(checkout: str) -> str:
    command = ["git", "-C", checkout, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout.strip()


def _read(way: str, place: Path, before: str) -> dict[str, float]:
    """Read the table in a process of its own, with a cache of its own."""
    script = [sys.executable, "-P", str(HERE / "tools/bench/table_read.py"), str(place)]
    with tempfile.TemporaryDirectory(prefix="sepal-bench-") as cache:
        environment = {**os.environ, "PYTHONPATH": before if way == "before" else str(HERE), "SEPAL_CACHE": cache}
        command = [sys.executable, "-c", PARSE, str(place)] if way == "pyarrow" else script
        completed = subprocess.run(
            command, capture_output=True, check=True, text=True, encoding="utf-8", env=environment
        )
    found: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    print(f"{way}: {found}", file=sys.stderr)
    return found
