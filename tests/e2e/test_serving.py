"""README's three terminals: a server, two clients, and a look from a fourth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.flower import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]


def sepal(arguments: list[str], directory: Path, log: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(directory / "home")}
    with open(directory / log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.cli", *arguments],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def left(home: Path) -> list[str]:
    mark, found = f"SEPAL_HOME={home}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_three_terminals(tmp_path):
    ports = [str(free_port()), str(free_port())]
    keys = ["--set", "dataset=digits", "--set", "rounds=3", "--name", "three"]
    server = sepal(["serve", *keys, "--port", ports[0], "--control", ports[1]], tmp_path, "serve.log")
    clients = [
        sepal(["join", f"127.0.0.1:{ports[0]}", "--partition", str(number), "--of", "2"], tmp_path, f"join{number}.log")
        for number in range(2)
    ]
    try:
        assert server.wait(300) == 0, (tmp_path / "serve.log").read_text()[-2000:]
        told = (tmp_path / "serve.log").read_text()
        assert "sepal: round 2/3: received" in told, "progress is to be seen in the first terminal"
        assert "sepal: closing round" in told
        summary = json.loads((tmp_path / "runs" / "three" / "summary.json").read_text())
        assert summary["complete"]
        assert summary["clients"] == 2
        watched = sepal(["watch", "runs/three"], tmp_path, "watch.log")
        assert watched.wait(60) == 0
        assert "4/4" in (tmp_path / "watch.log").read_text()
    finally:
        for process in [*clients, server]:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    end = time.monotonic() + 20
    while left(tmp_path / "home") and time.monotonic() < end:
        time.sleep(0.5)
    assert left(tmp_path / "home") == []


def test_a_taken_port_is_one_line(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        server = sepal(["serve", "--port", port, "--control", str(free_port())], tmp_path, "serve.log")
        assert server.wait(60) == 2
    assert f"sepal: --port: expected a free port, got {port}" in (tmp_path / "serve.log").read_text()
