"""Measure one SuperLink under 10, 100 and 1,000 light clients: ``python -m tools.load [--counts 10,100,1000]``.

Each client holds a connection of Flower's own, polls for messages every 3 s as a SuperNode does, or less often as with
``sepal join --poll``, and answers a training order at once with a prepared payload of 1 MB. So this measures Flower's
SuperLink and Sepal's server, and the light clients next to them on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.commands import SUPERLINK
from sepal.engines.flower.engine import Flower
from sepal.engines.flower.processes import FlowerError
from tools.load.verdict import verdict

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).parent / "models"
COMMANDS = {"superlink": SUPERLINK[-1], "serverapp": "flwr-serverapp"}  # process → part of its command
BEGUN = re.compile(r", from round 1 of |round 1: \d+ clients drawn")  # the line of the run's log that says it begins


class LoadSampler(threading.Thread):
    """Samples memory and CPU time of the SuperLink and the ServerApp."""

    def __init__(self, flower: Flower) -> None:
        super().__init__(daemon=True)
        self._flower, self._over = flower, threading.Event()
        self.memory: dict[str, list[float]] = {name: [] for name in COMMANDS}
        self.cpu = dict.fromkeys(COMMANDS, 0.0)
        self._last_cpu: dict[int, float] = {}

    def run(self) -> None:
        """Take a sample every second until stopped."""
        while not self._over.wait(1.0):
            for process in self._flower.left():
                try:
                    command = " ".join(process.cmdline())
                    which = next((name for name, part in COMMANDS.items() if part in command), None)
                    if which:
                        self.memory[which].append(process.memory_info().rss / 1e6)
                        spent = sum(process.cpu_times()[:2])
                        self.cpu[which] += spent - self._last_cpu.get(process.pid, 0.0)
                        self._last_cpu[process.pid] = spent
                except psutil.Error:
                    continue

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()


def cpu_of(processes: list[psutil.Process]) -> float:
    """Return the CPU time of processes, in seconds."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def idle_cost(sampler: LoadSampler, light: list[psutil.Process], seconds: float, look: float) -> dict[str, float]:
    """Return the CPU time of SuperLink and clients, in seconds per second, while clients only poll for messages."""
    time.sleep(12.0 + look)  # until all have registered
    before = sampler.cpu["superlink"], cpu_of(light)
    time.sleep(seconds)
    return {
        "idle_superlink_cpu": (sampler.cpu["superlink"] - before[0]) / seconds,
        "idle_light_clients_cpu": (cpu_of(light) - before[1]) / seconds,
    }


