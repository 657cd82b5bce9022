"""``make -C tools wheels``: install the wheel in a fresh environment of each Python, and do what a stranger does first.

`sepal doctor`, a first run, its report and card, a project with data of its own, and a method as a Flower Strategy.
``ONLY=3.13`` is one Python. torch comes from ``TORCH_INDEX_URL`` (CPU builds), or from PyPI with CUDA: gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
SMALL = ["--set", "partition.subsample=200", "--set", "clients=2", "--rounds", "2", "--workers", "1"]
PLAIN = """
import torch
from sepal.strategies.fedpse import FedPSE
from sepal.client_app.plain import wrap_client

print(FedPSE(lambda: torch.nn.Linear(4, 2), keep=0.1), wrap_client)
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Try each Python that is asked for; what fails ends with its output."""
    parser = argparse.ArgumentParser(prog="make -C tools wheels", description="the wheel on each Python")
    parser.add_argument("only", nargs="*", default=list(PYTHONS), help=f"of {', '.join(PYTHONS)}")
    wheels = sorted((ROOT / "dist").glob("sepal_fl-*.whl"))
    if not wheels:
        sys.exit("wheels: expected a wheel in dist/ (make -C tools package), got none")
    for python in parser.parse_args(arguments).only:
        base = shutil.which(f"python{python}")
        if base is None:
            sys.exit(f"wheels: expected python{python} on PATH, got none")
        with tempfile.TemporaryDirectory(prefix=f"sepal-{python}-") as scratch:
            print(f"Python {python}: {tried(base, wheels[-1], Path(scratch))}", flush=True)


def tried(base: str, wheel: Path, folder: Path) -> str:
    """Return how long the installation took, how large it is, and how long the rest took."""
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    begun = time.monotonic()
    run([base, "-m", "venv", str(environment)], folder)
    python, index = str(environment / "bin" / "python"), os.environ.get("TORCH_INDEX_URL", "")
    pip = [python, "-m", "pip", "install", "--quiet", *(["--extra-index-url", index] if index else [])]
    pins = ["-c", str(ROOT / "constraints.txt")] if base.endswith("3.11") else []  # they are for Python 3.11
    run([*pip, *pins, f"{wheel}[report,card]"], folder)
    size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file() and not file.is_symlink())
    installed = time.monotonic()
    sepal = str(environment / "bin" / "sepal")
    run([sepal, "doctor"], work)
    run([sepal, "run", "--method", "fedpse", "--dataset", "digits", *SMALL, "--name", "first"], work)
    run([sepal, "report", "first"], work)
    run([sepal, "export", "first", "0", "--card", "--out", "model/model.safetensors"], work)
    run([sepal, "init", "mine"], work)
    run([sepal, "run", "--config", "run.toml", "--rounds", "2", "--name", "second"], work / "mine")
    run([python, "-c", PLAIN], work)
    for file in ("runs/first/report.html", "model/README.md", "mine/runs/second/summary.json"):
        if not (work / file).exists():
            sys.exit(f"wheels: expected {file}, got none")
    return (
        f"installed in {installed - begun:.0f} s, {size / 1e6:,.0f} MB; tried in {time.monotonic() - installed:.0f} s"
    )


def run(command: Sequence[str], folder: Path) -> None:
    """Run a command in an environment without this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "SEPAL_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"wheels: {' '.join(command)}: expected exit code 0, got {done.returncode}\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main()
