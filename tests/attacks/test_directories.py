"""Directories that another user made before, or may write to: refused before anything in them is read or written."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from sepal.client_app import state_store
from sepal.client_app.state_store import DiskStateStore, Stored, VersionOrigin
from sepal.data.cache import exclusive
from sepal.errors import StateError
from sepal.protocol.messages import Content, Order, Reply, version
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.runs.json_lines import append, keep_until
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.run_store import evict
from sepal.storage.files import append_durably
from sepal.storage.home import private_home
from sepal.strategies.assembly import assemble
from sepal.study import cleaning
from sepal.study.clusters.records import Submission, log_file, note_look, watched_jobs, write_submission
from sepal.study.plans.execute import execute
from sepal.study.plans.model import PlannedRun


@dataclass(frozen=True)
class State:
    """A client's state."""

    number: int = 1


OPENED = {
    "run": lambda path: RunDirectory(path, assemble({"dataset": "digits"}), IN_PROCESS),
    "states": lambda path: DiskStateStore(path, dict),
    "SEPAL_HOME": lambda path: private_home(),
    "eviction": lambda path: evict(path, "client-1"),
}


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A directory that is there before Sepal opens it, also as SEPAL_HOME."""
    path = tmp_path / "planted"
    path.mkdir()
    path.chmod(0o755)
    monkeypatch.setenv("SEPAL_HOME", str(path))
    return path


@pytest.fixture
def another(monkeypatch):
    """A function that gives a path to another user; where this is not allowed, this process becomes another user."""

    def give(path):
        user = os.geteuid()
        if user == 0:
            os.chown(path, 54321, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.mark.parametrize("opened", OPENED)
def test_a_directory_that_another_user_made_is_refused_and_left_alone(opened, planted, another):
    """A run cut metrics.jsonl to the rounds that count, also where it was a link."""
    victim = planted.parent / "victim"
    victim.write_text("precious\n")
    for name in ("metrics.jsonl", "ledger.jsonl"):
        (planted / name).symlink_to(victim)
    another(planted)
    with pytest.raises(StateError, match=r"planted: expected a directory of this user .uid \d+., .*, got one of uid"):
        OPENED[opened](planted)
    assert {path.name for path in planted.iterdir()} == {"metrics.jsonl", "ledger.jsonl"}
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize(("mode", "who"), [(0o775, "its group"), (0o757, "others"), (0o1777, "others")])
@pytest.mark.parametrize("opened", OPENED)
def test_a_directory_that_another_user_may_write_to_is_refused(opened, mode, who, planted):
    planted.chmod(mode)
    words = f"planted: expected a directory that only its owner may write to .*, got one that {who} may write to"
    with pytest.raises(StateError, match=f"{words}, mode {mode:o}"):
        OPENED[opened](planted)
    assert not list(planted.iterdir())


@pytest.mark.parametrize("opened", OPENED)
def test_a_link_to_a_directory_is_followed_only_if_it_is_this_users(opened, planted, another, monkeypatch):
    link = planted.parent / "link"
    link.symlink_to(planted)
    monkeypatch.setenv("SEPAL_HOME", str(link))
    if isinstance(run := OPENED[opened](link), RunDirectory):
        run.close()
    another(link)
    with pytest.raises(StateError, match="link: expected a directory of this user"):
        OPENED[opened](link)


def test_what_sepal_makes_passes_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    before = os.umask(0)
    try:
        for _ in range(2):
            assert private_home().stat().st_mode & 0o777 == 0o700
            with RunDirectory(tmp_path / "runs" / "r", assemble({"dataset": "digits"}), IN_PROCESS):
                pass
            DiskStateStore(private_home() / "state" / "run" / "client-1", dict)
    finally:
        os.umask(before)


LED = [
    "metrics.jsonl",
    "ledger.jsonl",
    "summary.json",
    "checkpoints",
    "checkpoints/records",
    "checkpoints/uploads",
    "checkpoints/uploads/000002",
    "checkpoints/best.safetensors",
    "claims",
    "clients",
    "clients/client-1/lock",
]


@pytest.mark.parametrize("where", ["file", "directory", "nothing"])
@pytest.mark.parametrize("name", LED)
def test_a_run_that_leads_elsewhere_is_not_continued(name, where, planted):
    """Continued, it emptied the file to which metrics.jsonl led, and removed directories beside those of uploads."""
    victim, link = planted.parent / "victim", planted / name
    if where == "directory":
        (victim / "202401").mkdir(parents=True)
    elif where == "file":
        victim.write_text("precious\n")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    with pytest.raises(StateError, match=r"expected nothing, or a file or directory in .*, got a link that leads out"):
        OPENED["run"](planted)
    assert [path.name for path in planted.iterdir()] == [name.partition("/")[0]]
    if where == "file":
        assert victim.read_text() == "precious\n"
    elif where == "directory":
        assert [path.name for path in victim.iterdir()] == ["202401"]
    else:
        assert not victim.exists()


def test_a_run_with_a_pipe_is_not_continued(planted):
    os.mkfifo(planted / "metrics.jsonl")
    with pytest.raises(StateError, match=r"metrics\.jsonl: expected a regular file, got a pipe, socket or device"):
        OPENED["run"](planted)


def test_a_run_with_a_link_that_stays_in_it_is_continued(planted):
    (planted / "config.toml").write_text("")
    (planted / "notes").symlink_to("config.toml")
    OPENED["run"](planted).close()
    assert (planted / "notes").is_symlink()


def test_a_plan_writes_no_run_through_a_link_out_of_its_directory(planted):
    run, victim = PlannedRun("", "", "", 0, {"name": "a", "dataset": "digits"}), planted.parent / "victim"
    victim.mkdir()
    (planted / run.name).symlink_to(victim)
    with pytest.raises(StateError, match=r"a: expected nothing, or a file or directory in .*, got a link that leads"):
        execute([run], planted, nullcontext(), hours=1)
    assert not list(victim.iterdir())


# What is written in place, each with what writes it: all else is replaced, and so never written through a further name.
IN_PLACE = {
    "metrics.jsonl": lambda run: append(run / "metrics.jsonl", [{"round": 1}]),
    "metrics.jsonl that is cut off": lambda run: keep_until(run / "metrics.jsonl", 0),
    "ledger.jsonl by a link": lambda run: append(linked(run / "ledger.jsonl"), [{"round": 1}]),
    "releases": lambda run: append_durably(run / "releases", b"1 a\n"),
    "looked": note_look,
    "log.txt": lambda run: append(written_by_cluster(run), [{"round": 1}]),
}
LOCKS = {
    "run": OPENED["run"],
    "job": lambda run: RunDirectory(run, assemble({"dataset": "digits"}), IN_PROCESS, job="slurm 1, start 1"),
    "states": lambda run: DiskStateStore(run, dict).lock().__enter__(),
    "jobs": watched_jobs,
}
NAME_OF_LOCK = {"run": ".lock", "job": ".lock", "states": "lock", "jobs": "jobs/.lock"}


def linked(path):
    path.rename(path.with_name("same"))
    path.symlink_to("same")
    return path


def written_by_cluster(run):
    """The file that a job's cluster opens itself, once Sepal has submitted it."""
    write_submission(run, Submission("r"))
    return log_file(run, "r")


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_further_name_of_a_file_elsewhere_is_not_written_through(name, planted):
    """An archive can make such a name for any file below the directory in which it is unpacked."""
    victim, file = planted.parent / "victim", name.partition(" ")[0]
    path = log_file(planted, "r") if file == "log.txt" else planted / file
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    victim.write_text("precious\n")
    os.link(victim, path)
    os.utime(victim, (1, 1))
    IN_PLACE[name](planted)
    assert victim.read_text() == "precious\n"
    assert victim.stat().st_mtime == 1
    changed = path.stat().st_mtime > 1 and (file == "looked" or path.read_text() != "precious\n")
    assert changed, "or the test shows nothing"


