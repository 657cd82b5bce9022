"""A server that comes back: to the same end, whatever it finds damaged, or with one clear word why not."""

from __future__ import annotations

import errno
from dataclasses import replace

import numpy as np
import pytest

from sepal.errors import RosterError, StateError
from sepal.layout import Parameter, Role
from sepal.method.interface import RunSetup
from sepal.server.contact import Contact
from sepal.server.run_store import DiskRunStore
from sepal.server.run_store import disk as checkpoint_module
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES, SIZE
from tests.contract.harness import Federation, Killed

KINDS = pytest.mark.parametrize("kind", ["queue", "lag"])


class Lines:
    def __init__(self):
        self.rounds, self.ended, self.records = [], 0, []

    def opened(self, progress, total):
        self.start = progress.round

    def round(self, progress, record, line):
        self.rounds.append(record.round)
        self.records.append(record)

    def closed(self, progress, line):
        self.ended += 1


def federation(kind="queue", tmp_path=None, **settings) -> Federation:
    values = {"checkpoint_every": 2, "evaluate_every": 0, "timeout": 5.0, **settings}
    directory = tmp_path / "clients" if tmp_path else None
    return Federation(FAKES[kind][0], rounds=6, settings=values, directory=directory)


def serve(subject, tmp_path, lines=None):
    strategy = subject.server(DiskRunStore(tmp_path / "server", subject.method.server_state))
    strategy._observers = [lines or Lines()]
    return subject.run(strategy=strategy)


def outcome(strategy):
    totals = strategy.report.totals
    sizes = totals.training.up, totals.training.down, totals.closing.down
    return digest(strategy.progress.server), dict(strategy.report.digests), sizes


def killed(subject, tmp_path, round):
    subject.killed_at = round
    with pytest.raises(Killed):
        serve(subject, tmp_path)
    subject.killed_at = 0


def damage(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


@KINDS
@pytest.mark.parametrize("damaged_file", ["checkpoint", "record", "upload", "first record", "nothing"])
def test_a_run_ends_the_same_whatever_was_damaged(kind, damaged_file, tmp_path, caplog):
    """Killed in round 6: checkpoints 2 and 4, rounds 3, 4 and 5 recorded."""
    whole = federation(kind).run()
    subject = federation(kind, tmp_path)
    killed(subject, tmp_path, 6)
    server = tmp_path / "server"
    damaged = {
        "checkpoint": [server / "round-000004.safetensors"],
        "record": [server / "records" / "000005"],
        "upload": [server / "uploads" / "000005" / "client-2.safetensors"],
        "first record": [server / "round-000004.safetensors", server / "records" / "000003"],
        "nothing": [],
    }[damaged_file]
    for path in damaged:
        damage(path)
    before, lines = len(subject.trained), Lines()
    strategy = serve(subject, tmp_path, lines)
    assert outcome(strategy) == outcome(whole)
    assert lines.start == (2 if "round-000004" in str(damaged) else 4)
    assert lines.rounds == list(range(lines.start + 1, 8)), "each round once, replayed or run again"
    assert lines.ended == 1
    assert {path.name for path in damaged} <= {
        word.rpartition("/")[2] for word in caplog.text.replace(":", " ").split()
    }
    asked_again = {round for round, _ in subject.trained[before:]}
    first = {"record": 5, "upload": 5, "first record": 3}.get(damaged_file, 6)
    assert min(asked_again) == first


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_run_whose_figures_cannot_be_computed_is_refused_by_name(how, tmp_path):
    """Round 1 lies before both checkpoints: nothing can run it again, and totals without it would be wrong."""
    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 6)
    path = tmp_path / "server" / "records" / "000001"
    content = path.read_bytes()
    damage(path) if how == "damaged" else path.unlink()
    with pytest.raises(StateError, match="records/000001: expected"):
        serve(subject, tmp_path)
    path.write_bytes(content)
    assert outcome(serve(subject, tmp_path)) == outcome(federation().run()), "with the file back, it goes on"


def test_a_killed_checkpoint_of_the_closing_round_ends_at_once(tmp_path, monkeypatch):
    """Killed between the closing round's record and its checkpoint: nobody is asked again."""
    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    written = DiskRunStore.checkpoint

    def die(store, progress):
        if progress.round == 7:
            raise Killed
        written(store, progress)

    monkeypatch.setattr(checkpoint_module.DiskRunStore, "checkpoint", die)
    with pytest.raises(Killed):
        serve(subject, tmp_path)
    monkeypatch.undo()
    before, lines = len(subject.trained), Lines()
    strategy = serve(subject, tmp_path, lines)
    assert outcome(strategy) == outcome(whole)
    assert len(subject.trained) == before
    assert (lines.rounds, lines.ended) == ([7], 1)
    again = serve(subject, tmp_path)
    assert outcome(again) == outcome(whole)


