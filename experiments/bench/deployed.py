"""A deployed round in which clients have almost nothing to do: what processes and polls cost, warm and cold.

Warm is the resident client process of ``sepal join``; cold is Flower's own, a new Python process per message. The two
run one after the other, each with its own SuperLink and the same executor poll. A round is broken down into the slowest
client's training, the imports of a message's process (cold only), and the rest: Flower's polls, reading state and
data, transport. The server's own work between rounds is listed separately.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sepal_engines.flower.bundle import write_app
from sepal_engines.flower.engine import Flower

CLIENTS, ROUNDS = 2, 10


def _import_seconds() -> float:
    """Return the time of a process that imports what each message's process imports, on an idle machine."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import client_app.app, strategies.assembly, models.cnn"], check=True)
    return time.monotonic() - begun


def rounds_of(cold: bool) -> tuple[list[dict[str, float]], str]:
    """Return the seconds of each round but the first (which starts processes and installs the app), and the status."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        environment = {"SEPAL_HOME": str(directory / "home"), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}
        with Flower(environment=environment) as deployment:
            deployment.start_superlink()
            for number in range(CLIENTS):
                keys: dict[str, Any] = {"partition-id": number, "num-partitions": CLIENTS, "device": "cpu"}
                deployment.start_node(f"node{number}", keys, cold=cold)
            config: dict[str, Any] = {
                "name": "idle",
                "out": text,
                "method": "local",
                "dataset": "digits",
                "clients": CLIENTS,
                "rounds": ROUNDS + 1,
                "evaluate-every": 0,
                "partition.subsample": 40,
            }
            write_app(directory / "app")  # what sepal serve submits
            run = deployment.run_app(directory / "app", config)
        lines = [json.loads(line) for line in (directory / "idle" / "metrics.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines[1:-1]], run.status


def measure() -> list[dict[str, Any]]:
    """Return one row: the warm round's seconds over the cold one's, and their parts."""
    load = os.getloadavg()[0]
    (cold, cold_status), (warm, warm_status) = rounds_of(cold=True), rounds_of(cold=False)
    imports = statistics.median(_import_seconds() for _ in range(3))
    row: dict[str, Any] = {}
    for name, rounds in (("cold", cold), ("warm", warm)):
        total, train, server = (statistics.median(row[key] for row in rounds) for key in ("total", "train", "server"))
        parts = {
            "round_seconds": total,
            "fastest_round_seconds": min(row["total"] for row in rounds),
            "slowest_round_seconds": max(row["total"] for row in rounds),
            "training_seconds": train,
            "server_seconds_between_rounds": server,
            "imports_seconds": imports if name == "cold" else 0.0,
            "rest_seconds": total - train - (imports if name == "cold" else 0.0),
        }
        row |= {f"{name}_{key}": value for key, value in parts.items()}
    ratio = row["warm_round_seconds"] / row["cold_round_seconds"]
    return [
        {
            "what": f"deployed round with almost no training, {CLIENTS} nodes, warm over cold",
            "ratio": ratio,
            "goal": "at most .45, and at most 3.5 s warm",
            "met": ratio <= 0.45 and row["warm_round_seconds"] <= 3.5,
            **row,
            "rounds": len(warm),
            "load_average_before": load,
            "status": f"{cold_status}, {warm_status}",
        }
    ]
