"""A model of the size of ViT-B/16, 86 M parameters: memory of server and clients, seconds and bytes of a round.

Each run is a process of its own, which starts three workers (in process), or a SuperLink and nodes
(deployed, over gRPC). A thread reads the resident memory of all of them every 50 ms; the largest peak of each kind is
what counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from torch import nn

from sepal.data.sources.torchvision_import import torchvision
from sepal.rng import derive

SIDE, CLASSES, EXAMPLES, ROUNDS = 64, 10, 4, 2
HERE = "tools.bench.size"
KEYS: dict[str, Any] = {
    **{"dataset": "own", "own.shape": f"3x{SIDE}x{SIDE}", "own.classes": CLASSES, "own.data": f"{HERE}:load"},
    **{"model": f"{HERE}:build", "local-epochs": 1, "batch-size": EXAMPLES, "lr": 0.01, "split.validation": 0.0},
    **{"evaluate-every": 0, "evaluate-sampled": False, "evaluate-clients": 1, "device": "cpu", "timeout": 3600.0},
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "fedavg"},
    "FedPSE, keep .01": {"method": "fedpse", "fedpse.keep": 0.01},
    "FedAvg, LoRA of rank 8": {"method": "fedavg", "lora.rank": 8},
    "FedPSE, keep .01, LoRA": {"method": "fedpse", "fedpse.keep": 0.01, "lora.rank": 8},
    "FedSA-LoRA": {"method": "fedsa-lora"},
    "FLASC, 1/4 both ways": {"method": "flasc", "flasc.rate": 0.01},
}


RUNS = [("in process", method, 3) for method in METHODS]
RUNS += [("in process", method, 6) for method in list(METHODS)[:2]] + [("in process", "FedAvg", 12)]
RUNS += [("deployed", method, 3) for method in list(METHODS)[:2]]


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return four training images and one to test, float32 (n, 3, 64, 64), of client number ``client``."""
    rng = derive(0, "bench-size", client)
    x = rng.standard_normal((EXAMPLES + 1, 3, SIDE, SIDE), np.float32)
    y = rng.integers(0, CLASSES, EXAMPLES + 1)
    return x[:EXAMPLES], y[:EXAMPLES], x[EXAMPLES:], y[EXAMPLES:]


def build(shape: Sequence[int], classes: int) -> nn.Module:
    """Return torchvision's ViT-B/16 for images of 64 x 64: 17 tokens instead of 197."""
    family = torchvision("models.vision_transformer").VisionTransformer
    module: nn.Module = family(SIDE, 16, num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=classes)
    return module


class PeakMemory(threading.Thread):
    """Keeps the peak resident memory, in MiB, of this process and of its children, by what they are."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, float] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        """Read every 50 ms until stopped."""
        while not self.stopped.wait(0.05):
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    kind, used = role(process), process.memory_info().rss / 2**20
                except psutil.Error:
                    continue
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), used)


def role(process: psutil.Process) -> str:
    """Return ``server``, ``client``, ``link`` (Flower's SuperLink and node) or ``other``."""
    words = " ".join(process.cmdline())
    for mark, kind in (("serverapp", "server"), ("superlink", "link"), ("supernode", "link"), ("spawn_main", "client")):
        if mark in words:
            return kind
    if process.pid == os.getpid():
        return "own"
    return "client" if any(mark in words for mark in ("clientapp", "warm", "forkserver")) else f"other: {words[-80:]}"


def in_process(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Run in process with three workers, which are the clients; the server is this process."""
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    seconds: list[dict[str, Any]] = []

    class LineCollector:
        def opened(self, progress: Any, total: int) -> None: ...
        def closed(self, progress: Any, report: Any) -> None: ...
        def round(self, progress: Any, record: Any, line: Mapping[str, Any]) -> None:
            seconds.append(dict(line))

    run_in_process(assemble(keys), observers=[LineCollector()], workers=3)
    return {"lines": seconds}


def deployed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Run over gRPC, with a SuperLink and a node for each client."""
    from sepal.engines.flower.bundle import write_app
    from sepal.engines.flower.engine import Flower

    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        with Flower(environment={"SEPAL_HOME": str(directory / "home")}) as deployment:
            deployment.start_superlink()
            for number in range(int(keys["clients"])):
                node: dict[str, Any] = {"partition-id": number, "num-partitions": keys["clients"], "device": "cpu"}
                deployment.start_node(f"node{number}", {**node, "data": f"{HERE}:load", "allow": f"{HERE}:build"})
            write_app(directory / "app")
            config = {key: value for key, value in keys.items() if key != "own.data"}
            deployment.run_app(directory / "app", {**config, "name": "size", "out": text}).check()
        lines = [
            json.loads(line) for line in (directory / "size" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    return {"lines": lines}


def run_once(engine: str, method: str, clients: int) -> dict[str, Any]:
    """Run in this process, and return peaks in MiB, and a round's seconds and bytes."""
    memory = PeakMemory()
    memory.start()
    run = deployed if engine == "deployed" else in_process
    result = run({**KEYS, "clients": clients, "rounds": ROUNDS, **METHODS[method]})
    memory.stopped.set()
    first, second = result["lines"][ROUNDS - 2 : ROUNDS]
    round_bytes = {way: second["bytes"]["total"][way] - first["bytes"]["total"][way] for way in ("down", "up")}
    figures = {f"{way}_bytes_a_client": count // clients for way, count in round_bytes.items()}
    return {"peaks": memory.peaks, "figures": {"round_seconds": second["seconds"]["total"], **figures}}


def apart(engine: str, method: str, clients: int) -> dict[str, Any]:
    """Return :func:`run_once` of a new process."""
    code = f"import json; from {HERE} import run_once; print(json.dumps(run_once({engine!r}, {method!r}, {clients})))"
    begun = time.monotonic()
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if completed.returncode:
        raise RuntimeError(completed.stderr[-2000:])
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    result["figures"]["seconds_in_all"] = time.monotonic() - begun
    return result


def row(engine: str, method: str, clients: int) -> dict[str, Any]:
    """Return the figures of one run."""
    result = apart(engine, method, clients)
    peaks = {kind: round(peak) for kind, peak in result["peaks"].items() if not kind.startswith("other")}
    if engine == "in process":
        peaks = {"server": peaks["own"], "client": peaks["client"]}
    peaks.pop("own", None)
    return {
        "method": method,
        "clients": clients,
        **{f"{kind}_mib": peak for kind, peak in peaks.items()},
        **result["figures"],
    }


def measure() -> list[dict[str, Any]]:
    """Return a row for each run; the ratio is the server's peak over its peak with half of the clients."""
    rows: list[dict[str, Any]] = []
    for engine, method, clients in RUNS:
        load = os.getloadavg()[0]
        result = {"engine": engine, **row(engine, method, clients), "load_before": load}
        print(json.dumps(result), file=sys.stderr, flush=True)  # a run takes minutes
        rows.append(result)
    return with_ratios(rows)


def with_ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with what is measured, and whether the server's memory is flat."""
    peaks = {(row["engine"], row["method"], row["clients"]): row["server_mib"] for row in rows}
    completed = []
    for row in rows:
        half = peaks.get((row["engine"], row["method"], row["clients"] / 2))
        ratio = row["server_mib"] / half if half else 1.0
        goal, verdict = ("flat: at most 1.1", ratio <= 1.1) if half else ("", None)
        title = f"86 M parameters, {row['engine']}, {row['method']}, {row['clients']} clients"
        completed.append({"what": title, "ratio": ratio, "goal": goal, "met": verdict, **row})
    return completed