@pytest.mark.parametrize("change", ["values", "shape", "name"])
def test_a_run_is_not_continued_with_another_model(change, tmp_path):
    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 4)
    setup = subject.setup
    if change == "values":
        subject.setup = replace(setup, weights={"w": setup.weights["w"] + np.float32(1)})
    elif change == "shape":
        start = np.zeros(SIZE + 1, np.float32)
        subject.setup = RunSetup((Parameter("w", (SIZE + 1,), Role.WEIGHT),), {"w": start}, setup.config, setup.hyper)
    else:
        both = {**setup.weights, "v": np.zeros(1, np.float32)}
        layout = (*setup.layout, Parameter("v", (1,), Role.BIAS))
        subject.setup = RunSetup(layout, both, setup.config, setup.hyper)
    with pytest.raises(StateError) as caught:
        serve(subject, tmp_path)
    assert caught.value.key == "initial weights"
    assert "with which the run was started" in caught.value.expected
    for cause in ("another model, seed or file", "another shape", "version of Sepal"):
        assert cause in caught.value.got
    subject.setup = setup
    assert serve(subject, tmp_path).progress.round == 7, "the right one goes on"


@pytest.mark.parametrize("round", [1, 3])
def test_a_full_disk_ends_the_run_and_it_can_be_continued(round, tmp_path, monkeypatch):
    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    written = checkpoint_module.write_tensors

    def full(path, *rest, **options):
        if path.name == "client-2.safetensors" and path.parent.name == f"{round:06d}":
            raise StateError(str(path), "room and permission to write", "No space left on device")
        written(path, *rest, **options)

    monkeypatch.setattr(checkpoint_module, "write_tensors", full)
    with pytest.raises(StateError, match="No space left on device"):
        serve(subject, tmp_path)
    monkeypatch.undo()
    assert outcome(serve(subject, tmp_path)) == outcome(whole)


def test_a_client_whose_disk_is_full_ends_the_run_in_its_words_and_it_can_be_continued(tmp_path, monkeypatch):
    from sepal.errors import RoundError
    from sepal.storage import files

    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    write = files.os.fsync

    def full(handle):
        name = files.os.readlink(f"/proc/self/fd/{handle}")
        if "/clients/client-1/" in name and "/.3-" in name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(
        RoundError,
        match=r"cannot take part: .*write [\d,]+ bytes, got No space left on device: [\d,]+ bytes free \(client-1\)",
    ):
        serve(subject, tmp_path)
    monkeypatch.undo()
    assert outcome(serve(subject, tmp_path)) == outcome(whole)


def test_a_client_whose_state_is_damaged_says_so(tmp_path):
    from sepal.errors import RoundError

    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 4)
    for path in (tmp_path / "clients" / "client-1").glob("3-*"):  # the state, and the message that led to it
        damage(path)
    with pytest.raises(RoundError, match=r"round 4: .*base: expected the state of version 3-.* \(client-1\)"):
        serve(subject, tmp_path)


def test_a_resumed_run_waits_for_everybody_or_skips(tmp_path):
    subject = federation(tmp_path=tmp_path, timeout=0.3)
    killed(subject, tmp_path, 4)
    away = {node: name for node, name in subject.nodes.items() if name == "client-0"}
    for node in away:
        del subject.nodes[node]
    with pytest.raises(RosterError, match=r"expected 4 within 0.3 s, got 3; absent: client-0"):
        serve(subject, tmp_path)
    config = subject.setup.config.model_copy(update={"on_missing": "skip"})
    subject.setup = replace(subject.setup, config=config)
    strategy = subject.server(DiskRunStore(tmp_path / "server", subject.method.server_state))
    strategy._settle = 0.0
    lines = Lines()
    strategy._observers = [lines]
    subject.run(strategy=strategy)
    assert strategy.progress.round == 7
    reasons = {entry.reason for record in lines.records for entry in record.ledger if entry.client == "client-0"}
    assert "not connected" in reasons


def test_who_is_not_connected_is_entered_once_a_round(monkeypatch):
    """However often the round looks for it."""
    subject = federation(timeout=5.0)
    lines, looks = Lines(), []
    strategy = subject.server()
    strategy._observers = [lines]
    refresh = Contact.refresh

    def away_for_a_while(self, *before):
        looks.append(1)
        if len(looks) == 2:
            subject.absent = subject.nodes.pop(100)
        if len(looks) == 8:
            subject.nodes[100] = subject.absent
        refresh(self, *before)

    monkeypatch.setattr(Contact, "refresh", away_for_a_while)
    subject.run(strategy=strategy)
    entries = [e for e in lines.records[1].ledger if e.client == "client-0"]
    assert [(e.direction, e.status) for e in entries] == [("down", "accepted"), ("up", "missing"), ("up", "accepted")]


def test_initial_arrays_must_be_those_of_the_configuration():
    from flwr.app import Array, ArrayRecord

    from sepal.errors import ConfigError
    from tests.contract.harness import Nodes

    subject = federation()
    right = ArrayRecord({"w": Array(subject.setup.weights["w"])})
    assert subject.server().start(Nodes(subject), right).arrays["w"].numpy().shape == (SIZE,)
    subject = federation()
    for arrays in ({"w": np.zeros(SIZE, np.float32)}, {"v": subject.setup.weights["w"]}, {}):
        record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        with pytest.raises(ConfigError, match="initial_arrays: expected the run config's initial weights"):
            subject.server().start(Nodes(subject), record)