def test_a_run_whose_files_have_further_names_is_continued(planted):
    """As after `cp -al`, whose copy stays as it was."""
    append(planted / "metrics.jsonl", [{"round": 1}])
    os.link(planted / "metrics.jsonl", planted.parent / "copy")
    append(planted / "metrics.jsonl", [{"round": 2}])
    assert (planted.parent / "copy").read_text() == '{"round": 1}\n'
    assert (planted / "metrics.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n'


@pytest.mark.parametrize("opened", LOCKS)
def test_a_lock_that_is_a_further_name_of_another_file_is_not_opened(opened, planted):
    """Versions of filelock before 4 would empty it."""
    victim, lock = planted.parent / "victim", planted / NAME_OF_LOCK[opened]
    lock.parent.mkdir(mode=0o700, exist_ok=True)
    victim.write_text("precious\n")
    os.link(victim, lock)
    with pytest.raises(StateError, match=r"lock: expected a file of its own, got a further name of another file"):
        LOCKS[opened](planted)
    assert victim.read_text() == "precious\n"


def test_no_cache_and_no_cleaning_opens_such_a_lock(planted, monkeypatch):
    victim, state = planted.parent / "victim", planted / ("0" * 32) / "client-1"
    victim.write_text("precious\n")
    (planted / "cache").mkdir()
    os.link(victim, planted / "cache" / ".entry.lock")
    state.mkdir(mode=0o700, parents=True)
    (state / f"{version(1, '', '', '')}.safetensors").write_text("")
    os.link(victim, state / "lock")
    monkeypatch.setattr("filelock.FileLock", lambda *path, **keys: pytest.fail(f"{path} is opened"))
    monkeypatch.setattr(cleaning, "FileLock", lambda *path, **keys: pytest.fail(f"{path} is opened"))
    with exclusive(planted / "cache" / "entry"):
        pass
    (item,) = cleaning.leftovers(0, "0" * 32, planted)
    assert not item.stays
    assert not cleaning.remove(item)
    assert victim.read_text() == "precious\n"


@pytest.mark.parametrize("kind", ["safetensors", "origin"])
def test_no_version_of_a_state_is_a_file_elsewhere(kind, planted, monkeypatch):
    """The digest of what is elsewhere fits: the state, and who it is of, are this client's."""
    store = DiskStateStore(planted, State)
    reply = Reply("run", 1, Kind.TRAIN, ClientInfo("client-1", 1, 1.0, "cpu"))
    order = Order("run", Kind.TRAIN, Plan(1))
    name = version(1, "", "", "")
    store.save(name, Stored("", State(), reply, Content()), VersionOrigin(order, Content()))
    file, read = planted / f"{name}.{kind}", {"safetensors": store.load, "origin": store.origin}[kind]
    assert read(name) is not None
    file.rename(planted.parent / "elsewhere")
    file.symlink_to(planted.parent / "elsewhere")
    monkeypatch.setattr(state_store, "read_tensors", lambda path: pytest.fail(f"{path} is read"))
    assert read(name) is None
    assert file.is_symlink()
