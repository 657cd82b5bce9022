"""Sepal beside other simulators on the same federation: CPU seconds of a round over those of its bare steps.

``PEERS=/path/to/python`` names an interpreter whose environment has ``pfl==0.6.0`` and ``fluke-fl==0.8.1`` beside the
same torch; without it they are skipped by name. PFLlib has no package: its loop is made again.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from tools.bench import peer_ways

TURNS = 3
OTHERS = ("pfl", "fluke")  # in their own environment


def measure() -> list[dict[str, Any]]:
    """Return a row for each federation and way: its round over the floor's, each the median of turns of medians."""
    python = os.environ.get("PEERS", "")
    ways = [way for way in peer_ways.WAYS if python or way not in OTHERS]
    if not python:
        print(f"{' and '.join(OTHERS)} are skipped: PEERS names no interpreter that has them", file=sys.stderr)
    rows = []
    for name, federation in peer_ways.ROWS.items():
        turns = [{way: _seconds(way, name, python) for way in ways} for _ in range(TURNS)]
        seconds = {way: statistics.median(turn[way] for turn in turns) for way in ways}
        for way in ways[1:]:
            rows.append(
                {
                    "what": f"{name}: {way}, a round over its bare steps",
                    "ratio": seconds[way] / seconds["bare"],
                    "goal": "",
                    "met": None,
                    "round_s": seconds[way],
                    "client_ms": 1000 * seconds[way] / federation.sampled,
                }
            )
    return rows


def _seconds(way: str, row: str, python: str) -> float:
    """Return the median CPU seconds of a round but the first, in a process of its own."""
    command = [python if way in OTHERS else sys.executable, "-m", "tools.bench.peer_ways", way, row]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, capture_output=True, check=True, text=True, encoding="utf-8", env=environment)
    seconds: list[float] = json.loads(completed.stdout.splitlines()[-1])[1:]
    return statistics.median(seconds)
