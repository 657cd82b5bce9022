"""The example tasks learn, with each of five methods."""

from __future__ import annotations

import numpy as np
import pytest

from examples.tasks import diabetes, loops, shapes, zen
from sepal.strategies import registry
from tests.tasks.settings import DIABETES, LOOPS, METHODS, SHAPES, ZEN, closing


def constant_rmse():
    """Of the mean of the training targets, the best constant that a client knows."""
    parts = [diabetes.load(client) for client in range(4)]
    return np.mean([np.sqrt(np.mean((test - train.mean()) ** 2)) for _, train, _, test in parts])


def constant_f1():
    """Of saying that each label is there, which no other constant beats."""
    share = np.mean([loops.load(client)[3].mean(0) for client in range(4)], 0)
    return np.mean(2 * share / (1 + share))


def constant_dice():
    """Of saying that each pixel is of the larger class but the background."""
    share = np.mean([[np.mean(shapes.load(client)[3] == label) for label in (1, 2)] for client in range(4)], 0)
    return max(2 * share / (1 + share)) / 2


def constant_perplexity():
    """Of the letters' frequencies in the client's own training part."""
    perplexities = []
    for client in range(4):
        _, train, _, test = zen.load(client)
        share = (np.bincount(train.ravel(), minlength=len(zen.LETTERS)) + 1) / (train.size + len(zen.LETTERS))
        perplexities.append(np.exp(-np.log(share[test]).mean()))
    return np.mean(perplexities)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("flat", "metric", "unit", "at_least"),
    [
        (DIABETES, "rmse", "points", lambda value: value < constant_rmse() - 0.15),
        (LOOPS, "macro-f1", "%", lambda value: value > constant_f1() + 0.1),
        (SHAPES, "dice", "%", lambda value: value > constant_dice() + 0.2),
        (ZEN, "perplexity", "", lambda value: value < 0.85 * constant_perplexity()),
    ],
    ids=["regression", "multilabel", "segmentation", "tokens"],
)
def test_an_example_beats_the_constant_predictor(flat, metric, unit, at_least, method):
    """By .15 of 100 points of RMSE, ten points of F1, twenty of Dice, and 15 % of the perplexity."""
    last = closing(flat, method=method)
    figures = last.line["headline"][registry.get(method).deployed]
    assert last.line["metric"] == {"name": metric, "unit": unit, "higher": metric not in ("rmse", "perplexity")}
    assert "accuracy" not in last.line
    assert at_least(figures["mean"]), figures
    assert figures["clients"] == 4
