"""``sepal join --no-accuracies``: a client that trains and sends no figures about its data, and a run that has some."""

from __future__ import annotations

import json
import re
from typing import get_args

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.app import handle
from sepal.client_app.build import Node
from sepal.client_app.guard import check_split
from sepal.config import RunConfig, Settings, kebab, parse
from sepal.config.base import flat_keys
from sepal.config.data import PartitionName
from sepal.data.federation import federated_data
from sepal.engines.in_process import worker
from sepal.errors import ConfigError, ProtocolError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.protocol.views import CLOSING_VIEWS, further_views

COSTS = {"seconds", "steps"}
KEYS = {"dataset": "digits", "clients": 3, "rounds": 2, "evaluate-every": 1, "partition.subsample": 160}
KEYS |= {"evaluate.shift": True, "evaluate.corruption": "gaussian-noise"}


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """A function that sends an order with every view to a deployed client, and returns its reply."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    enter_run()
    views = CLOSING_VIEWS + further_views(True, True)

    def send(kind, **node):
        order = Order("0" * 32, kind, Plan(1), views=views, keep=kind is Kind.ADAPT)
        message = Message(write_order(order, Content()), dst_node_id=1, message_type="train")
        node = {"partition-id": 0, "num-partitions": 3, **node}
        context = Context(1, 1, node, RecordDict(), {**KEYS, "method": "fedavg"})
        return read_reply(handle(message, context).content)

    return send


@pytest.mark.parametrize("kind", [Kind.TRAIN, Kind.ADAPT])
def test_whatever_the_server_asks_for_no_model_is_evaluated_and_only_costs_are_sent(kind, ask, monkeypatch):
    for name in ("correct", "score"):
        monkeypatch.setattr(f"sepal.training.evaluation.{name}", None)
    reply, _ = ask(kind, **{"no-accuracies": True})
    assert set(reply.metrics) == COSTS


SPLITS = [
    {"partition.name": "pathological", "partition.classes": 1, "clients": 3},
    {"partition.name": "dirichlet"},
    {"partition.subsample": 40},
    {"split.by": "time"},
    {"split.test-of-labels": True},
]


@pytest.mark.parametrize("keys", SPLITS)
def test_a_number_of_examples_tells_no_label_counts_of_a_nodes_own_files(keys, tmp_path, monkeypatch):
    """The first keys give a third client all rows with the last label, and a query tells how many they are."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    enter_run()
    rows = [f"{n},{n % 7},{label}" for n, label in enumerate([0] * 37 + [1] * 11 + [2] * 24)]
    (tmp_path / "data.csv").write_text("a,b,label\n" + "\n".join(rows) + "\n")

    def examples(silent, **run):
        records = write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content())
        node = {"partition-id": 0, "num-partitions": 1, "data-dir": str(tmp_path), "no-accuracies": silent}
        run = {"method": "fedavg", "dataset": "folder", "clients": 1, "partition.name": "iid", **run}
        message = Message(records, dst_node_id=1, message_type="query")
        return read_reply(handle(message, Context(1, 1, node, RecordDict(), run)).content)[0].client.examples

    assert examples(True) == examples(False), "a split that goes by number alone"
    with pytest.raises(ProtocolError, match=r"this node's own files.*label counts \(sepal join --no-accuracies\)"):
        examples(True, **keys)


