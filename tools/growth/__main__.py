"""Measure what a long run adds to disks and memories: ``python -m tools.growth [--rounds 800] [--in-process]``.

A server and clients, or one process with all of them, train a small model: what grows is then not the model. The sizes
of all files and the memory of all processes are read every 33 rounds.

With ``--store`` the figures are written to tools/results/growth-{in-process,deployed}-CLIENTS.json,
from which docs/sizing.md has its tables (``tests/tools/test_growth.py``).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from sepal.report.printing import say
from sepal.storage.files import everything_below

RESULTS = Path(__file__).parents[1] / "results"
EVERY = 33  # rounds between two samples; checkpoints, after which files are deleted, are every ten rounds
SETTLED = 100  # rounds after which memory is compared: until then libraries are imported and caches filled
KEYS: dict[str, Any] = {
    "name": "long",
    "dataset": "digits",
    "model": "digits-cnn",
    "method": "fedavg",
    "local-epochs": 1,
    "evaluate-every": 10,
}
# Part of a path → what the table calls it. The first that fits counts; other files are called by their name.
KINDS = {
    r"/node\d?\.log": "node.log of a client",
    r"/metrics\.jsonl$": "metrics.jsonl",
    r"/ledger\.jsonl$": "ledger.jsonl",
    r"/checkpoints/records/": "checkpoints/records/",
    r"/checkpoints/uploads/": "checkpoints/uploads/",
    r"/checkpoints/": "checkpoints/*.safetensors",
    r"/clients/|/state/": "states of a client",
    r"/superlink\.log": "superlink.log",
    r"/state\.db": "state.db",
}
BOUNDED = {
    "checkpoints/*.safetensors",
    "checkpoints/uploads/",
    "states of a client",
    "superlink.log",
    "node.log of a client",
}
PROCESSES = {
    "sepal.flower.superlink": "SuperLink",
    "flwr-serverapp": "ServerApp",
    "sepal.engines.flower.node": "SuperNode of a client",
    "sepal.engines.flower.warm": "resident process of a client",
    "sepal.cli run": "sepal run",
    "sepal.cli serve": "sepal serve",
    "sepal.cli join": "sepal join",
}


def kind_of(path: Path) -> str:
    """Return what the table calls a file."""
    return next((kind for part, kind in KINDS.items() if re.search(part, str(path))), path.name)


def sizes(directories: Iterable[Path], clients: int) -> dict[str, int]:
    """Return bytes by kind of file; what is a client's is of one client."""
    totals: dict[str, int] = {}
    for directory in directories:
        for path in everything_below(directory):
            try:
                if path.is_file():
                    totals[kind_of(path)] = totals.get(kind_of(path), 0) + path.stat().st_size
            except OSError:  # it was deleted meanwhile
                continue
    return {kind: size // clients if "of a client" in kind else size for kind, size in totals.items()}


def memory_by_process(processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Return resident bytes by process: its kind and its number, such as ``SuperLink 4711``."""
    resident: dict[str, int] = {}
    for process in processes:
        try:
            command, size = " ".join(process.cmdline()), process.memory_info().rss
        except psutil.Error:
            continue
        if kind := next((kind for part, kind in PROCESSES.items() if part in command), ""):
            resident[f"{kind} {process.pid}"] = size
    return resident


def memories(resident: Mapping[str, int]) -> dict[str, int]:
    """Return resident bytes by kind of process; of a kind with several, of the largest."""
    largest: dict[str, int] = {}
    for process, size in resident.items():
        kind = process.rpartition(" ")[0]
        largest[kind] = max(largest.get(kind, 0), size)
    return largest


def rounds_in(file: Path) -> int:
    """Return how many rounds a run's metrics.jsonl has."""
    try:
        return file.read_bytes().count(b"\n")
    except FileNotFoundError:  # not yet, or it is being restored from a copy
        return 0


def watch(
    file: Path,
    directories: list[Path],
    processes: Callable[[], Iterable[psutil.Process]],
    over: threading.Event,
    samples: list[dict[str, Any]],
    clients: int,
    every: int = EVERY,
) -> None:
    """Take a sample every so many rounds until the run is over.

    Args:
        file: The run's ``metrics.jsonl``.
        directories: Whose files are counted.
        processes: Returns those whose memory is read.
        over: Is set when the run is over.
        samples: To which each sample is appended: its round, bytes by kind of file and by process.
        clients: Number of clients.
        every: Rounds between two samples.
    """
    following = every
    while not over.wait(0.2):
        round = rounds_in(file)
        if round >= following:
            resident = memory_by_process(processes())
            samples.append({"round": round, "bytes": sizes(directories, clients), "memory": resident})
            following = round - round % every + every


def deployed(rounds: int, clients: int, directory: Path) -> list[dict[str, Any]]:
    """Return the samples of a deployed run."""
    keys = {
        **KEYS,
        "out": str(directory / "runs"),
        "rounds": rounds,
        "clients": clients,
        "partition.subsample": 25 * clients,
    }
    samples: list[dict[str, Any]] = []
    over = threading.Event()
    with Flower(directory / "flower", {"SEPAL_HOME": str(directory / "home"), "OMP_NUM_THREADS": "1"}) as flower:
        flower.start_superlink(timeout=120)
        for number in range(clients):
            flower.start_node(f"node{number}", {"partition-id": number, "num-partitions": clients})
        write_app(directory / "app")
        file = directory / "runs" / "long" / "metrics.jsonl"
        places = [directory / name for name in ("runs", "home", "flower")]
        watcher = threading.Thread(target=watch, args=(file, places, flower.left, over, samples, clients))
        watcher.start()
        ended = flower.run_app(directory / "app", keys, timeout=3600)
        over.set()
        watcher.join()
    if ended.status != "finished:completed":
        sys.exit(f"growth: expected a complete run, got {ended.status}: {ended.reason}")
    return samples


def in_process(rounds: int, clients: int, directory: Path) -> list[dict[str, Any]]:
    """Return the samples of a run in one process."""
    keys = {**KEYS, "out": str(directory), "rounds": rounds, "clients": clients, "partition.subsample": 25 * clients}
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "sepal.cli", "run", "--workers", "1", *sets]
    samples: list[dict[str, Any]] = []
    over = threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = directory / "long" / "metrics.jsonl"
    watcher = threading.Thread(
        target=watch, args=(file, [directory], lambda: [psutil.Process(process.pid)], over, samples, clients)
    )
    watcher.start()
    code = process.wait()
    over.set()
    watcher.join()
    if code:
        sys.exit(f"growth: expected exit code 0, got {code}")
    return samples


def growth_of_files(samples: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return by kind of file the bytes a round, from the first sample to the last.

    Of files that are bounded it is the largest size, in the first half of the samples and in all of them.
    """
    start, end, half = samples[0], samples[-1], samples[: len(samples) // 2]
    rounds = end["round"] - start["round"]
    files: dict[str, dict[str, float]] = {}
    for kind, size in sorted(end["bytes"].items()):
        if kind in BOUNDED:
            largest = [max(sample["bytes"].get(kind, 0) for sample in part) for part in (half, samples)]
            files[kind] = {"largest_in_first_half": largest[0], "largest": largest[1]}
        elif size > start["bytes"].get(kind, 0):
            files[kind] = {"per_round": round((size - start["bytes"].get(kind, 0)) / rounds, 1)}
    return files


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return bytes a round of each kind of file and MB per 100 rounds of each kind of process, after round 100."""
    settled = [sample for sample in samples if sample["round"] >= SETTLED]
    start, end = settled[0], settled[-1]
    rounds = end["round"] - start["round"]
    memory_at_start, memory_at_end = memories(start["memory"]), memories(end["memory"])
    memory = {
        kind: {
            "mb": round(size / 1e6, 1),
            "mb_per_100_rounds": round((size - memory_at_start.get(kind, size)) / 1e4 / rounds, 2),
        }
        for kind, size in sorted(memory_at_end.items())
    }
    files = growth_of_files(settled)
    return {"from_round": start["round"], "to_round": end["round"], "files": files, "processes": memory}


def table(result: dict[str, Any]) -> list[str]:
    """Return the lines of docs/sizing.md that show a result."""
    lines = [f"| {result['clients']} clients, rounds {result['from_round']} to {result['to_round']} | |", "|---|---|"]
    for kind, figures in result["files"].items():
        grows = "per_round" in figures
        lines.append(
            f"| `{kind}` | {figures['per_round']:,.0f} bytes a round |"
            if grows
            else f"| `{kind}` | at most {figures['largest']:,.0f} bytes |"
        )
    for kind, figures in result["processes"].items():
        lines.append(
            f"| memory of {kind} | {figures['mb']:.0f} MB, {figures['mb_per_100_rounds']:+.2f} MB per 100 rounds |"
        )
    return lines


def main() -> None:
    """Run, and print or store the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        samples = (in_process if options.in_process else deployed)(options.rounds, options.clients, Path(scratch))
    facts = {"clients": options.clients, "rounds": options.rounds, "seconds": round(time.monotonic() - began)}
    result = {**facts, **summary(samples)}
    text = json.dumps(result, indent=1)
    if options.store:
        name = f"growth-{'in-process' if options.in_process else 'deployed'}-{options.clients}.json"
        (RESULTS / name).write_text(f"{text}\n", encoding="utf-8")
    say(text)


if __name__ == "__main__":
    main()
