"""``make -C tools side-by-side``: run the federation in each framework, twice, killed, and on two workers.

``PEERS=/path/to/python`` names an interpreter whose environment has ``pfl==0.6.0`` and ``fluke-fl==0.8.1``; without it
they are skipped by name. ``PFLLIB`` is the path of a checkout of PFLlib, which has no package; without it, it is
skipped. PEERS must then also have ``h5py``. Rows are written to tools/results/side-by-side.ndjson.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sepal.storage.files import write_atomically
from tools.bench.__main__ import machine

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tools" / "results" / "side-by-side.ndjson"
ROUNDS, CUT = 4, 2
OTHERS = ("fluke", "pfl", "pfllib")  # in an environment of their own
PACKAGES = {
    "flower": "flwr",
    "flower-seeded": "flwr",
    "fluke": "fluke-fl",
    "pfl": "pfl",
    "pfllib": "",
    "sepal": "sepal-fl",
}
RESUMES = ("fluke", "pfl", "sepal")  # which have a file to go on from after a kill
SEVERAL = ("flower", "flower-seeded", "sepal")  # clients in two processes on one machine without another launcher
DEPLOYED = ("flower-seeded", "sepal")  # in which an app of the simulation is also one of a deployment
WAITS = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


def main() -> None:
    """Measure what is here and write the rows; what is not here is named."""
    parser = argparse.ArgumentParser(prog="make -C tools side-by-side", description="same federation, five frameworks")
    parser.add_argument("ways", nargs="*", default=list(PACKAGES), help=f"of {', '.join(PACKAGES)}; none: all")
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    rows = {row["framework"]: row for row in map(json.loads, lines)}
    peers, pfllib = os.environ.get("PEERS", ""), os.environ.get("PFLLIB", "")
    for way in parser.parse_args().ways:
        if way in OTHERS and not peers:
            print(f"{way} is skipped: PEERS names no interpreter that has it", file=sys.stderr)
            continue
        if way == "pfllib" and not pfllib:
            print("pfllib is skipped: PFLLIB names no checkout; it has no package", file=sys.stderr)
            continue
        row = measured(way, peers if way in OTHERS else sys.executable)
        rows[way] = {**row, "rounds": ROUNDS, "killed_after": CUT, "machine": machine()}
        print(json.dumps(rows[way]), flush=True)
        write_atomically(STORED, "".join(f"{json.dumps(rows[name])}\n" for name in PACKAGES if name in rows).encode())


def measured(way: str, python: str) -> dict[str, Any]:
    """Return a framework's row: whether weights are equal, their largest difference, and the bytes that it reports."""
    with tempfile.TemporaryDirectory() as scratch:
        places = {name: Path(scratch) / name for name in ("first", "again", "killed", "two")}
        first = run(way, python, places["first"])
        row = {"framework": way, "version": version(way, python), **{k: v for k, v in first.items() if k != "weights"}}
        run(way, python, places["again"])
        row["again"] = difference(places["first"], places["again"])
        if way in RESUMES:
            run(way, python, places["killed"], stop=CUT)
            run(way, python, places["killed"])
            row["killed"] = difference(places["first"], places["killed"])
        if way in SEVERAL:
            run(way, python, places["two"], workers=2)
            row["two workers"] = difference(places["first"], places["two"])
        if way in DEPLOYED:
            from tools.side_by_side.deployed import deployed

            place = Path(scratch) / "deployed"
            row |= deployed(way, ROUNDS, place, {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
            row["deployed"] = difference(places["first"], place)
        return row


def run(way: str, python: str, place: Path, workers: int = 1, stop: int = 0) -> dict[str, Any]:
    """Run a framework in a process of its own; with ``stop``, it kills itself, and nothing is returned."""
    command = [python, "-m", "tools.side_by_side.ways", way, *map(str, (ROUNDS, workers, place, stop))]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **WAITS}, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if stop and done.returncode == -signal.SIGKILL:
        return {}
    if stop or done.returncode:
        sys.exit(f"side-by-side: {way}: expected it to {'kill itself' if stop else 'end'}, got {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith("{")))
    return answer


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of any weight; 0 only if all bits are equal."""
    first, second = (np.load(place / "weights.npy") for place in (one, other))
    return 0.0 if first.tobytes() == second.tobytes() else float(np.abs(first - second).max()) or float("nan")


def version(way: str, python: str) -> str:
    """Return the version of a framework's package; of PFLlib the commit of its checkout."""
    if way == "pfllib":
        command = ["git", "-C", os.environ["PFLLIB"], "log", "-1", "--format=%h of %cs"]
        return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout.strip()
    words = f"from importlib.metadata import version; print(version('{PACKAGES[way]}'))"
    return subprocess.run(
        [python, "-c", words], capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
