"""``sepal join --export``: at the end a deployed client has the file of its deployed model."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from safetensors import safe_open

from sepal.client_app.app import handle
from sepal.export.portable import load
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.strategies.assembly import assemble

KEYS = {"dataset": "digits", "clients": 3, "partition.subsample": 160, "method": "fedavg-ft"}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """A function that sends an order to a deployed client that exports its model, and returns its reply."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    enter_run()

    def send(keep, file, kind=Kind.ADAPT, **node):
        order = Order("0" * 32, kind, Plan(1, scalars={"finetune": False}), views=("received", "trained"), keep=keep)
        message = Message(write_order(order, Content()), dst_node_id=1, message_type="train.adapt")
        node = {"partition-id": 1, "num-partitions": 3, "export": str(file), **node}
        return read_reply(handle(message, Context(1, 1, node, RecordDict(), KEYS)).content)[0]

    return send


def test_the_file_has_the_deployed_model(ask, tmp_path):
    """FedAvg-FT deploys the trained model: the file's has the accuracy that the client has sent for that view."""
    file = tmp_path / "model.safetensors"
    ask(False, file)
    assert not file.exists(), "only the closing round ends a client's training"
    reply = ask(True, file)
    data = assemble(KEYS).data.client(1, 3, "client-00001").test
    right = int((load(file)(np.array(data.x)).argmax(1) == data.y).sum())
    assert right == reply.metrics["trained.correct"]
    assert right != reply.metrics["received.correct"]


def test_a_client_that_sends_no_accuracies_has_its_model_as_well(ask, tmp_path):
    file = tmp_path / "model.safetensors"
    ask(True, file, **{"no-accuracies": True})
    assert load(file).origin.run == "0" * 32


def test_the_file_says_which_model_it_is_and_not_whose(ask, tmp_path):
    file = tmp_path / "model.safetensors"
    ask(True, file)
    with safe_open(file, "np") as opened:
        facts = opened.metadata()
    assert (facts["run"], facts["method"], facts["round"]) == ("0" * 32, "fedavg-ft", "0")
    assert len(facts["sha256"]) == 64
    assert b"client-00001" not in file.read_bytes()


def test_a_model_that_cannot_be_made_leaves_the_last_one_and_the_run(ask, tmp_path, monkeypatch, caplog):
    file = tmp_path / "model.safetensors"
    file.write_text("the last one")

    def fail(*arguments):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("sepal.export.extraction.load", fail)
    assert "trained.correct" in ask(True, file).metrics
    assert file.read_text() == "the last one"
    assert list(tmp_path.glob(".sepal-*")) == []
    assert "out of memory" in caplog.text


def test_a_round_of_training_writes_no_file(ask, tmp_path):
    """Whatever a server asks for: only the closing round ends a client's training."""
    ask(True, tmp_path / "model.safetensors", kind=Kind.TRAIN)
    assert not (tmp_path / "model.safetensors").exists()


def test_a_file_that_cannot_be_written_does_not_end_the_run(ask, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR, "sepal"):
        reply = ask(True, tmp_path / "file" / "model.safetensors")
    assert "trained.correct" in reply.metrics
    assert "client-00001: no model in" in caplog.text
