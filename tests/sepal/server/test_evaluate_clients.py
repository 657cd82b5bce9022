"""Full evaluations of a part of the roster: ``evaluate-clients``."""

from __future__ import annotations

import pytest

from tests.attacks.attacked_federation import Hostile
from tests.contract.fakes import FAKES


def asked_clients(federation):
    """Purposes by client, a dictionary for each round."""
    down = [[e for e in record.ledger if e.direction == "down"] for record in federation.records]
    return [{entry.client: entry.purpose for entry in entries} for entries in down]


def honest(message, order, download, reply):
    return reply


def run(**settings):
    federation = Hostile(honest, evaluate_every=2, clients_per_round=1, **settings)
    federation.run()
    return federation


def test_a_full_evaluation_asks_so_many_clients_and_those_that_train():
    everybody = asked_clients(run())
    assert [len(purposes) for purposes in everybody] == [1, 4, 1, 4, 4]
    some = asked_clients(run(evaluate_clients=2))
    assert [len(purposes) for purposes in some][::2] == [1, 1, 2], "training alone, and the closing round"
    for purposes in (some[1], some[3]):
        assert list(purposes.values()).count("training") == 1
        assert 2 <= len(purposes) <= 3
    trained = [[name for name, purpose in purposes.items() if purpose == "training"] for purposes in everybody]
    assert trained == [[name for name, purpose in purposes.items() if purpose == "training"] for purposes in some]


def test_the_draw_depends_on_the_round():
    drawn = {tuple(asked_clients(run(evaluate_clients=2, seed=seed))[-1]) for seed in range(8)}
    assert len(drawn) > 1


@pytest.mark.parametrize("kind", FAKES)
def test_every_kind_of_method_closes_with_a_part_of_its_clients(kind):
    federation = Hostile(honest, kind, evaluate_clients=2)
    federation.run()
    assert len(asked_clients(federation)[-1]) == 2
