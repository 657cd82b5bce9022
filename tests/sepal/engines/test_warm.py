"""The resident client process: whose code a fork runs, and what becomes of a fork that was killed."""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

import sepal
from sepal.engines.flower import warm
from sepal.engines.flower.code import Code, digest, sources, stamp
from sepal.engines.flower.commands import needs_cold
from sepal.errors import ProtocolError

ROOT = Path(__file__).parents[3]
APP = "sepal/client_app/app.py"
FILES = {"sepal/__init__.py": "", "sepal/rng.py": "A = 1\n", "sepal/lazy.py": "B = 1\n", APP: "C = 1\n"}


def write(root, files=FILES):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def code(tmp_path):
    root = write(tmp_path / "installed")
    files = {name: root / name for name in FILES}
    stamps = tuple(map(stamp, files.values()))
    digests = {name: digest(file) for name, file in files.items()}
    return Code(files, digests, stamps, frozenset(FILES) - {"sepal/lazy.py"}, frozenset({"sepal", "json"}))


def test_a_bundle_without_code_or_with_the_same_code_is_answered_by_a_fork(code, tmp_path):
    assert code.same_as(write(tmp_path / "none", {"pyproject.toml": ""}))
    assert code.same_as(write(tmp_path / "same"))
    assert code.same_as(write(tmp_path / "users", {"models.py": "D = 1\n", "client_app/app.py": "C = 2\n"}))
    outside = {name.replace("sepal/client_app", "client_app"): text for name, text in FILES.items()}
    assert code.same_as(write(tmp_path / "flower", outside)), "as Flower packs a checkout: it follows no links"


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, "sepal/rng.py": "A = 2\n"},
        {**FILES, "sepal/lazy.py": "B = 2\n"},  # not imported yet, but a later message may import it
        {**FILES, "sepal/more.py": ""},
        {name: text for name, text in FILES.items() if name != "sepal/rng.py"},
        {name: text for name, text in FILES.items() if name != APP},
        {**{name: text for name, text in FILES.items() if name != APP}, "client_app/app.py": "C = 2\n"},
        {"sepal.py": ""},
        {"json.py": ""},
        {"json/__init__.py": ""},
    ],
    ids=[
        "changed",
        "changed and not imported yet",
        "added",
        "removed",
        "a folder is missing",
        "changed in a folder beside sepal",
        "a module that hides a package",
        "a module that would hide an imported one",
        "a package that would",
    ],
)
def test_a_bundle_with_other_code_is_not(code, tmp_path, files):
    assert not code.same_as(write(tmp_path / "bundle", files))


def test_an_upgrade_of_the_installation_is_seen(code):
    assert not code.changed()
    os.utime(code.files["sepal/lazy.py"], ns=(1, 1))
    assert code.changed()
    again = Code(code.files, code.digests, tuple(map(stamp, code.files.values())), code.imported, code.names)
    code.files["sepal/rng.py"].unlink()
    assert again.changed()


def test_a_file_that_is_replaced_while_it_is_imported_is_an_upgrade(tmp_path, monkeypatch):
    """Otherwise a resident process that starts in the middle of an upgrade would answer with old code for good."""
    root = write(tmp_path / "installed")
    monkeypatch.setattr(sepal, "__file__", str(root / "sepal/__init__.py"))
    assert not Code.imported_by(lambda: None).changed()
    assert Code.imported_by(lambda: (root / "sepal/rng.py").write_text("A = 22\n")).changed()


def test_the_running_code_is_that_of_this_checkout(tmp_path):

    imported = Code.imported_by(lambda: importlib.import_module("sepal.client_app.app"))
    shutil.copytree(ROOT / "sepal", tmp_path / "installed" / "sepal")
    assert imported.same_as(tmp_path / "installed")
    shutil.copytree(ROOT / "sepal", tmp_path / "bundle" / "sepal", ignore=shutil.ignore_patterns("client_app"))
    shutil.copytree(ROOT / "client_app", tmp_path / "bundle" / "client_app")
    assert imported.same_as(tmp_path / "bundle")
    assert imported.digests == {name: digest(file) for name, file in sources(tmp_path / "bundle").items()}
    assert "torch" in imported.names
    assert APP in imported.imported


