"""Test-time shift and corruption: counted by hand, the same draw for every method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.data import DatasetInfo
from sepal.data.corruption import STRENGTH, corrupt
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.rng import derive
from sepal.strategies.assembly import assemble
from sepal.training.evaluation import ByBatch, Evaluator, Shift


def says_input(x):
    """Predicts the class that the input names."""
    return torch.nn.functional.one_hot(x[:, 0].long(), 4).float()


def test_shift_replaces_in_the_drawn_order():
    """Own test: right on examples 0 and 2 of four. Others': right, wrong, right, right. Order 2, 0, 3, 1.

    25 % replaces example 2 (right) by the first other (right): 2 stay right. 50 %: 0 (right) by a wrong one: 1.
    100 %: the others alone: 3 of 4.
    """
    examples = (torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 0, 2, 0]))
    others = (torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 2, 2, 3]))
    shift = Shift(torch.tensor([2, 0, 3, 1]), others)
    evaluator = Evaluator(examples, examples, shift=lambda: shift)
    by_degree = {p: evaluator(says_input, f"trained-shift-{p}") for p in (0, 25, 50, 100)}
    assert {p: f["correct"] for p, f in by_degree.items()} == {0: 2, 25: 2, 50: 1, 100: 3}
    assert all(f["examples"] == 4 for f in by_degree.values())


def most_of_the_batch(x):
    """Predicts for all examples that come together the class that most inputs among them name."""
    classes = torch.bincount(x[:, 0].long(), minlength=4).argmax().repeat(len(x))
    return torch.nn.functional.one_hot(classes, 4).float()


def test_what_is_predicted_by_batch_is_predicted_anew_for_each_degree():
    """Own inputs 0 0 0 1, others' 1 1 2 2; order 1, 0, 3, 2.

    0 %: 0 0 0 1, all are called 0, and three are. 25 %: example 1 becomes 1; 0 1 0 1 is called 0, the first of the
    largest: two. 50 %: 1 1 0 1 is called 1: three. 100 %: 1 1 2 2 in the places 1, 0, 3, 2 is called 1: two. Own and
    others' predictions made apart would give 2 and 2 in the middle: 0 for the own, 1 for the others'.
    """
    examples = torch.tensor([[0.0], [0.0], [0.0], [1.0]]), torch.tensor([0, 0, 0, 1])
    others = torch.tensor([[1.0], [1.0], [2.0], [2.0]]), torch.tensor([1, 1, 2, 2])
    evaluator = Evaluator(examples, examples, shift=lambda: Shift(torch.tensor([1, 0, 3, 2]), others))
    by_degree = {p: evaluator(ByBatch(most_of_the_batch), f"trained-shift-{p}") for p in (0, 25, 50, 100)}
    assert {p: f["correct"] for p, f in by_degree.items()} == {0: 3, 25: 2, 50: 3, 100: 2}
    assert {p: f["examples"] for p, f in by_degree.items()} == dict.fromkeys(by_degree, 4)
    assert examples[0].tolist() == [[0.0], [0.0], [0.0], [1.0]], "the client's own examples stay"
    assert Evaluator(examples, examples)(ByBatch(most_of_the_batch), "trained-shift-40") == {}


def test_no_shift_where_others_data_cannot_be_had():
    examples = (torch.tensor([[0.0]]), torch.tensor([0]))
    assert Evaluator(examples, examples)(says_input, "trained-shift-40") == {}


@pytest.fixture(scope="module")
def runs():
    flat = {
        "dataset": "digits",
        "clients": 4,
        "rounds": 2,
        "partition.name": "lambda-mix",
        "partition.subsample": 400,
        "evaluate.shift": True,
        "evaluate.corruption": "gaussian-noise",
    }
    return {name: run_in_process(assemble({**flat, "method": name})) for name in ("local", "fedavg")}


def test_the_closing_round_has_every_degree(runs):
    for name, strategy in runs.items():
        accuracy = strategy.report.accuracy
        models = ["trained", "kept"] if name == "local" else ["received", "trained", "kept"]
        for model in models:
            shifted = [accuracy[f"{model}-shift-{percent}"]["mean"] for percent in (0, 20, 40, 60, 80, 100)]
            assert shifted[0] == pytest.approx(accuracy[model]["mean"])
            assert f"{model}-corrupted" in accuracy
    local = runs["local"].report.accuracy
    assert local["trained-shift-100"]["mean"] < local["trained"]["mean"] - 0.3, "two classes a client: others' are lost"


def test_without_the_keys_there_are_the_usual_views_only():
    strategy = run_in_process(assemble({"dataset": "digits", "clients": 2, "rounds": 1, "partition.subsample": 200}))
    assert set(strategy.report.accuracy) == {"received", "trained", "pooled", "kept"}


INFO = DatasetInfo("toy", 2, (1, 4, 4), "image", False, {}, 0, (0.5,), (0.25,))


@pytest.mark.parametrize("name", STRENGTH)
def test_corruption_changes_images_within_their_range_and_repeats(name):
    pixels = derive(1, "pixels").random((3, 1, 4, 4), np.float32)
    x = (pixels - 0.5) / 0.25
    changed = [corrupt(x, INFO, name, 5, derive(2, "noise")) for _ in range(2)]
    np.testing.assert_array_equal(*changed)
    back = changed[0] * 0.25 + 0.5
    assert back.min() >= -1e-6
    assert back.max() <= 1 + 1e-6
    assert np.abs(back - pixels).max() > 1e-3
    assert changed[0].dtype == np.float32


def test_contrast_by_hand():
    """Pixels 0 and 1, mean .5, severity 1 keeps .75 of the distance: .125 and .875."""
    pixels = np.array([[[[0.0, 1.0], [1.0, 0.0]]]], np.float32)
    changed = corrupt((pixels - 0.5) / 0.25, INFO, "contrast", 1, derive(0, "x")) * 0.25 + 0.5
    np.testing.assert_allclose(changed[0, 0], [[0.125, 0.875], [0.875, 0.125]], atol=1e-6)


def test_a_run_that_could_not_be_evaluated_is_refused_before_it_starts():
    """Not in its closing round, when all training is done."""
    keys = {"dataset": "own", "own.shape": "4", "own.classes": 2, "own.data": "x:y", "model": "har-mlp"}
    with pytest.raises(ConfigError, match=r"evaluate\.corruption: expected none for data of kind signal"):
        assemble({**keys, "evaluate.corruption": "contrast"})
