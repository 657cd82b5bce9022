"""Scores are counts, over all batches, of the last one too."""

from __future__ import annotations

import math

import pytest
import torch

from sepal.training.evaluation import BATCH, Evaluator, score


def sign(x):
    """Predicts class 1 where x > 0, with logits 0 and x."""
    return torch.stack([torch.zeros(len(x)), x], 1)


def test_counts_by_hand():
    """Logits (0, 2) with label 1 and (0, -1) with label 1: one right; losses log(1+e⁻²) and log(1+e)."""
    metrics = score(sign, torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
    expected = {"correct": 1, "examples": 2, "loss": math.log1p(math.exp(-2)) + math.log1p(math.exp(1))}
    assert metrics == pytest.approx(expected)


def test_every_example_counts_once_also_in_a_last_smaller_batch():
    n = 2 * BATCH + 3
    x = torch.cat([torch.ones(n - 3), -torch.ones(3)])
    metrics = score(sign, x, torch.ones(n, dtype=torch.int64))
    assert (metrics["correct"], metrics["examples"]) == (n - 3, n)
    whole = score(sign, x[-3:], torch.zeros(3, dtype=torch.int64))
    assert (whole["correct"], whole["examples"]) == (3, 3)


def test_no_examples_give_no_counts():
    assert score(sign, torch.empty(0), torch.empty(0, dtype=torch.int64)) == {}


def test_the_views_take_their_own_examples():
    def examples(correct, wrong):
        return torch.tensor([1.0] * correct + [-1.0] * wrong), torch.ones(correct + wrong, dtype=torch.int64)

    loads = []

    def pooled():
        loads.append(1)
        return examples(3, 4)

    evaluate = Evaluator(examples(1, 2), examples(2, 0), pooled)
    for view in ("received", "trained"):
        metrics = evaluate(sign, view)
        assert (metrics["correct"], metrics["examples"]) == (1, 3)
        assert (metrics["validation-correct"], metrics["validation-examples"]) == (2, 2)
    assert not loads, "the data of all clients is loaded when it is needed"
    assert {key: evaluate(sign, "pooled")[key] for key in ("correct", "examples")} == {"correct": 3, "examples": 7}


def test_without_validation_data_there_are_no_validation_counts():
    nothing = torch.empty(0), torch.empty(0, dtype=torch.int64)
    metrics = Evaluator((torch.ones(1), torch.ones(1, dtype=torch.int64)), nothing, lambda: nothing)(sign, "trained")
    assert set(metrics) == {"correct", "examples", "loss"}