def test_keys_that_name_classes_tell_which_of_them_occur(tmp_path, monkeypatch):
    """Not defended: which classes occur follows from the digest of their names as well."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    enter_run()
    rows = [f"{n},{n % 7},{('well', 'ill')[n % 2]}" for n in range(40)]
    (tmp_path / "data.csv").write_text("a,b,label\n" + "\n".join(rows) + "\n")

    def is_refused(classes):
        records = write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content())
        node = {"partition-id": 0, "num-partitions": 1, "data-dir": str(tmp_path), "no-accuracies": True}
        run = {
            "method": "fedavg",
            "dataset": "folder",
            "clients": 1,
            "partition.name": "iid",
            "folder.classes": classes,
        }
        message = Message(records, dst_node_id=1, message_type="query")
        return "error" in handle(message, Context(1, 1, node, RecordDict(), run)).content

    assert [is_refused(classes) for classes in ("ill,well", "ill,well,dead", "dead,well")] == [False, False, True]


# A value, other than the default, of each key that deals or splits data or whose description speaks of labels.
TRIED = {
    **{f"partition.{key}": value for key, value in {"alpha": 0.01, "lambda": 0.5, "classes": 1, "shards": 1}.items()},
    **{"partition.beta": 5.0, "partition.within": "dirichlet", "partition.noise": 0.1, "partition.shard-size": 3},
    **{"partition.min-examples": 5, "partition.subsample": 30, "split.test-fraction": 0.4},
    **{"split.test-of-labels": True, "split.by": "time", "split.validation": 0.3, "split.seed": 3},
    **{"own.class-weights": "balanced", "folder.classes": "0,1,2", "label-smoothing": 0.1},
    "folder.layout": "class/client",
}
# Tried below, in tests/sepal/data/test_schema.py or in tests/sepal/training/test_drift.py, or says what targets are.
BESIDE = {
    "devices",
    "drift.name",
    "drift.alpha",
    "partition.name",
    "metric",
    "task",
    "hf.label",
    "own.classes",
    "folder.label",
    "folder.schema",
}
BY_LABEL = {
    "partition.within": "dirichlet",
    "folder.layout": "class/client",
    "partition.subsample": 30,
    "split.test-of-labels": True,
    "split.by": "time",
}


def described(kind, prefix=""):
    """The flat keys of a group with their descriptions."""
    for name, field in kind.model_fields.items():
        key = prefix + (field.alias or kebab(name))
        if hasattr(field.annotation, "model_fields"):
            yield from described(field.annotation, f"{key}.")
        else:
            yield key, field.description or ""


def owned(path, labels):
    """A table of sixty rows of three people."""
    path.mkdir()
    rows = [f"{n},{n % 7},{n // 20},{label}" for n, label in enumerate(labels)]
    (path / "data.csv").write_text("a,b,person,label\n" + "\n".join(rows) + "\n")
    return path


def with_test_part(path, labels):
    """Sixty rows, of which the last twenty are a test part."""
    path.mkdir()
    x = np.arange(120, dtype=np.float32).reshape(60, 2)
    np.savez(path / "data.npz", x=x[:40], y=labels[:40], x_test=x[40:], y_test=labels[40:])
    return path


def dealt(directory, keys):
    """How many examples each of three clients has in each part; None if the keys are refused."""
    flat = {"method": "m", "dataset": "folder", "data-dir": str(directory), "clients": 3, **keys}
    config, _ = parse(flat, {"m": Settings})
    try:
        check_split(Node(accuracies=False), config)
    except ProtocolError:
        return None
    data = federated_data(config)
    clients = [data.client(number, 3, "") for number in range(3)]
    return [tuple(map(len, (client.train, client.validation, client.test))) for client in clients]


BY_OWNER = ("iid", "natural", "quantity-skew", "domain")


def test_every_key_that_deals_or_splits_a_nodes_own_files_acts_by_number_or_is_refused(tmp_path, monkeypatch):
    """The same rows with other labels: the numbers of examples are the same, for people and for a test part, too."""
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    keys = {key for key in flat_keys(RunConfig) if key.startswith(("partition.", "split."))}
    keys |= {key for key, words in described(RunConfig) if re.search("label|class", words)}
    assert set(TRIED) == keys - BESIDE, "a new key: does it change a number of examples by label?"
    by_person = [0] * 20 + [1] * 40
    other_labels = [int(n) for n in np.random.default_rng(0).permutation([0] * 5 + [1] * 31 + [2] * 24)]
    for write, names in ((owned, BY_OWNER), (with_test_part, ("iid", "quantity-skew"))):
        first, second = (
            write(tmp_path / f"{write.__name__}{n}", labels) for n, labels in enumerate((by_person, other_labels))
        )
        for name in names:
            assert dealt(first, {"partition.name": name}) == dealt(second, {"partition.name": name}) is not None
            for key, value in TRIED.items():
                tried = {"partition.name": name, key: value}
                assert dealt(first, tried) == dealt(second, tried), tried
                assert (dealt(first, tried) is None) == (key in BY_LABEL), tried
    names = [name for name in get_args(PartitionName) if name not in ("natural", "domain")]
    by_name = {name: dealt(first, {"partition.name": name}) for name in names}
    assert [name for name, numbers in by_name.items() if numbers] == ["iid", "quantity-skew"]


def test_no_column_of_the_servers_choice_deals_a_nodes_own_files():
    """`natural` by the column of labels, with `partition.min-examples` in turn, told how often each label occurs."""
    config = RunConfig.model_validate({"dataset": "hf", "hf": {"person": "label"}, "partition": {"name": "natural"}})
    check_split(Node(), config)
    with pytest.raises(ProtocolError, match=r"hf.person: expected none, for this node's own files"):
        check_split(Node(accuracies=False), config)


def test_it_sends_the_same_upload_as_a_client_that_sends_accuracies(ask):
    loud, upload = ask(Kind.TRAIN)
    silent, same = ask(Kind.TRAIN, **{"no-accuracies": True})
    assert same == upload
    assert silent.version == loud.version
    assert {key for key in loud.metrics if "." in key}


def test_a_stored_reply_with_accuracies_is_not_sent_once_they_are_switched_off(ask):
    assert "trained.correct" in ask(Kind.TRAIN)[0].metrics
    assert set(ask(Kind.TRAIN, **{"no-accuracies": True})[0].metrics) <= COSTS


@pytest.mark.parametrize("value", ["yes", 1, 0, ""])
def test_the_key_is_true_or_false(value):
    with pytest.raises(ConfigError, match="no-accuracies: expected true or false"):
        Node.of({"no-accuracies": value})


def run(tmp_path, monkeypatch, silent, method="fedavg"):
    """Run with the clients ``silent`` switched off, and return the lines, the summary and the directory."""
    make = lambda number, of: Node(number, of, accuracies=number not in silent)  # noqa: E731
    monkeypatch.setattr(worker, "Node", make)
    sets = [part for key, value in {**KEYS, "method": method}.items() for part in ("--set", f"{key}={value}".lower())]
    result = sepal("run", *sets, "--workers", 1, "--out", tmp_path, "--name", "r")
    assert result.exit_code == 0, result.output
    path = tmp_path / "r"
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return lines, json.loads((path / "summary.json").read_text()), path


def test_a_run_with_a_silent_client_counts_the_others(tmp_path, monkeypatch):
    lines, summary, path = run(tmp_path, monkeypatch, {1})
    for line in lines:
        assert line["accuracy"]["trained"]["clients"] == 2
        accuracies = {client["name"]: client["trained"] for client in line["clients"]}
        assert [accuracies[name] is None for name in sorted(accuracies)] == [False, True, False]
        assert not line["not_accepted"]
    assert summary["accuracy"]["trained"]["clients"] == 2
    assert sepal("show", path).exit_code == 0


@pytest.mark.parametrize("method", ["fedavg", "pa3dfl", "subfedavg", "pfedgate"])
def test_a_run_of_silent_clients_is_complete_and_shows_dashes(method, tmp_path, monkeypatch):
    """Pa3dFL would report the α that it chose on validation data, Sub-FedAvg what it pruned by validation accuracy."""
    lines, summary, path = run(tmp_path, monkeypatch, {0, 1, 2}, method)
    for line in lines:
        assert set(line["accuracy"].values()) <= {None}
        assert [set(client["metrics"]) for client in line["clients"]] == [COSTS] * 3
    assert set(summary["accuracy"].values()) == {None}
    assert "--no-accuracies" in summary["reasons"]["trained"]
    result = sepal("show", path)
    assert result.exit_code == 0, result.output
    assert " - " in result.output
    tables = sepal("show", path, "--csv", tmp_path / "t.csv")
    assert tables.exit_code == 0, tables.output
    if method in ("fedavg", "pa3dfl"):  # without figures of its own, and with them
        page = sepal("report", path, "--out", tmp_path / "r.html")
        assert page.exit_code == 0, page.output


def test_the_server_learns_the_same_model(tmp_path, monkeypatch):
    digests = {run(tmp_path / str(len(silent)), monkeypatch, silent)[1]["weights_sha256"] for silent in ({}, {0, 1, 2})}
    assert len(digests) == 1
