"""The parts of ``python -m tools.gpu``. Each runs in its own process, prints its section, and may raise."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sepal.errors import one_line


def machine(device: str) -> Iterator[str]:
    """Say what there is: GPUs, driver, torch."""
    import torch

    from tools.bench.__main__ import machine as described

    facts = described() | {"torch": torch.__version__}
    if device != "cpu":
        facts |= {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            facts[f"GPU {number}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20, encoding="utf-8")
        facts["driver"] = one_line(answer.stdout, 60)
    yield from (f"- {name}: {value}" for name, value in facts.items())


def methods(device: str) -> Iterator[str]:
    """Run every method for two rounds on the device and the CPU; see tests/simulated_device/methods.py."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "found.json"
        command = [sys.executable, "-m", "tests.simulated_device.methods", str(out), device]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        failed, reported, worst = 0, set[str](), 0.0
        yield "Trained, uploaded, stopped after round 1, resumed, exported; results within rtol 10⁻³ and atol 10⁻⁴ of"
        yield "the CPU's; a step that waits for the device fails, except those of pFedGate."
        yield "`at once` trains six methods with `engine.batch = 2`, `captured` ten with `engine.capture`."
        yield "The numbers of five cases are not compared:"
        yield "rounding moves them as far on a CPU (`ROUNDED` in tests/simulated_device/methods.py)."
        yield ""
        ended = False
        while not ended:
            ended = _ended(process)
            for name, figures in _written(out).items():
                if name not in reported:
                    reported.add(name)
                    worst = max(worst, figures.get("worst", 0.0))
                    if figures["error"]:
                        failed += 1
                        yield f"- **`{name}` failed**: {one_line(figures['error'].strip().splitlines()[-1], 300)}"
        yield f"- {len(reported) - failed} of {len(reported)} passed; largest difference {worst:.2g}"


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return False
    return True


def _written(out: Path) -> dict[str, dict[str, Any]]:
    try:
        results: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or being written
        return {}
    return results


def captured(device: str) -> Iterator[str]:
    """Measure a step and a client by captured steps, and as usual."""
    from tools.gpu.captured import measure

    yield from measure(device)


def engine(device: str) -> Iterator[str]:
    """Measure a round against the floor and PFLlib's way."""
    from tools.gpu.rounds import measure

    yield from measure(device)


def batch(device: str) -> Iterator[str]:
    """Measure clients at once over one by one."""
    from tools.bench.batch import KINDS, measure

    handler = _BatchLog()
    logging.getLogger("sepal").setLevel(logging.DEBUG)
    logging.getLogger("sepal").addHandler(handler)
    yield "| what | ratio | at once | one by one |"
    yield "|---|---|---|---|"
    for name, keys in KINDS.items():
        for row in measure(device, repeats=1, kinds={name: keys}):
            seconds = (row[key] for key in ("at_once_seconds", "one_by_one_seconds"))
            yield f"| {row['what']} | {row['ratio']:.2f} | {' | '.join(f'{value:.3f} s' for value in seconds)} |"
    yield ""
    yield from (f"- {line}" for line in handler.lines)


class _BatchLog(logging.Handler):
    """Keeps what the log says about models that do not train at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line once."""
        if "one by one" in record.getMessage():
            self.lines[one_line(record.getMessage(), 200)] = None


def cold(device: str) -> Iterator[str]:
    """Run a deployment of two nodes on the device, with a new process for each message."""
    yield from _deployed(device, cold=True)


def warm(device: str) -> Iterator[str]:
    """Do the same with forks of a resident process, which imports torch and leaves CUDA alone: ``sepal join``'s way.

    With ``auto``, ``sepal join``'s default, since ``cuda`` has been seen to work.
    """
    yield from _deployed(device if device == "cpu" else "auto", cold=False)


def _deployed(device: str, cold: bool) -> Iterator[str]:
    from tools.bench.deployed import rounds_of

    rounds, _ = rounds_of(cold, device, rounds=2)
    seconds = ", ".join(f"{figures['total']:.1f} ({figures['train']:.2f})" for figures in rounds)
    way = "cold" if cold else "warm"
    yield f"- two nodes with `device = {device}`, {way}: the run is complete"
    yield f"- seconds of rounds 2 and up (of them in training): {seconds}"


def compose(device: str) -> Iterator[str]:
    """Run the Compose file with its GPU override, if Docker, Compose and the image are there."""
    image = os.environ.get("SEPAL_IMAGE", "sepal:local")
    commands = [["docker", "version"], ["docker", "compose", "version"], ["docker", "image", "inspect", image]]
    for command, lacking in zip(
        commands, ("Docker engine", "Compose", f"image {image} (docker compose build)"), strict=True
    ):
        if not shutil.which("docker") or subprocess.run(command, capture_output=True, check=False).returncode:
            yield f"- not run: no {lacking}"
            return
    override = "docker compose -f docker-compose.yml -f docker-compose.gpu.yml"
    keys = {"COMPOSE": override, "CLIENTS": "2", "METHOD": "fedavg", "BUILD": "0"}
    run = subprocess.run(
        ["tools/compose_demo.sh"],
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    yield f"- two clients with docker-compose.gpu.yml: exit status {run.returncode}"
    yield from (f"    {line}" for line in ["```", *(run.stdout + run.stderr).splitlines()[-15:], "```"])


# Name: what it does, its title, and the seconds that it may take. Together at most nine minutes.
PARTS: dict[str, tuple[Callable[[str], Iterator[str]], str, float]] = {
    "machine": (machine, "Machine", 20),
    "captured": (captured, "Captured steps", 100),
    "methods": (methods, "All methods", 120),
    "engine": (engine, "A round, the floor, and PFLlib's way", 85),
    "batch": (batch, "Clients at once", 60),
    "cold": (cold, "A deployed round, cold", 50),
    "warm": (warm, "A deployed round, warm", 45),
    "compose": (compose, "The Compose file's GPU override", 50),
}
