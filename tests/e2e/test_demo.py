"""``make demo`` as a person runs it: what it prints, how it fails, what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sepal.runs.stored_run import read_run
from sepal.strategies import registry
from tools.demo import BESIDE, compared

pytestmark = [pytest.mark.e2e, pytest.mark.simulation, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]


# `python -m tools.demo`, but where a runner in the background ignores SIGINT, children inherit that
DEMO = """
import runpy, signal, sys
sys.argv[1:] = ["--rounds", "2"]
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("tools.demo", run_name="__main__")
"""


def start(directory, **environment):
    """Start the demo; its processes are told from others by a mark in their environment."""
    mark = f"SEPAL_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, "-c", DEMO],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), name: value, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, mark.encode()


def left(mark):
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                command_lines.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    return command_lines


def homes():
    return set(Path("/tmp").glob("sepal-flower-*"))


def abandoned(before):
    """Homes that are new and that no process uses; other tests run beside this one."""
    end = time.monotonic() + 20
    while True:
        used = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                used |= {
                    part[10:].decode() for part in path.read_bytes().split(b"\0") if part.startswith(b"FLWR_HOME=")
                }
            except OSError:
                continue
        leftover_homes = {home for home in homes() - before if str(home) not in used}
        if not leftover_homes or time.monotonic() > end:
            return leftover_homes
        time.sleep(1)


def test_the_demo_runs_and_leaves_no_process(tmp_path):
    before = homes()
    process, mark = start(tmp_path)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    assert left(mark) == []
    assert abandoned(before) == set()
    for words in (
        "deployed",
        "received",
        "trained",
        "worst",
        "local",
        "fedavg",
        "MB up",
        "MB down",
        "dense",
        "closing",
        "Side by side",
    ):
        assert words in output
    (path,) = [Path(run_path) for run_path in re.findall(r"Run written to (.+)", output)]
    runs = {m: read_run(path.with_name(f"{path.name}-{m}")) for m in BESIDE}
    ends = {m: 100 * run.summary["accuracy"][registry.deployed(m)]["mean"] for m, run in runs.items()}
    accuracy = 100 * read_run(path).summary["accuracy"]["kept"]["mean"]
    (sentence,) = (line for line in output.splitlines() if "of FedAvg's bytes" in line)
    # what the demo says is what it found
    dense, alone = (compared(accuracy - ends[method]) for method in ("fedavg", "local"))
    assert f"FedPSE is {dense} FedAvg and {alone} training alone." in sentence
    assert "one seed" in output
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
    summary = read_run(path).summary
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("fedpse", 2, 20)
    assert summary["bytes"]["up"] < 0.15 * summary["bytes"]["up_dense"]


def test_a_failed_run_makes_the_demo_fail(tmp_path):
    (tmp_path / "runs").write_text("")  # the server cannot make its directory
    process, mark = start(tmp_path)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 1
    assert "expected a directory that can be made, got Not a directory" in errors.splitlines()[-1]
    assert output == ""
    assert left(mark) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path, number):
    process, mark = start(tmp_path)
    while process.poll() is None and not list(tmp_path.glob("runs/*/config.toml")):
        time.sleep(0.2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert left(mark) == []