@pytest.mark.parametrize(
    ("device", "cold"),
    [("", False), ("auto", False), ("cpu", False), ("cuda:1", False), ("mps", True), ("xpu:0", True)],
)
def test_a_node_starts_cold_where_forks_were_not_seen_to_work(device, cold):
    assert needs_cold({"device": device}) is cold


def task(kind="flwr-clientapp", fab="f" * 64):
    return ExecutionSpec(TaskType(kind), "127.0.0.1:1", "token", True, None, False, None, False, 7, fab)


@pytest.mark.parametrize(
    ("ending", "answered"),
    [
        ("os.write(note, b'outline'); os.kill(os.getpid(), 9)", True),
        ("os.kill(os.getpid(), 9)", False),  # it had not read its message: the SuperNode notices by itself
        ("os.write(note, b'outline'); os._exit(1)", False),  # it has sent its own error
    ],
    ids=["killed", "killed before it read its message", "failed"],
)
def test_a_fork_that_was_killed_is_answered_for(monkeypatch, code, tmp_path, ending, answered):
    answers = []
    monkeypatch.setattr(
        warm, "answer", lambda spec, node, certificates, note, check: exec(ending, {"os": os, "note": note})
    )
    monkeypatch.setattr(warm, "answer_for", lambda *parts: answers.append(parts))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    write(tmp_path / "apps" / f"sepal.sepal-fl.0.1.0.{'f' * 8}", {"pyproject.toml": ""})
    executor.launch(task())
    end = time.monotonic() + 20
    while executor.children and time.monotonic() < end:
        executor.reconcile()
    assert not executor.children
    assert [(parts[0].task_id, parts[2]) for parts in answers] == ([(7, b"outline")] if answered else [])


def test_other_code_and_other_tasks_get_flowers_own_process(monkeypatch, code, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    write(tmp_path / "apps" / f"sepal.sepal-fl.0.1.0.{'e' * 8}", {**FILES, "sepal/rng.py": "A = 2\n"})
    cold = []
    monkeypatch.setattr(warm.private.SubprocessExecutor, "launch", lambda self, spec: cold.append(spec.fab_hash))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    executor.launch(task(fab="e" * 64))
    executor.launch(task(fab=""))
    assert cold == ["e" * 64, ""]
    assert not executor.children


def test_a_bundle_that_a_kill_left_half_unpacked_is_not_taken_as_the_same_code_for_good(monkeypatch, code, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    bundle = write(tmp_path / "apps" / f"sepal.sepal-fl.0.1.0.{'e' * 8}", {"pyproject.toml": ""})
    executor = warm.ForkExecutor(code, os.getpid(), None)
    assert executor._is_ours("e" * 64)
    write(bundle, {**FILES, "sepal/rng.py": "A = 2\n"})
    with pytest.raises(ProtocolError, match="expected the code that this client has imported, got another, eeeeeeee"):
        executor._check("e" * 64)


def test_flowers_steps_have_the_names_and_the_order_in_which_they_are_replaced():
    from flwr.supernode.runtime import run_clientapp as flower

    text = inspect.getsource(flower.run_clientapp)
    steps = ["pull_task_input(", "install_from_fab(fab.content, skip_prompt=True)", "get_load_client_app_fn("]
    places = [text.index(step) for step in [*steps, "load_client_app_fn(\n            run.fab_id"]]
    assert places == sorted(places)


def test_this_checkout_as_a_bundle_is_answered_by_forks(tmp_path):
    """What ``flwr run .`` submits, in a process that has imported what a client process imports."""
    script = f"""
from pathlib import Path
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
from sepal.engines.flower import warm
from sepal.engines.flower.code import Code, preload
code = Code.imported_by(preload)
bundle = install_from_fab(build_fab_from_disk(Path({str(ROOT)!r})), Path({str(tmp_path)!r}), skip_prompt=True)
assert (bundle / "client_app" / "app.py").exists()
assert code.same_as(bundle)
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stderr
