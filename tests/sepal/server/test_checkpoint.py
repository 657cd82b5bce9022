"""The server's memory: checkpoints, records, uploads, and what happens when one of its files is damaged."""

from __future__ import annotations

import errno
import logging
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt
import pytest

from sepal.errors import DamagedError, StateError
from sepal.protocol.messages import Content, Reply, version
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.ledger import LedgerEntry
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from sepal.storage import files as files_module
from sepal.storage.serialize import digest


@dataclass(frozen=True)
class Server:
    w: npt.NDArray[np.float32]
    queues: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class AnotherServer:
    z: int


def progress(round: int) -> RunState:
    names = ("a", "b")
    return RunState(
        "run-1",
        round,
        Server(np.full(3, round, np.float32), {"a": np.ones(2, np.float32)}),
        "w" * 64,
        {name: version(round, "", name, "") for name in names},
        {name: f"store-{name}" for name in names},
        {name: ClientInfo(name, 10, 0.5, "cuda") for name in names},
    )


def record(round: int) -> RoundRecord:
    reply = Reply("run-1", round, Kind.TRAIN, ClientInfo("a", 10), "", "d", "", "s", {"received.correct": 3.0})
    entry = LedgerEntry(round, "b", "training", "up", 0, 0, 0, "missing", "no reply within 2 s")
    return RoundRecord(
        round, ("a", "b"), (ClientInfo("b", 3),), {"b": "x"}, {"a": reply}, (entry,), False, {"total": 1}
    )


@pytest.fixture
def store(tmp_path):
    return DiskRunStore(tmp_path / "server", Server)


def reopened(tmp_path):
    return DiskRunStore(tmp_path / "server", Server)


def test_a_new_run_has_nothing(store):
    assert store.latest() is None
    assert store.replay(1) is None
    assert store.durable() == {}


def test_a_checkpoint_comes_back_whole(store, tmp_path):
    store.checkpoint(progress(3))
    back = reopened(tmp_path).latest()
    assert digest(back.server) == digest(progress(3).server)
    assert replace(back, server=None) == replace(progress(3), server=None)


def test_the_newest_serves_and_two_are_kept(store, tmp_path):
    for round in (0, 2, 4, 6):
        store.checkpoint(progress(round))
    assert reopened(tmp_path).latest().round == 6
    names = sorted(path.name for path in (tmp_path / "server").glob("*.safetensors"))
    assert names == ["round-000004.safetensors", "round-000006.safetensors"]


def test_durable_is_what_the_older_checkpoint_may_ask_for(store, tmp_path):
    store.checkpoint(progress(2))
    store.checkpoint(progress(4))
    assert store.durable() == progress(2).versions
    store.checkpoint(progress(6))
    assert store.durable() == progress(4).versions
    again = reopened(tmp_path)
    again.latest()
    assert again.durable() == progress(4).versions


