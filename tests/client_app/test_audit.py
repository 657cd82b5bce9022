"""A client's log of what it was asked and what left it: ``sepal join --audit``."""

from __future__ import annotations

import json
import os
import stat
from multiprocessing import get_context

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.app import handle
from sepal.client_app.audit import Audit
from sepal.engines.flower import rejoining
from sepal.errors import StateError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.server.ledger import message_bytes

KEYS = {"dataset": "digits", "clients": 3, "rounds": 2, "partition.subsample": 160, "method": "fedavg"}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """A function that sends an order to a deployed client with an audit log, and returns the answer's records."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    enter_run()

    def send(kind, records=None, run=KEYS, **node):
        order = Order("0" * 32, kind, Plan(1), views=("received", "trained"))
        message = Message(records or write_order(order, Content()), dst_node_id=1, message_type="train")
        node = {"partition-id": 0, "num-partitions": 3, "audit": str(tmp_path / "log" / "a.jsonl"), **node}
        return handle(message, Context(1, 1, node, RecordDict(), run)).content

    return send


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "log" / "a.jsonl").read_text().splitlines()]


def test_each_message_has_a_line_with_what_was_asked_and_what_left(ask, tmp_path):
    about, upload = ask(Kind.QUERY), ask(Kind.TRAIN)
    query, train = lines(tmp_path)
    assert (query["kind"], train["kind"], train["round"], train["client"]) == ("query", "train", 1, "client-00000")
    assert train["run"] == "0" * 32
    assert train["views"] == ["received", "trained"]
    assert [query["bytes_out"], train["bytes_out"]] == [message_bytes(about), message_bytes(upload)]
    assert train["payload"] >= len(read_reply(upload)[1].data) > 0 == query["payload"]
    assert set(train["figures"]) == set(read_reply(upload)[0].metrics)
    assert "store" in query["facts"]
    assert "error" not in train
    file = tmp_path / "log" / "a.jsonl"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


def test_the_sums_of_metrics_are_named_too(ask, tmp_path):
    """From them follow more than shares, such as counts by class."""
    sums = read_reply(ask(Kind.TRAIN, run={**KEYS, "metric": "macro-f1"}))[0].sums
    (line,) = lines(tmp_path)
    assert {"received.sums", "trained.validation-sums"} <= set(sums) <= set(line["figures"])


def test_a_refusal_has_a_line_and_so_has_what_cannot_be_read(ask, tmp_path):
    ask(Kind.TRAIN, **{"least-noise": 2.0})
    ask(Kind.TRAIN, RecordDict({"x": ConfigRecord({"y": "z"}), "a": ArrayRecord([])}))
    refused, junk = lines(tmp_path)
    assert refused["error"] == {
        "type": "ProtocolError",
        "key": "privacy.noise",
        "expected": "at least 2, as this node demands (sepal join --least-noise)",
        "got": "0.0",
    }
    assert refused["payload"] == 0
    assert junk["kind"] == "unreadable"
    assert junk["error"]["type"] == "ProtocolError"


def test_nothing_leaves_without_its_line(ask, tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.jsonl").symlink_to(tmp_path / "elsewhere")
    answer = ask(Kind.TRAIN)
    assert not answer.array_records
    assert answer.config_records["error"]["type"] == "StateError"
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StateError, match="open"):
        Audit(tmp_path / "open" / "a.jsonl").write("a", RecordDict(), RecordDict())


def fill(path, number):
    audit = Audit(path, largest=4000, kept=100)
    for _ in range(20):
        audit.write(
            f"client-{number}", RecordDict(), RecordDict({"p": ArrayRecord({"x": Array("b", (1,), "s", b"%")})})
        )


def test_processes_that_write_at_the_same_time_lose_no_line_over_rotation(tmp_path):
    """A query may be answered while the client trains."""
    writers = [get_context("fork").Process(target=fill, args=(tmp_path / "a.jsonl", number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    files = list(tmp_path.glob("a.jsonl*"))
    clients = [json.loads(line)["client"] for file in files for line in file.read_text().splitlines()]
    assert {name: clients.count(name) for name in clients} == {f"client-{number}": 20 for number in range(3)}
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) <= 4000


def test_old_files_go(tmp_path):
    audit = Audit(tmp_path / "a.jsonl", largest=300, kept=2)
    for _ in range(10):
        audit.write("a", RecordDict(), RecordDict())
    assert sorted(path.name for path in tmp_path.glob("a*")) == ["a.jsonl", "a.jsonl.1", "a.jsonl.2"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], "home/audit/client-00000.jsonl"), (["--audit", "mine.jsonl"], "mine.jsonl"), (["--audit", "none"], None)],
)
def test_join_keeps_the_log_by_default(monkeypatch, tmp_path, options, expected):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    node_configs = []
    monkeypatch.setattr(rejoining, "stay", lambda joined_client: node_configs.append(joined_client.node_config))
    result = CliRunner().invoke(app, ["join", "127.0.0.1:9092", *options])
    assert result.exit_code == 0, result.output
    assert node_configs[0].get("audit") == (expected and str(tmp_path / expected))
    assert not os.path.exists(tmp_path / "home" / "audit"), "made with the first line"


def test_a_node_says_what_part_of_its_data_it_trains_with(ask, caplog):
    """Its own copy of a table is not read whole: it takes the part of its number."""
    caplog.set_level("INFO", "sepal")
    info = read_reply(ask(Kind.QUERY, **{"partition-id": 1}))[0].client
    words = f"client-00001: {info.examples} training examples, part 2 of 3 of the data set digits on this machine"
    assert words in caplog.messages
    caplog.clear()
    ask(Kind.TRAIN)
    assert not any("training examples" in message for message in caplog.messages)
