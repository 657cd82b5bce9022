"""The resident client process: whose code a fork runs, and what becomes of a fork that was killed."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

import sepal
from sepal_engines.flower import warm
from sepal_engines.flower.code import ANSWERING, Code, digest, stamp
from sepal_engines.flower.engine import wants_gpu

FILES = {"sepal/__init__.py": "", "sepal/rng.py": "A = 1\n", "sepal/lazy.py": "B = 1\n", "client_app/app.py": "C = 1\n"}


def write(root, files=FILES):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def code(tmp_path):
    root = write(tmp_path / "installed")
    stamps = tuple(stamp(root / name) for name in FILES)
    digests = {name: digest(root / name) for name in FILES}
    return Code(root, digests, stamps, frozenset(FILES) - {"sepal/lazy.py"}, frozenset({"sepal", "client_app", "json"}))


def test_a_bundle_without_code_or_with_the_same_code_is_answered_by_a_fork(code, tmp_path):
    assert code.same_as(write(tmp_path / "none", {"pyproject.toml": ""}))
    assert code.same_as(write(tmp_path / "same"))
    assert code.same_as(write(tmp_path / "part", {"client_app/app.py": "C = 1\n", "users.py": "D = 1\n"}))


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, "sepal/rng.py": "A = 2\n"},
        {**FILES, "sepal/lazy.py": "B = 2\n"},  # not imported yet, but a later message may import it
        {**FILES, "sepal/more.py": ""},
        {name: text for name, text in FILES.items() if name != "sepal/rng.py"},
        {**FILES, "models.py": ""},
        {"json.py": ""},
        {"json/__init__.py": ""},
    ],
    ids=[
        "changed",
        "changed and not imported yet",
        "added",
        "removed",
        "a module that hides a package",
        "a module that would hide an imported one",
        "a package that would",
    ],
)
def test_a_bundle_with_other_code_is_not(code, tmp_path, files):
    assert not code.same_as(write(tmp_path / "bundle", files))


def test_an_upgrade_of_the_installation_is_seen(code):
    assert not code.changed()
    os.utime(code.root / "sepal/lazy.py", ns=(1, 1))
    assert code.changed()
    again = Code(code.root, code.digests, tuple(stamp(code.root / name) for name in FILES), code.imported, code.names)
    (code.root / "sepal/rng.py").unlink()
    assert again.changed()


def test_a_file_that_is_replaced_while_it_is_imported_is_an_upgrade(tmp_path, monkeypatch):
    """Otherwise a resident process that starts in the middle of an upgrade would answer with old code for good."""
    root = write(tmp_path / "installed")
    monkeypatch.setattr(sepal, "__file__", str(root / "sepal/__init__.py"))
    assert not Code.imported_by(lambda: None).changed()
    assert Code.imported_by(lambda: (root / "sepal/rng.py").write_text("A = 22\n")).changed()


def test_the_running_code_is_that_of_this_checkout(tmp_path):
    import client_app.app

    found = Code.imported_by(lambda: None)
    for name in ANSWERING:
        shutil.copytree(found.root / name, tmp_path / name)
    assert found.same_as(tmp_path)
    assert "torch" in found.names
    assert os.path.join("client_app", "app.py") in found.imported
    assert client_app.app.app is not None


def test_a_node_on_a_gpu_starts_cold():
    assert wants_gpu({"device": "cuda"})
    assert not wants_gpu({"device": "cpu"})


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
def test_a_fork_that_was_killed_is_answered_for(monkeypatch, code, ending, answered):
    found = []
    monkeypatch.setattr(
        warm, "answer", lambda spec, node, certificates, note, check: exec(ending, {"os": os, "note": note})
    )
    monkeypatch.setattr(warm, "answer_for", lambda *parts: found.append(parts))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    executor._same["f" * 64] = True
    executor.launch(task())
    end = time.monotonic() + 20
    while executor.children and time.monotonic() < end:
        executor.reconcile()
    assert not executor.children
    assert [(parts[0].task_id, parts[2]) for parts in found] == ([(7, b"outline")] if answered else [])


def test_other_code_and_other_tasks_get_flowers_own_process(monkeypatch, code, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    write(tmp_path / "apps" / f"sepal.sepal-fl.0.1.0.{'e' * 8}", {**FILES, "sepal/rng.py": "A = 2\n"})
    cold = []
    monkeypatch.setattr(warm.SubprocessExecutor, "launch", lambda self, spec: cold.append(spec.fab_hash))
    executor = warm.ForkExecutor(code, os.getpid(), None)
    executor.launch(task(fab="e" * 64))
    executor.launch(task(fab=""))
    assert cold == ["e" * 64, ""]
    assert not executor.children
