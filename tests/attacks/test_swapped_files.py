"""Files that are whole but lie under another one's name: each says what it is, and its digest covers that."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import numpy as np
import pytest

from sepal.client_app.state_store import DiskStateStore, Stored, VersionOrigin
from sepal.errors import StateError
from sepal.protocol.messages import Content, Order, Reply, version
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.server.run_store import DiskRunStore
from tests.sepal.server.test_resume import federation, killed, outcome, serve


def swap(first, second):
    shutil.move(first, first.with_suffix(".swap"))
    shutil.move(second, first)
    shutil.move(first.with_suffix(".swap"), second)


@pytest.mark.parametrize("files", ["uploads", "stale upload", "record", "checkpoint"])
@pytest.mark.timeout(60)
def test_files_of_the_server_under_anothers_name_change_nothing(files, tmp_path):
    """Killed in round 6: checkpoints 2 and 4; rounds 3, 4 and 5 recorded. The record was an endless loop."""
    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 6)
    server = tmp_path / "server"
    if files == "uploads":
        swap(
            server / "uploads" / "000005" / "client-1.safetensors",
            server / "uploads" / "000005" / "client-2.safetensors",
        )
    elif files == "stale upload":
        shutil.copy(
            server / "uploads" / "000004" / "client-1.safetensors",
            server / "uploads" / "000005" / "client-1.safetensors",
        )
    elif files == "record":
        shutil.copy(server / "records" / "000004", server / "records" / "000005")
    else:
        shutil.copy(server / "round-000002.safetensors", server / "round-000004.safetensors")
    assert outcome(serve(subject, tmp_path)) == outcome(whole)


def test_a_record_of_another_run_is_refused(tmp_path):
    for name in ("one", "two"):
        killed(federation(tmp_path=tmp_path / name), tmp_path / name, 6)
    shutil.copy(tmp_path / "two" / "server" / "records" / "000001", tmp_path / "one" / "server" / "records" / "000001")
    with pytest.raises(StateError, match="the record of round 1 of run"):
        serve(federation(tmp_path=tmp_path / "one"), tmp_path / "one")


@dataclass(frozen=True)
class State:
    w: np.ndarray


def save(store, round):
    name = version(round, "", "d", "u")
    reply = Reply("run", round, Kind.TRAIN, ClientInfo("a", 1), "", "d", name)
    origin = VersionOrigin(Order("run", Kind.TRAIN, Plan(round)), Content(b"x"))
    store.save(name, Stored("request", State(np.full(2, round, np.float32)), reply, Content(b"u")), origin)
    return name


@pytest.mark.parametrize("suffix", ["safetensors", "origin"])
@pytest.mark.parametrize("whose", ["another version", "another client"])
def test_a_clients_files_under_anothers_name_are_not_read(suffix, whose, tmp_path):
    store = DiskStateStore(tmp_path / "a", State)
    first, second = save(store, 1), save(store, 2)
    assert store.load(first).state.w[0] == 1
    if whose == "another version":
        swap(tmp_path / "a" / f"{first}.{suffix}", tmp_path / "a" / f"{second}.{suffix}")
    else:
        save(DiskStateStore(tmp_path / "b", State), 1)
        shutil.copy(tmp_path / "b" / f"{first}.{suffix}", tmp_path / "a" / f"{first}.{suffix}")
    assert (store.load(first) if suffix == "safetensors" else store.origin(first)) is None


def test_a_client_whose_two_states_were_swapped_ends_the_same(tmp_path):
    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 6)
    directory = tmp_path / "clients" / "client-1"
    files = sorted(directory.glob("*.safetensors"), key=lambda path: int(path.name.partition("-")[0]))
    swap(files[-1], files[-2])
    assert outcome(serve(subject, tmp_path)) == outcome(whole)


@pytest.mark.parametrize("files", ["an earlier one", "a later name", "another run"])
def test_a_checkpoint_under_anothers_name_is_set_aside(files, tmp_path):
    """Under a later name it would be taken for the newest for ever, after the uploads that follow it were deleted."""
    for name in ("one", "two"):
        killed(federation(tmp_path=tmp_path / name), tmp_path / name, 6)
    server, other_server = tmp_path / "one" / "server", tmp_path / "two" / "server"
    source, target, rounds = {
        "an earlier one": (server / "round-000002", server / "round-000004", [2]),
        "a later name": (server / "round-000002", server / "round-000040", [2, 4]),
        "another run": (other_server / "round-000002", server / "round-000002", [4]),
    }[files]
    shutil.copy(source.with_suffix(".safetensors"), target.with_suffix(".safetensors"))
    store = DiskRunStore(server, federation().method.server_state)
    assert store.latest().round == rounds[-1]
    assert [path.name for path in store._files()] == [f"round-{round:06d}.safetensors" for round in rounds]
    assert target.with_suffix(".damaged").exists()
