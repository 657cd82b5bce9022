"""The resident client process over real processes: killed, out of memory, with another bundle, it never answers wrong.

One deployment serves all tests of this file. ``node1``'s data runs into the trouble that a test writes into a file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from tests.e2e.test_deployment import At

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
KEYS = {"dataset": "own", "own.shape": "5", "own.classes": 2, "model": "ward:build", "method": "fedavg"}
FLAT = {**KEYS, "clients": 2, "rounds": 2, "evaluate-every": 0, "timeout": 120.0}


@pytest.fixture(scope="module")
def trouble(tmp_path_factory):
    return tmp_path_factory.mktemp("trouble") / "trouble"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, trouble):
    environment = {
        "SEPAL_HOME": str(tmp_path_factory.mktemp("sepal-home")),
        "SEPAL_USER_PATH": str(Path(__file__).parent / "models_for_tests"),
        "SEPAL_TEST_TROUBLE": str(trouble),
    }
    with Flower(environment=environment) as deployed:
        deployed.start_superlink()
        for number, file in enumerate((trouble, trouble.with_name("none"))):
            # a home of its own, as on another machine: the server has not unpacked the bundle there
            for_node = {"SEPAL_TEST_TROUBLE": str(file), "FLWR_HOME": str(tmp_path_factory.mktemp("node"))}
            keys = {"name": f"ward-{number}", "data": "ward:load", "allow": "ward:build"}
            with patch.dict(deployed.environment, for_node):
                deployed.start_node(f"node{number}", keys, allow_code=True)
        yield deployed
    assert not deployed.left(), "a process was left behind"


def resident(deployment, node="node0"):
    """The client process; wait for it, since a SuperNode starts it a moment after itself."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for child in psutil.Process(deployment.nodes[node].pid).children():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                if "sepal.engines.flower.warm" in child.cmdline():
                    return child
        time.sleep(0.1)
    return None


def finish(deployment, tmp_path, name, app=None, **keys):
    app = app or write_app(tmp_path / "codeless")[0].parent
    run = deployment.run_app(app, {**FLAT, **keys, "name": name, "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    summary = json.loads((tmp_path / name / "summary.json").read_text())
    assert summary["complete"]
    return summary


def reasons(path):
    entries = [json.loads(line) for line in (path / "ledger.jsonl").read_text().splitlines()]
    return [(entry["client"], entry["reason"]) for entry in entries if entry["status"] != "accepted"]


def when(trouble, action):
    """Do something as soon as the client has run into the trouble."""
    marker = trouble.with_suffix(".seen")
    marker.unlink(missing_ok=True)

    def watch():
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if marker.exists() and marker.read_text():
                action(int(marker.read_text()))
                return
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_messages_are_answered_by_forks_of_one_process(deployment, tmp_path):
    before = resident(deployment)
    finish(deployment, tmp_path, "plain")
    assert resident(deployment) == before
    log = (deployment.home / "node0.log").read_text()
    assert log.count("client process ready") == 1
    assert "a new process per message" not in log


def test_a_killed_resident_process_comes_back(deployment, tmp_path):
    before = resident(deployment)
    killer = At(tmp_path / "parent", 1, lambda: resident(deployment).kill())
    finish(deployment, tmp_path, "parent", rounds=3)
    assert killer.done
    assert resident(deployment) not in (None, before)


def test_a_killed_fork_is_asked_again_at_once(deployment, tmp_path, trouble):
    killer = when(trouble, lambda pid: psutil.Process(pid).kill())
    at = At(tmp_path / "child", 1, lambda: trouble.write_text("sleep"))
    finish(deployment, tmp_path, "child")
    killer.join(1)
    assert at.done
    assert not killer.is_alive()
    (reason,) = set(reasons(tmp_path / "child"))
    assert reason == ("ward-0", "error 8: the client's process was ended by signal 9")
    lines = [json.loads(line) for line in (tmp_path / "child" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["seconds"]["total"] for line in lines) < 45, "not only when Flower's claim on the task expires"


def test_a_fork_without_memory_fails_cleanly(deployment, tmp_path, trouble):
    before = resident(deployment)
    at = At(tmp_path / "memory", 1, lambda: trouble.write_text("memory"))
    finish(deployment, tmp_path, "memory")
    assert at.done
    (reason,) = set(reasons(tmp_path / "memory"))
    assert reason[0] == "ward-0"
    assert "got DataError, code" in reason[1], "the details stay in the node's log"
    assert "Unable to allocate 1.00 MiB" in (deployment.home / "node0.log").read_text()
    assert resident(deployment) == before


@pytest.mark.parametrize(
    ("version", "reference"),
    [("0.1.1", "sepal.apps:client_app"), pytest.param("0.1.2", "other:app", marks=pytest.mark.long)],
)
def test_another_version_of_the_bundle_runs_its_own_code(deployment, tmp_path, version, reference):
    """The app is submitted with changed client code: it is what answers, not what the resident process has imported.

    Also if the bundle names a ClientApp of its own.
    """
    app = tmp_path / "app"
    for name in ("client_app", "server_app", "sepal", "strategies", "models"):
        shutil.copytree(ROOT / name, app / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "pyproject.toml").read_text()
    assert 'clientapp = "sepal.apps:client_app"' in text
    text = text.replace('version = "0.1.0"', f'version = "{version}"', 1)
    (app / "pyproject.toml").write_text(text.replace("sepal.apps:client_app", reference))
    (app / "other.py").write_text("from sepal.client_app.app import make_app\n\napp = make_app()\n")
    build = app / "client_app" / "build.py"
    changed = build.read_text().replace("return self.name or", 'return f"new-{self.name}" or')
    assert changed != build.read_text()
    build.write_text(changed)
    log = deployment.home / "node0.log"
    refused = log.read_text().count("expected the code that this client has imported, got another")
    finish(deployment, tmp_path, "version", app=app, rounds=1)
    entries = [json.loads(line) for line in (tmp_path / "version" / "ledger.jsonl").read_text().splitlines()]
    assert {entry["client"] for entry in entries} == {"new-ward-0", "new-ward-1"}
    words = log.read_text().count("expected the code that this client has imported, got another")
    assert words > refused, "the first message, a query, was answered by a fork"
    if reference != "other:app":  # then the resident process's own version answers again
        return
    finish(deployment, tmp_path, "back", rounds=1)
    entries = [json.loads(line) for line in (tmp_path / "back" / "ledger.jsonl").read_text().splitlines()]
    assert {entry["client"] for entry in entries} == {"ward-0", "ward-1"}
