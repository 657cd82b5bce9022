"""A client's states by version: kept until they may go, replayed byte for byte, never half-written."""

from __future__ import annotations

import builtins
import errno
import os
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from sepal.client_app.state_store import DiskStateStore, Stored
from sepal.errors import DamagedError, StateError
from sepal.protocol.messages import Content, Reply, version
from sepal.protocol.types import ClientInfo, Kind
from sepal.storage import files as module
from sepal.storage.files import read_plain_tensors, read_tensors, write_atomically
from sepal.storage.serialize import digest


@dataclass(frozen=True)
class State:
    w: npt.NDArray[np.float32]
    note: str = ""


@dataclass(frozen=True)
class Another:
    v: int = 0


def entry(round: int, value: float = 0.0, base: str = "", request: str = "") -> tuple[str, Stored]:
    content = Content(bytes([round, 255, 0]), {"n": round, "x": 0.5, "t": True, "s": "é"})
    name = version(round, base, "d" * 64, content.digest() + str(value))
    reply = Reply("run-1", round, Kind.TRAIN, ClientInfo("a", 10, 0.5), base, "d" * 64, name, "s", {"seconds": 1.25})
    return name, Stored(request or f"train|{round}|{base}", State(np.full(3, value, np.float32), "x"), reply, content)


@pytest.fixture
def store(tmp_path):
    return DiskStateStore(tmp_path / "a", State)


def test_a_version_comes_back_whole(store):
    name, stored = entry(3, 1.5)
    store.save(name, stored)
    back = store.load(name)
    assert digest(back.state) == digest(stored.state)
    assert (back.request, back.reply, back.content) == (stored.request, stored.reply, stored.content)
    assert back.content.digest() == stored.content.digest()


def test_an_empty_upload_comes_back_empty(store):
    name, stored = entry(3)
    store.save(name, replace(stored, content=Content()))
    assert store.load(name).content == Content()


def test_an_unknown_version_is_none(store):
    name, stored = entry(3)
    store.save(name, stored)
    assert store.load(entry(4)[0]) is None
    assert store.load("") is None


def test_answered_finds_the_same_request_of_the_same_round_only(store):
    (first_version, first), (second_version, second) = (
        entry(3, 1, request="train|3|x"),
        entry(3, 2, request="train|3|y"),
    )
    store.save(first_version, first)
    store.save(second_version, second)
    assert store.answered(3, "train|3|x").reply.version == first_version
    assert store.answered(3, "train|3|y").reply.version == second_version
    assert store.answered(3, "train|3|z") is None
    assert store.answered(4, "train|3|x") is None


def test_prune_keeps_durable_and_everything_newer(store):
    """By number, not by text: 10 is newer than 9."""
    names = {}
    for round in (1, 9, 10, 11):
        names[round], stored = entry(round)
        store.save(names[round], stored)
    same_round, stored = entry(9, 7.0)
    store.save(same_round, stored)
    store.prune("")
    assert all(store.load(name) for name in names.values())
    store.prune(names[9])
    assert store.load(names[1]) is None
    assert all(store.load(name) for name in (names[9], same_round, names[10], names[11]))
    store.prune(names[10])
    assert store.load(same_round) is None
    assert store.load(names[10])


def test_stores_have_different_identities_and_a_reopened_one_keeps_its(tmp_path):
    first = DiskStateStore(tmp_path / "a", State)
    assert DiskStateStore(tmp_path / "a", State).identity == first.identity
    assert DiskStateStore(tmp_path / "b", State).identity != first.identity


def test_a_reopened_store_has_its_versions(tmp_path):
    name, stored = entry(2, 4.0)
    DiskStateStore(tmp_path, State).save(name, stored)
    assert DiskStateStore(tmp_path, State).load(name).state.w.tolist() == [4, 4, 4]


def test_two_processes_do_not_change_one_store(tmp_path):
    """The kernel lets go of a killed process's lock; until then a second one waits, and says what is in the way."""
    first, second = (DiskStateStore(tmp_path, State) for _ in range(2))
    half_written = tmp_path / ".1-abc.safetensors.0123abcd.part"
    half_written.write_bytes(b"half")
    with first.lock():
        assert not half_written.exists()
        with pytest.raises(StateError, match="expected one process at a time, got another one"), second.lock(0.1):
            pass
    with second.lock(0.1):
        pass


