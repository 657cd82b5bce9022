"""Find out whether a SuperLink's memory grows: ``python -m tools.growth.superlink [--rounds 650]``.

Two light clients (:mod:`tools.load.light`) answer at once, so rounds are short. A probe in the SuperLink's process
reads how much memory is resident, how much the C library's allocator has given out, and how much it holds free. What
leaks is given out.

With ``--store`` the figures are written to tools/results/superlink-memory.json, from which docs/sizing.md has a
table (``tests/tools/test_growth.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import COMPLETED, Flower
from sepal.report.printing import say
from tools.growth.__main__ import KEYS, RESULTS

PROBE = Path(__file__).with_name("probe")
FILE = RESULTS / "superlink-memory.json"
CLIENTS = 2
LOOK = "0.2"  # seconds between a light client's looks for a message
SHOWN = 100  # rounds between two rows of the table


def measured(rounds: int, directory: Path) -> list[dict[str, int]]:
    """Return the probe's rows of a run: ``round``, and bytes ``resident``, ``allocated`` and ``free``."""
    config = {**KEYS, "out": str(directory), "clients": CLIENTS, "rounds": rounds, "evaluate-every": 0}
    config["evaluate-sampled"] = False  # light clients evaluate nothing
    rows = directory / "rows.ndjson"
    environment = {
        "SEPAL_HOME": str(directory / "home"),
        "OMP_NUM_THREADS": "1",
        "SEPAL_PROBE_OUT": str(rows),
        "SEPAL_PROBE_METRICS": str(directory / KEYS["name"] / "metrics.jsonl"),
    }
    with Flower(environment=environment) as flower:
        flower.environment["PYTHONPATH"] = os.pathsep.join([str(PROBE), flower.environment["PYTHONPATH"]])
        flower.start_superlink(timeout=300)
        command = [sys.executable, "-m", "tools.load.worker", f"127.0.0.1:{flower.ports.fleet}", "0", str(CLIENTS)]
        command += [json.dumps(config), str(directory / "worker.json"), LOOK]
        clients = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=RESULTS.parents[1])
        try:
            write_app(directory / "app")
            ended = flower.run_app(directory / "app", config, timeout=7200)
        finally:
            clients.kill()
            clients.wait()
    if ended.status != COMPLETED:
        sys.exit(f"growth: expected a complete run, got {ended.status}: {ended.reason}")
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]


def table(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of docs/sizing.md: the first row of each hundred rounds, and the last one, in MB."""
    rows, shown, following = result["rows"], [], SHOWN // 2
    for row in rows:
        if row["round"] >= following:
            shown.append(row)
            following = row["round"] - row["round"] % SHOWN + SHOWN
    lines = ["| after round | resident | given out by the allocator | held free |", "|---|---|---|---|"]
    for row in [*shown, *rows[-1:]]:
        sizes = (f"{row[part] / 1e6:.1f} MB" for part in ("resident", "allocated", "free"))
        lines.append(f"| {row['round']} | {' | '.join(sizes)} |")
    return lines


def main() -> None:
    """Run, and print or store the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=650)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = measured(options.rounds, Path(scratch))
    result = {"clients": CLIENTS, "rows": rows}
    if options.store:
        FILE.write_text(f"{json.dumps(result)}\n", encoding="utf-8")
    say("\n".join(table(result)))


if __name__ == "__main__":
    main()