def measure(
    clients: int, sampled: int, rounds: int, workers: int, timeout: float, idle: float, look: float
) -> dict[str, Any]:
    """Return the figures of one run, with ``clients`` registered and ``sampled`` per round; no run for 0 rounds."""
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        environment = {"SEPAL_HOME": str(directory / "home"), "SEPAL_USER_PATH": str(MODELS), "OMP_NUM_THREADS": "1"}
        config: dict[str, Any] = {
            "name": "load",
            "out": text,
            "method": "fedavg",
            "dataset": "digits",
            "model": "megabyte:build",
            "clients": clients,
            "clients-per-round": sampled,
            "rounds": rounds,
            "evaluate-every": 0,
            "evaluate-sampled": False,
            "evaluate-clients": sampled,
            "roster": "drawn" if sampled else "closed",
            "checkpoint-every": 5,
            "timeout": timeout,
        }
        with Flower(environment=environment) as flower:
            flower.start_superlink()
            share = -(-clients // workers)
            processes = []
            for first in range(0, clients, share):
                out = directory / f"worker-{first}.json"
                count = str(min(share, clients - first))
                command = [sys.executable, "-m", "tools.load.worker", f"127.0.0.1:{flower.ports.fleet}"]
                command += [str(first), count, json.dumps(config), str(out), str(look)]
                environment = {**flower.environment, "PYTHONPATH": str(ROOT)}
                process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=ROOT)
                processes.append((process, out))
            sampler = LoadSampler(flower)
            sampler.start()
            light = [psutil.Process(process.pid) for process, _ in processes]
            spent = idle_cost(sampler, light, idle, look) if idle else {}
            if not rounds:
                sampler.stop()
                for process, _ in processes:
                    process.kill()
                return {"clients": clients, "look_s": look, **spent}
            before = cpu_of(light)
            waited, begun = dict(sampler.cpu), time.monotonic()
            write_app(directory / "app")
            roster: dict[str, float] = {}

            def show(line: str) -> None:
                if BEGUN.search(line) and "to be drawn" not in line and not roster:
                    cpu = sampler.cpu["superlink"] - waited["superlink"]
                    roster.update(roster_s=time.monotonic() - begun, roster_superlink_cpu_s=cpu)

            run = flower.run_app(directory / "app", config, timeout=timeout, show=show)
            wall = time.monotonic() - begun
            sampler.stop()
            light_cpu = cpu_of(light) - before
            light_memory = sum(process.memory_info().rss for process in light) / 1e6
            for process, _ in processes:
                if process.stdin:
                    process.stdin.close()
            for process, _ in processes:
                try:
                    process.wait(120)
                except subprocess.TimeoutExpired:  # a SuperLink under load takes long to let clients go
                    process.kill()
            database = (flower.home / "state.db").stat().st_size / 1e6
            log_lines = (flower.home / "superlink.log").read_text(errors="replace", encoding="utf-8").splitlines()
            errors = [line.strip() for line in log_lines if "Error" in line and not line.startswith("DEBUG")]
        worker_results = [json.loads(out.read_text(encoding="utf-8")) for _, out in processes if out.exists()]
        path = directory / "load" / "metrics.jsonl"
        lines = (
            [json.loads(line)["seconds"] for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )
    return row(clients, sampled, run.status, wall, lines, worker_results) | {
        "look_s": look,
        **spent,
        **roster,
        "superlink_mb": max(sampler.memory["superlink"], default=0.0),
        "serverapp_mb": max(sampler.memory["serverapp"], default=0.0),
        "superlink_cpu_s": sampler.cpu["superlink"] - waited["superlink"],
        "serverapp_cpu_s": sampler.cpu["serverapp"] - waited["serverapp"],
        "light_clients_cpu_s": light_cpu,
        "light_clients_mb": light_memory,
        "database_mb": database,
        "superlink_errors": len(errors),
        "first_superlink_errors": sorted({line[:120] for line in errors})[:3],
        "log": list(run.log[-3:]) if run.status != "finished:completed" else [],
    }


def row(
    clients: int,
    sampled: int,
    status: str,
    wall: float,
    lines: list[dict[str, float]],
    worker_results: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return a row made of the run's own figures and the clients'."""
    large = [t for result in worker_results for t in result["timings"] if t["bytes"] > 500_000]
    failures = [failure for result in worker_results for failure in result["failures"]]
    rounds = [line["total"] for line in lines[:-1]]
    return {
        "clients": clients,
        "sampled": sampled or clients,
        "status": status,
        "wall_s": wall,
        "rounds": len(rounds),
        "round_s": statistics.median(rounds) if rounds else None,
        "slowest_round_s": max(rounds, default=None),
        "closing_s": lines[-1]["total"] if lines else None,
        "uploads": len(large),
        "upload_s": statistics.median(t["up"] for t in large) if large else None,
        "upload_p95_s": statistics.quantiles([t["up"] for t in large], n=20)[-1] if len(large) > 1 else None,
        "download_s": statistics.median(t["down"] for t in large) if large else None,
        "failures": len(failures),
        "first_failures": sorted(set(failures))[:3],
    }


def main() -> None:
    """Measure each count and print a row of JSON for it; exit with 1 if something broke or grew too fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="10,100,1000", help="numbers of registered clients")
    parser.add_argument("--sampled", type=int, default=20, help="clients a round; 0: all")
    parser.add_argument("--rounds", type=int, default=10, help="0: no run, only clients that wait")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds for which the clients first only wait")
    parser.add_argument("--look", type=float, help="seconds between a client's looks; by default so that all make 33/s")
    parser.add_argument("--workers", type=int, default=4, help="processes of light clients")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for a run")
    parser.add_argument("--out", type=Path, help="file that gets a row of JSON for each count")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[dict[str, Any]] = []
    for text in options.counts.split(","):
        count = int(text)
        workers = min(options.workers, -(-count // 10))
        sampled = min(options.sampled, count) % count if options.sampled else 0
        look = options.look or max(3.0, 0.03 * count)
        try:
            rows.append(measure(count, sampled, options.rounds, workers, options.timeout, options.idle, look))
        except FlowerError as reason:  # a failure is a result, too
            rows.append({"clients": count, "sampled": sampled or count, "status": str(reason)})
        line = json.dumps(rows[-1])
        print(line, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    problems = verdict(rows)
    print(f"load: {'; '.join(problems) or 'as it should be'}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