def file_of(directory, name):
    return directory / f"{name}.safetensors"


def test_a_file_that_is_cut_anywhere_or_has_one_bit_flipped_is_set_aside(tmp_path, caplog):
    store = DiskStateStore(tmp_path, State)
    name, stored = entry(2, 4.0)
    store.save(name, stored)
    whole = file_of(tmp_path, name).read_bytes()
    cuts = [whole[:n] for n in (0, 1, 7, 8, 40, len(whole) // 2, len(whole) - 1)]
    flips = [bytearray(whole) for _ in range(0, len(whole), 13)]
    for number, flipped in enumerate(flips):
        flipped[number * 13] ^= 1 << (number % 8)
    for data in (*cuts, *map(bytes, flips)):
        file_of(tmp_path, name).write_bytes(data)
        assert store.load(name) is None
        assert file_of(tmp_path, name).with_suffix(".damaged").read_bytes() == data
        assert not file_of(tmp_path, name).exists()
        assert "set aside" in caplog.text
        assert store.answered(2, stored.request) is None
        caplog.clear()


def test_a_state_of_another_kind_is_refused_and_left_in_place(tmp_path):
    name, stored = entry(2)
    DiskStateStore(tmp_path, State).save(name, stored)
    with pytest.raises(StateError, match="Another: expected the fields v"):
        DiskStateStore(tmp_path, Another).load(name)
    assert file_of(tmp_path, name).exists()


def test_a_torn_write_is_not_a_version(tmp_path):
    store = DiskStateStore(tmp_path, State)
    name, stored = entry(2)
    store.save(name, stored)
    (tmp_path / f".{entry(3)[0]}.safetensors.0123abcd.part").write_bytes(b"half")
    assert store.load(entry(3)[0]) is None
    assert store.answered(3, entry(3)[1].request) is None
    store.prune(name)
    assert store.load(name)


@pytest.mark.parametrize("fault", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path, monkeypatch, fault, number):
    store = DiskStateStore(tmp_path, State)
    (old, before), (new, after) = entry(2), entry(3)
    store.save(old, before)
    listed = sorted(os.listdir(tmp_path))

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    class Full:
        def __init__(self, *args, **kwargs):
            self.file = original(*args, **kwargs)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        write = flush = fail

    original = builtins.open
    if fault in ("open", "write"):
        monkeypatch.setattr(builtins, "open", fail if fault == "open" else Full)
    elif fault == "fsync":
        monkeypatch.setattr(module.os, "fsync", fail)
    else:
        monkeypatch.setattr(module.Path, "replace", fail)
    with pytest.raises(StateError, match=f"room and permission to write [0-9,]+ bytes, got {os.strerror(number)}"):
        store.save(new, after)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == listed
    assert store.load(old)
    assert store.load(new) is None


def test_an_overwritten_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(StateError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_what_is_durable_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(module.os, "fsync", lambda handle: done.append(os.readlink(f"/proc/self/fd/{handle}")))
    write_atomically(tmp_path / "file", b"x")
    assert len(done) == 2
    assert done[0].endswith(".part")
    assert done[1] == str(tmp_path)
    write_atomically(tmp_path / "file", b"x", sync=False)
    assert len(done) == 2


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="a directory that can be made"):
        DiskStateStore(tmp_path / "file" / "client", State)


def test_a_safetensors_file_of_somebody_else_is_not_a_state(tmp_path):
    from safetensors.numpy import save

    path = tmp_path / "x.safetensors"
    path.write_bytes(save({"w": np.zeros(2, np.float32)}))
    with pytest.raises(DamagedError, match="a readable state file"):
        read_tensors(path)
    assert list(read_plain_tensors(path)) == ["w"]
    with pytest.raises(StateError, match="a safetensors file"):
        read_plain_tensors(tmp_path / "nothing")