def test_a_kill_before_the_third_checkpoint_is_deleted_changes_no_message(store, tmp_path, monkeypatch):
    """After rounds 1, 2 and 3 clients are told of the versions of round 2, the older of two, also then."""
    store.checkpoint(progress(1))
    store.checkpoint(progress(2))
    with monkeypatch.context() as killed:
        killed.setattr(type(tmp_path), "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.checkpoint(progress(3))
    continued = reopened(tmp_path)
    assert continued.rounds() == [1, 2, 3]
    assert continued.latest().round == 3
    assert continued.durable() == progress(2).versions


def test_a_round_comes_back(store, tmp_path):
    content = Content(b"\x00\xff" * 5, {"loss": 0.5, "n": 3, "flag": True, "text": "é"})
    store.spool(5, "a", content)
    store.spool(5, "b", Content())
    assert store.replay(5) is None, "spooled uploads alone are no completed round"
    store.commit(record(5))
    again = reopened(tmp_path)
    assert again.replay(5) == record(5)
    assert again.read(5, "a") == content
    assert again.read(5, "b") == Content()
    assert again.replay(6) is None


def test_uploads_go_when_no_checkpoint_needs_them_and_records_stay(store, tmp_path):
    for round in range(1, 7):
        store.spool(round, "a", Content(b"x"))
        store.commit(record(round))
        if round % 2 == 0:
            store.checkpoint(progress(round))
    assert sorted(path.name for path in (tmp_path / "server" / "uploads").iterdir()) == ["000005", "000006"]
    assert [stored.round for stored in store.records(6)] == [1, 2, 3, 4, 5, 6]


def test_a_round_that_is_run_again_lets_go_of_what_followed_it(store, tmp_path):
    for round in (1, 2, 3):
        store.spool(round, "a", Content(b"x"))
        store.commit(record(round))
    store.commit(record(2))
    assert store.replay(3) is None
    assert not (tmp_path / "server" / "uploads" / "000003").exists()


@pytest.mark.parametrize("how", ["cut", "empty", "tail", "head", "missing"])
def test_a_record_before_the_checkpoint_that_cannot_be_read_is_named(store, tmp_path, how):
    for round in (1, 2, 3):
        store.commit(record(round))
    path = tmp_path / "server" / "records" / "000002"
    path.unlink() if how == "missing" else damage(path, how)
    with pytest.raises(DamagedError, match="records/000002: expected"):
        list(reopened(tmp_path).records(3))


def test_a_checkpoint_holds_what_recovery_needs_and_no_figures():
    """A figure in here would change the format of every checkpoint with each new figure."""
    names = {"run", "round", "server", "weights", "versions", "stores", "roster", "closed", "novel", "evicted"}
    assert {field.name for field in fields(RunState)} == {*names, "began", "restarting", "clip"}


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = bytearray()
    else:
        data[-2 if how == "tail" else 60] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["cut", "empty", "tail", "head"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_says_so(store, tmp_path, how, caplog):
    for round in (2, 4):
        store.commit(record(round + 1))
        store.checkpoint(progress(round))
    damage(tmp_path / "server" / "round-000004.safetensors", how)
    again = reopened(tmp_path)
    with caplog.at_level(logging.WARNING):
        checkpoint = again.latest()
    assert checkpoint.round == 2
    assert "round-000004.safetensors" in caplog.text
    assert "using the checkpoint before it" in caplog.text
    assert again.replay(3), "the record since the older checkpoint is still there"
    assert again.durable() == progress(2).versions
    assert (tmp_path / "server" / "round-000004.damaged").exists()
    again.checkpoint(progress(4))
    assert reopened(tmp_path).latest().round == 4


def test_a_run_whose_checkpoints_are_all_damaged_is_not_taken_for_a_new_one(store, tmp_path):
    for round in (2, 4):
        store.checkpoint(progress(round))
        damage(tmp_path / "server" / f"round-{round:06d}.safetensors", "cut")
    for _ in range(2):  # also when asked again, after the files were set aside
        with pytest.raises(StateError, match=r"a checkpoint that can be read, got round-000002.damaged"):
            reopened(tmp_path).latest()


def test_a_checkpoint_of_another_method_is_refused_and_left_in_place(store, tmp_path):
    store.checkpoint(progress(2))
    with pytest.raises(StateError, match="a checkpoint of this method") as caught:
        DiskRunStore(tmp_path / "server", AnotherServer).latest()
    assert not isinstance(caught.value, DamagedError)
    assert reopened(tmp_path).latest().round == 2


@pytest.mark.parametrize("how", ["cut", "empty", "tail", "head"])
def test_a_damaged_record_of_a_round_is_named(store, tmp_path, how):
    store.commit(record(5))
    damage(tmp_path / "server" / "records" / "000005", how)
    with pytest.raises(DamagedError, match="records/000005: expected"):
        reopened(tmp_path).replay(5)


@pytest.mark.parametrize("how", ["cut", "empty", "tail"])
def test_a_damaged_upload_is_named(store, tmp_path, how):
    store.spool(5, "a", Content(b"12345678", {"n": 1}))
    damage(tmp_path / "server" / "uploads" / "000005" / "a.safetensors", how)
    with pytest.raises(DamagedError, match=r"uploads/000005/a.safetensors"):
        reopened(tmp_path).read(5, "a")
    with pytest.raises(DamagedError):
        reopened(tmp_path).read(5, "nobody")


def test_a_torn_write_is_no_checkpoint_and_no_round(store, tmp_path):
    store.checkpoint(progress(2))
    (tmp_path / "server" / ".round-000004.safetensors.0123abcd.part").write_bytes(b"half")
    (tmp_path / "server" / "records" / ".000003.0123abcd.part").write_bytes(b"half")
    again = reopened(tmp_path)
    assert again.latest().round == 2
    assert again.replay(3) is None


@pytest.mark.parametrize("step", ["spool", "commit", "checkpoint"])
def test_a_full_disk_leaves_nothing_half_written(store, tmp_path, monkeypatch, step):
    store.checkpoint(progress(2))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files_module.os, "fsync", fail)
    call = {
        "spool": lambda: store.spool(3, "a", Content(b"x")),
        "commit": lambda: store.commit(record(3)),
        "checkpoint": lambda: store.checkpoint(progress(4)),
    }[step]
    with pytest.raises(StateError, match="No space left on device"):
        call()
    monkeypatch.undo()
    files = [name for _, _, names in os.walk(tmp_path) for name in names]
    assert files == ["round-000002.safetensors"]
    assert reopened(tmp_path).latest().round == 2
    assert reopened(tmp_path).replay(3) is None
    call()


def test_in_memory_one_round_and_one_state_are_kept():
    """Of the checkpoint before, only the versions: a third copy of a large server state is not held."""
    store, states = MemoryRunStore(), []
    assert store.latest() is None
    assert store.durable() == {}
    for round in (1, 2, 3):
        store.spool(round, "a", Content(bytes([round])))
        store.commit(record(round))
        store.checkpoint(state := progress(round))
        states.append(weakref.ref(state))
        del state
    assert [state() is None for state in states] == [True, True, False]
    assert store.read(3, "a").data == b"\x03"
    with pytest.raises(KeyError):
        store.read(2, "a")
    assert store.latest().round == 3
    assert store.durable() == progress(2).versions
    assert store.replay(3) is None
