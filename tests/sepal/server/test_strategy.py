"""SepalStrategy as Flower sees it: what it refuses, what it returns, and the steps that it does not have."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord

from sepal.errors import ConfigError
from sepal.protocol.types import Kind
from sepal.server.contact import Contact
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes


def federation(kind="lag", rounds=3, **settings):
    return Federation(FAKES[kind][0], rounds=rounds, settings={"evaluate_every": 0, **settings})


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"train_config": ConfigRecord({"lr": 0.1})}, "train_config"),
        ({"evaluate_config": ConfigRecord({"n": 1})}, "evaluate_config"),
        ({"evaluate_fn": print}, "evaluate_fn"),
    ],
)
def test_start_refuses_what_does_not_apply(arguments, key):
    subject = federation()
    with pytest.raises(ConfigError) as caught:
        subject.server().start(Nodes(subject), **arguments)
    assert caught.value.key == key
    assert not subject.trained


def test_start_returns_the_global_model_and_takes_the_number_of_rounds():
    subject = federation(rounds=9)
    strategy = subject.server()
    result = strategy.start(Nodes(subject), num_rounds=2)
    assert {round for round, _ in subject.trained} == {1, 2}
    assert np.array_equal(result.arrays["w"].numpy(), strategy.progress.server.w)


@pytest.mark.parametrize("per_round", [0, 2])
def test_who_trains_is_drawn_from_the_roster_and_not_from_who_is_online(per_round, monkeypatch):
    """A client that is away is drawn all the same: the draw is journalled, not the connection."""
    plain = federation(clients_per_round=per_round)
    plain.run()
    subject = federation(clients_per_round=per_round, on_missing="skip")
    looks, refresh = [], Contact.refresh

    def go_away(self, *before):
        looks.append(1)
        if len(looks) == 2:
            subject.absent = subject.nodes.pop(101)
        if len(looks) == 3:
            subject.nodes[101] = subject.absent
        refresh(self, *before)

    monkeypatch.setattr(Contact, "refresh", go_away)
    subject.run()
    assert set(plain.trained) - set(subject.trained) == {(2, "client-1")} & set(plain.trained)
    assert set(subject.trained) <= set(plain.trained)


def test_every_client_gets_one_train_message_a_round():
    subject = federation(evaluate_every=1, clients_per_round=2)
    sent = []
    grid = Nodes(subject)
    push = grid.push_messages

    def record(messages):
        sent.extend((m.metadata.group_id, m.metadata.message_type, m.metadata.dst_node_id) for m in messages)
        return push(messages)

    grid.push_messages = record
    subject.server().start(grid)
    for round in "123":
        kinds = [kind for group, kind, _ in sent if group == round and kind != Kind.QUERY.value]
        assert sorted(kinds) == ["train", "train", "train.adapt", "train.adapt"]
    assert [kind for group, kind, _ in sent if group == "4"] == ["train.adapt"] * 4
