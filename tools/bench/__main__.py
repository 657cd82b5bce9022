"""``python -m tools.bench [part …]``: measure and print a table; for all parts, write tools/results/bench.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sepal.runs.processors import processor
from tools.bench import (
    aggregation,
    batch,
    clients,
    codec,
    cuts,
    deployed,
    engine,
    gate,
    hypernetwork,
    peers,
    secure_sums,
    server_memory,
    size,
    small,
    table,
    widths,
)

PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "codec": codec.measure,
    "aggregation": aggregation.measure,
    "engine": engine.measure,
    "batch": batch.measure,
    "clients": clients.measure,
    "small": small.measure,
    "peers": peers.measure,
    "cuts": cuts.measure,
    "widths": widths.measure,
    "hypernetwork": hypernetwork.measure,
    "server-memory": server_memory.measure,
    "deployed": deployed.measure,
    "gate": gate.measure,
    "size": size.measure,
    "table": table.measure,
    "secure-sums": secure_sums.measure,
}


def machine() -> dict[str, Any]:
    """Return what a reader needs to know of the machine to interpret the figures."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    load = os.getloadavg()[0]
    return {
        "commit": commit.stdout.strip(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": load,
        "date": time.strftime("%Y-%m-%d"),
    }


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure the parts named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Ratios measured in one run; see tools/results/bench.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; none: all")
    parser.add_argument("--out", type=Path, help="JSON file; of all parts tools/results/bench.json")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(PARTS)}")
    begun = time.monotonic()
    results: dict[str, Any] = {"machine": machine(), "rows": []}
    table = Table("what", "ratio", "goal", "met", "figures")
    for name in arguments.parts or PARTS:
        for row in PARTS[name]():
            results["rows"].append({"part": name, **row})
            rest = {k: v for k, v in row.items() if k not in ("what", "ratio", "goal", "met")}
            figures = " ".join(f"{key}={_short(value)}" for key, value in rest.items())
            verdict = {True: "yes", False: "NO", None: ""}[row["met"]]
            table.add_row(row["what"], f"{row['ratio']:.3f}", row["goal"], verdict, figures)
    results["seconds"] = time.monotonic() - begun
    Console(width=180).print(table)
    out = arguments.out or (None if arguments.parts else Path("tools/results/bench.json"))
    if out:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        Console().print(f"written to {out}", highlight=False)


if __name__ == "__main__":
    main()
