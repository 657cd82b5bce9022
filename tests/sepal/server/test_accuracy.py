"""Figures over clients, by hand."""

from __future__ import annotations

import math

import pytest

from sepal.errors import ProtocolError
from sepal.protocol.views import check_counts
from sepal.server.accuracy import client_accuracy, figures, view_figures


def test_figures_by_hand():
    """Mean (.5+.7+.9)/3; weighted (10·.5 + 30·.7 + 60·.9)/100; deviations -.2, 0, .2 give sqrt(.08/3)."""
    result = figures([0.5, 0.7, 0.9], [10, 30, 60])
    assert result == pytest.approx({"mean": 0.7, "weighted": 0.8, "std": math.sqrt(0.08 / 3), "bottom_decile": 0.5})


@pytest.mark.parametrize(("clients", "rank"), [(1, 1), (5, 1), (9, 1), (10, 1), (19, 1), (20, 2), (25, 2), (100, 10)])
def test_the_bottom_decile_is_the_tenth_part_from_below(clients, rank):
    """pFedGate, section 6.1: the ⌊C/10⌋-th worst; the worst where C < 10."""
    accuracies = (
        [((7 * n) % clients + 1) / 1000 for n in range(clients)]
        if clients % 7
        else [n / 1000 for n in range(1, clients + 1)]
    )
    assert sorted(accuracies) == [n / 1000 for n in range(1, clients + 1)], "each place once, in any order"
    assert figures(accuracies, [1] * clients)["bottom_decile"] == rank / 1000


def test_clients_without_weight_count_equally():
    assert figures([0.0, 1.0], [0, 0])["weighted"] == 0.5


def counts(view, correct, examples, **more):
    return {f"{view}.correct": float(correct), f"{view}.examples": float(examples), **more}


def test_view_figures_take_the_clients_that_have_the_view():
    metrics = [counts("trained", 5, 10), counts("trained", 30, 30), {"seconds": 1.0}, counts("received", 1, 2)]
    result = view_figures(metrics, "trained")
    assert result == pytest.approx({"mean": 0.75, "weighted": 35 / 40, "std": 0.25, "bottom_decile": 0.5, "clients": 2})
    assert view_figures(metrics, "received")["clients"] == 1
    assert view_figures(metrics, "pooled") is None
    assert view_figures([counts("trained", 0, 0)], "trained") is None, "a client without test examples"


def test_view_figures_of_validation_are_apart():
    metrics = [counts("trained", 5, 10, **{"trained.validation-correct": 1.0, "trained.validation-examples": 4.0})]
    assert view_figures(metrics, "trained", "validation-")["mean"] == 0.25
    assert view_figures(metrics, "trained")["mean"] == 0.5
    assert client_accuracy(metrics[0], "trained") == 0.5
    assert client_accuracy(metrics[0], "pooled") is None


GOOD = counts(
    "trained", 5, 10, **{"trained.validation-correct": 0.0, "trained.validation-examples": 0.0, "seconds": 1.5}
)


def test_counts_pass():
    check_counts(GOOD, ("received", "trained"))
    check_counts({}, ("received", "trained"))
    check_counts({"trained.loss": 0.7, "method.own": 0.5}, ("trained",))


@pytest.mark.parametrize(
    "changes",
    [
        {"trained.correct": 11.0},
        {"trained.correct": 4.5},
        {"trained.examples": 10.5},
        {"trained.correct": None},
        {"trained.examples": None},
        {"trained.validation-correct": 1.0},
        {"trained.validation-examples": None},
        {"trained.examples": 2.0**40},
        {"pooled.correct": 1.0, "pooled.examples": 1.0},
        {"pooled.loss": 1.0},
    ],
)
def test_refuses_counts_that_cannot_be(changes):
    metrics = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ProtocolError, match=r"metrics\."):
        check_counts(metrics, ("received", "trained"))
