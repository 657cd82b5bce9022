"""Smaller attacks and accidents: odd files, odd file systems, odd replies."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.state_store import DiskStateStore
from sepal.errors import ProtocolError, StateError
from sepal.protocol.messages import read_reply
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import Kind
from sepal.protocol.views import check_counts
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.run_store import DiskRunStore
from sepal.storage.files import make_directory
from sepal.strategies.assembly import assemble
from tests.attacks.attacked_federation import EVIL, Hostile, changed
from tests.attacks.test_swapped_files import State, save
from tests.sepal.cli.runs_for_tests import write_run
from tests.sepal.server.test_resume import federation, killed, outcome, serve


def test_a_file_system_without_hard_links_is_enough(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    identity = DiskStateStore(tmp_path, State).identity
    assert DiskStateStore(tmp_path, State).identity == identity


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"../../x", b"0" * 32 + b"\n"])
def test_an_identity_that_is_damaged_is_named_in_one_line(content, tmp_path):
    (tmp_path / "identity").write_bytes(content)
    with pytest.raises(StateError, match="identity: expected 32 hexadecimal digits"):
        DiskStateStore(tmp_path, State)


def test_an_identity_that_cannot_be_read_is_named_in_one_line(tmp_path):
    (tmp_path / "identity").mkdir()
    with pytest.raises(StateError, match="identity: expected a readable file"):
        DiskStateStore(tmp_path, State)


@pytest.mark.parametrize("target", ["a file", "nothing"])
def test_a_symbolic_link_for_an_identity_or_a_lock_is_not_followed(target, tmp_path):
    linked = tmp_path / "other"
    if target == "a file":
        linked.write_text("0" * 32)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "identity").symlink_to(linked)
    with pytest.raises(StateError, match="no symbolic link"):
        DiskStateStore(tmp_path / "a", State)
    store = DiskStateStore(tmp_path / "b", State)
    (tmp_path / "b" / "lock").symlink_to(linked)
    with pytest.raises(StateError, match="lock: expected a file, got a link"), store.lock():
        pass
    assert linked.exists() == (target == "a file")


def test_a_lock_that_cannot_be_opened_is_named_in_one_line(tmp_path):
    store = DiskStateStore(tmp_path, State)
    (tmp_path / "lock").mkdir()
    with pytest.raises(StateError, match="lock: expected a file that can be written"), store.lock():
        pass


@pytest.mark.parametrize("make", [make_directory, lambda path: DiskRunStore(path, State)])
def test_a_directory_that_cannot_be_looked_at_is_named_in_one_line(make, tmp_path):
    """As with one whose parent is of mode 000: to ask whether it is there is an error, which was a traceback."""
    with pytest.raises(StateError, match="expected a directory that can be made, got File name too long"):
        make(tmp_path / ("x" * 300))


def test_a_copy_beside_the_states_does_not_stop_the_client(tmp_path):
    store = DiskStateStore(tmp_path, State)
    names = [save(store, round) for round in (1, 2, 3)]
    path = tmp_path / f"{names[0]}.safetensors"
    for stray in ("3-x (conflicted copy).safetensors", "my-notes.safetensors", "copy-of-1.origin"):
        (tmp_path / stray).write_bytes(path.read_bytes())
    assert store.answered(2, "request") is not None
    store.prune(names[1])
    assert [store.load(name) is None for name in names] == [True, False, False]
    assert (tmp_path / "my-notes.safetensors").exists(), "what is not ours is left alone"


def test_a_message_without_its_state_is_pruned(tmp_path):
    store = DiskStateStore(tmp_path, State)
    names = [save(store, round) for round in (1, 2)]
    (tmp_path / f"{names[0]}.safetensors").unlink()
    store.prune(names[1])
    assert not (tmp_path / f"{names[0]}.origin").exists()


def test_odd_names_in_a_journal_are_left_alone(tmp_path):
    whole = federation().run()
    subject = federation(tmp_path=tmp_path)
    killed(subject, tmp_path, 5)
    for part in ("records", "uploads"):
        (tmp_path / "server" / part / "²").mkdir()
        (tmp_path / "server" / part / "7 (copy)").mkdir()
    (tmp_path / "server" / "round-copy.safetensors").write_bytes(b"x")
    assert outcome(serve(subject, tmp_path)) == outcome(whole)


def test_checkpoints_past_round_999999_sort_as_numbers(tmp_path):
    for round in (999_998, 1_000_000, 999_999):
        (tmp_path / f"round-{round:06d}.safetensors").write_bytes(b"")
    names = [path.name for path in DiskRunStore(tmp_path, State)._files()]
    assert names == ["round-999998.safetensors", "round-999999.safetensors", "round-1000000.safetensors"]


def test_a_run_whose_keys_are_lost_is_not_continued_with_others(tmp_path):
    assembly = assemble({"dataset": "digits"})
    with RunDirectory(tmp_path / "r", assembly, IN_PROCESS):
        (tmp_path / "r" / "checkpoints").mkdir()
        (tmp_path / "r" / "checkpoints" / "round-000000.safetensors").write_bytes(b"")
    (tmp_path / "r" / "config.toml").unlink()
    with pytest.raises(StateError, match=r"config.toml: expected the keys with which the run was started"):
        RunDirectory(tmp_path / "r", assembly, IN_PROCESS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b"{\n"),
        ("metrics.jsonl", b"[1]\n"),
        ("metrics.jsonl", b'{"round": 1}\n'),
        ("metrics.jsonl", b"\xff\xfe\n"),
        ("config.toml", b"clients = 2\n"),
        ("config.toml", b"\xff"),
    ],
)
def test_show_names_a_damaged_file_in_one_line(name, content, tmp_path):
    with RunDirectory(tmp_path / "r", assemble({"dataset": "digits"}), IN_PROCESS):
        (tmp_path / "r" / name).write_bytes(content)
    result = CliRunner().invoke(app, ["show", str(tmp_path / "r")])
    assert result.exit_code == 2
    assert name in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("summary.json", '"bytes"', '"octets"'),
        ("summary.json", '"accuracy": {', '"accuracy": 1, "was": {'),
        ("metrics.jsonl", '"bytes": {', '"bytes": [1], "was": {'),
        ("metrics.jsonl", '"mean": ', '"mean": "x", "was": '),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["watch", "--no-follow"]])
def test_figures_of_other_types_are_named_in_one_line(command, name, old, new, tmp_path):
    file = write_run(tmp_path / "r") / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    result = CliRunner().invoke(app, [*command, str(tmp_path / "r")])
    if command == ["show"] or name == "metrics.jsonl":
        assert result.exit_code == 2, result.output
        assert f"{tmp_path / 'r'}: expected figures as a run writes them" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("state", ["0" * 64 + "\nclient-9 " + "1" * 64, "x"])
def test_a_digest_of_a_state_cannot_forge_that_of_all_clients(state):
    """clients_sha256 is over lines of names and digests."""
    attack = changed(lambda head, content: (replace(head, state=state), content))
    federation = Hostile(attack, when=lambda order: order.keep)
    federation.run()
    (entry,) = federation.entries(5)
    assert (entry.status, entry.reason.split(" got")[0]) == (
        "refused",
        "state: expected 64 hexadecimal digits or nothing,",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "0" * 32}, "client-1: run: expected"),
        ({"round": 3}, "client-1: round: expected 0, got 3"),
        ({"kind": Kind.ADAPT}, "client-1: kind: expected"),
    ],
)
def test_an_answer_to_another_query_is_refused(change, words):
    attack = changed(lambda head, content: (replace(head, **change), content))
    with pytest.raises(ProtocolError, match=words):
        Hostile(attack, when=lambda order: order.kind is Kind.QUERY).run()


def test_a_device_is_a_word_that_is_known():
    federation = Hostile(None, when=lambda order: False)
    records = federation.host(EVIL).handle(_query())
    records["sepal"]["device"] = "cpu; see http://evil.example"
    with pytest.raises(ProtocolError, match="device: expected a kind of device such as cpu, cuda or mps"):
        read_reply(records)


def _query():
    from sepal.protocol.messages import Content, Order, write_order
    from sepal.protocol.types import Plan

    return write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content())


def test_a_reason_names_the_client_that_gave_it():
    def attack(message, order, download, reply):
        record = {"type": "DataError", "key": "client-3: data", "expected": "x", "got": "y", "client": "client-3"}
        record["protocol"] = PROTOCOL
        return Message(RecordDict({"error": ConfigRecord(record)}), reply_to=message)

    federation = Hostile(attack, on_missing="skip")
    federation.run()
    (entry,) = federation.entries()
    assert entry.reason.startswith("client-1: needed a reply, but an error: client-3: data: expected x, got y")


@pytest.mark.parametrize("key", ["trained-shift-40", "trained", "received"])
def test_a_figure_that_poses_as_a_view_is_refused(key):
    with pytest.raises(ProtocolError, match=f"metrics.{key}: expected counts of received, trained, got another view"):
        check_counts({key: 1.0}, ("received", "trained"))
    check_counts({"seconds": 1.0, "unseen-test-labels": 2.0}, ("received", "trained"))
