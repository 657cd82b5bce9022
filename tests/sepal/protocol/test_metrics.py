"""Each metric's sums over two clients of unequal sizes, added, give the value over their examples together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from sepal.config import RunConfig
from sepal.errors import ConfigError, ProtocolError
from sepal.tasks import metrics
from sepal.tasks.builtin import TASKS
from sepal.tasks.making import task_of_run
from sepal.tasks.scoring import Measure, added, headline, measure_of

SPLIT = 3  # of the examples, the first three are one client's


def make(name, shape, classes, **keys):
    return task_of_run(RunConfig(task=name, **keys), shape, classes)


def both(task, outputs, targets):
    """The value of each metric from the added sums of two clients, and from all examples at once."""
    parts = [task.sums(outputs[rows], targets[rows]) for rows in (slice(SPLIT), slice(SPLIT, None))]
    return task.scoring.values(added(parts)), task.scoring.values(task.sums(outputs, targets))


def close(merged, pooled):
    assert merged.keys() == pooled.keys()
    for name, value in pooled.items():
        assert merged[name] == pytest.approx(value, rel=1e-6), name


def test_classification_by_hand():
    """Seven examples of three classes: 4 right. Recalls 2/3, 1/2, 1/2; F1 of the classes 4/6, 2/4, 2/4."""
    true, predicted = [0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 0]
    task = make("classification", (2,), 3, metric="balanced-accuracy")
    outputs = 3 * torch.eye(3)[predicted]
    merged, pooled = both(task, outputs, torch.tensor(true))
    close(merged, pooled)
    assert merged["accuracy"] == pytest.approx(4 / 7)
    assert merged["balanced-accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 1 / 2) / 3)
    assert merged["macro-f1"] == pytest.approx((4 / 6 + 2 / 4 + 2 / 4) / 3)
    assert merged["balanced-accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(true, predicted))
    assert merged["macro-f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="macro"))


def test_a_class_that_never_occurs_does_not_count():
    task = make("classification", (2,), 4, metric="macro-f1")
    values = task.scoring.values(task.sums(torch.eye(4)[[0, 1, 1]], torch.tensor([0, 1, 0])))
    assert values["balanced-accuracy"] == pytest.approx(0.75)
    assert values["macro-f1"] == pytest.approx(2 / 3)


def test_auroc_by_hand_and_of_two_clients():
    """Positives at log odds 2 and -1, negatives at 1, -2, -3: five of six pairs are in order."""
    odds, true = torch.tensor([2.0, -1.0, 1.0, -2.0, -3.0]), torch.tensor([1, 1, 0, 0, 0])
    task = make("classification", (2,), 2, metric="auroc")
    merged, pooled = both(task, torch.stack([-odds / 2, odds / 2], 1), true)
    close(merged, pooled)
    assert merged["auroc"] == pytest.approx(5 / 6)
    assert task.scoring.measure == Measure("auroc")


def test_auroc_in_bins_is_near_the_exact_one_and_torchmetrics():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 4000)
    odds = torch.from_numpy(rng.normal(1.5 * true, 1.5))
    metric = metrics.auroc(lambda outputs: outputs)
    value = metric.value(metric.sums(odds, torch.from_numpy(true)))
    assert value == pytest.approx(sklearn.roc_auc_score(true, odds), abs=2e-3)
    reference = metrics.torchmetrics("classification").BinaryAUROC(
        thresholds=torch.sigmoid(torch.linspace(-metrics.ODDS, metrics.ODDS, metrics.BINS, dtype=torch.float64))
    )
    assert value == pytest.approx(float(reference(torch.sigmoid(odds), torch.from_numpy(true))), abs=1e-6)


def test_auroc_of_one_class_has_no_value():
    task = make("classification", (2,), 2, metric="auroc")
    of_one_class = task.sums(torch.randn(4, 2), torch.ones(4, dtype=torch.int64))
    assert task.scoring.value(of_one_class) is None
    assert task.scoring.value(added([of_one_class, task.sums(torch.randn(2, 2), torch.tensor([0, 0]))])) is not None


def test_multilabel_by_hand():
    """Label 0: tp 2, fp 1, fn 1; label 1: tp 1, fp 0, fn 1: F1 4/6 and 2/3; 7 of 10 right."""
    true = torch.tensor([[1, 0], [1, 1], [0, 0], [1, 1], [0, 0]])
    predicted = torch.tensor([[1, 0], [1, 1], [1, 0], [0, 0], [0, 0]])
    task = make("multilabel", (2,), 2)
    merged, pooled = both(task, 2.0 * predicted - 1, true)
    close(merged, pooled)
    assert merged["macro-f1"] == pytest.approx((4 / 6 + 2 / 3) / 2)
    assert merged["accuracy"] == pytest.approx(7 / 10)
    assert merged["macro-f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="macro"))
    assert merged["auroc"] == pytest.approx(sklearn.roc_auc_score(true.ravel(), predicted.ravel()))


def test_regression_by_hand():
    """Errors 1, -1, 0, 2, 0 on targets 0 … 4: RMSE √(6/5), MAE 4/5, R² 1 - 6/10."""
    true = torch.arange(5.0)[:, None]
    task = make("regression", (2,), 1, target_unit="kg")
    merged, pooled = both(task, true + torch.tensor([1.0, -1, 0, 2, 0])[:, None], true)
    close(merged, pooled)
    assert merged["rmse"] == pytest.approx(math.sqrt(6 / 5))
    assert merged["mae"] == pytest.approx(4 / 5)
    assert merged["r2"] == pytest.approx(1 - 6 / 10)
    assert task.scoring.measure == Measure("rmse", "kg", higher=False)


def test_regression_of_several_numbers_is_torchmetrics():
    rng = torch.Generator().manual_seed(1)
    true, predicted = torch.randn(11, 3, generator=rng) - 50, torch.randn(11, 3, generator=rng) - 50
    merged, pooled = both(make("regression", (2,), 3), predicted, true)
    close(merged, pooled)
    reference = metrics.torchmetrics("regression")
    assert merged["r2"] == pytest.approx(float(reference.R2Score()(predicted.double(), true.double())), rel=1e-6)
    assert merged["rmse"] == pytest.approx(math.sqrt(reference.MeanSquaredError()(predicted, true)), rel=1e-6)
    assert merged["mae"] == pytest.approx(float(reference.MeanAbsoluteError()(predicted, true)), rel=1e-6)


def test_r2_of_targets_that_do_not_vary_has_no_value():
    task = make("regression", (2,), 1)
    values = task.scoring.values(task.sums(torch.zeros(3, 1), torch.full((3, 1), 7.0)))
    assert "r2" not in values
    assert values["rmse"] == 7


def test_segmentation_by_hand_ignores_what_is_unknown():
    """Five images of 1 × 2 pixels. Class 1: tp 2, fp 1, fn 1; class 2: tp 1, fp 0, fn 1; one pixel is unknown."""
    true = torch.tensor([[[1, 0]], [[1, 2]], [[0, 2]], [[-1, 0]], [[1, 0]]])
    predicted = torch.tensor([[[1, 1]], [[1, 2]], [[0, 0]], [[2, 0]], [[0, 0]]])
    task = make("segmentation", (1, 1, 2), 3)
    outputs = 2.0 * torch.nn.functional.one_hot(predicted, 3).permute(0, 3, 1, 2)
    merged, pooled = both(task, outputs, true)
    close(merged, pooled)
    assert merged["dice"] == pytest.approx((4 / 6 + 2 / 3) / 2)
    assert merged["iou"] == pytest.approx((2 / 4 + 1 / 2) / 2)
    assert merged["accuracy"] == pytest.approx(6 / 9)


def test_tokens_by_hand():
    """Two letters, probabilities of the true ones ½ but for one of ⅛: perplexity 2^((4 + 3) / 5)."""
    task = make("tokens", (1,), 2)
    chances = torch.tensor([0.5, 0.5, 0.5, 0.125, 0.5])
    outputs = torch.stack([chances, 1 - chances], 1)[:, None].log()
    merged, pooled = both(task, outputs, torch.zeros(5, 1, dtype=torch.int64))
    close(merged, pooled)
    assert merged["perplexity"] == pytest.approx(2 ** (7 / 5))
    assert merged["loss"] == pytest.approx(7 / 5 * math.log(2))


def test_perplexity_of_a_diverged_model_is_finite():
    task = make("tokens", (1,), 2)
    outputs = torch.tensor([[[-1e6, 0.0]]])
    assert task.scoring.values(task.sums(outputs, torch.zeros(1, 1, dtype=torch.int64)))["perplexity"] < 1e18


@pytest.mark.parametrize("name", [name for name in TASKS if name != "classification"])
def test_the_loss_of_examples_is_the_mean_loss(name):
    shape, classes = {"segmentation": ((1, 4, 4), 3), "tokens": ((5,), 3)}.get(name, ((4,), 3))
    task = make(name, shape, classes)
    rng = torch.Generator().manual_seed(2)
    outputs = torch.randn(6, *task.output, generator=rng)
    targets = torch.randint(0, 2, (6, *task.targets.shape), generator=rng)
    targets = targets.float() if task.targets.floating else targets
    losses = task.loss_each(outputs, targets)
    assert losses.shape == (6,)
    assert float(losses.mean()) == pytest.approx(float(task.loss(outputs, targets)), rel=1e-5)


def bad(sums, at, value):
    return (*sums[:at], value, *sums[at + 1 :])


def test_impossible_sums_are_refused():
    task = make("regression", (2,), 1)
    good = task.sums(torch.zeros(3, 1), torch.arange(3.0)[:, None])
    task.scoring.check("sums", good)
    for sums, words in (
        (good[:-1], f"expected {task.scoring.size} sums"),
        (bad(good, 0, 2.5), "a number of examples"),
        (bad(good, 0, 0.0), "a number of examples"),
        (bad(good, 2, math.nan), "finite sums"),
        (bad(good, 2, 1e19), "finite sums"),
        (bad(good, 2, -1.0), "rmse from 0"),
        (bad(good, 6, -50.0), "r2 from"),
    ):
        with pytest.raises(ProtocolError, match=words):
            task.scoring.check("sums", sums)
    shares = make("classification", (2,), 3, metric="macro-f1")
    sums = shares.sums(torch.eye(3), torch.arange(3))
    with pytest.raises(ProtocolError, match="accuracy from 0 to 1"):
        shares.scoring.check("sums", bad(sums, 2, 4.0))


def test_a_metric_that_the_task_lacks_and_one_too_large_are_refused():
    with pytest.raises(ConfigError, match=r"metric: expected one of rmse, mae, r2, got dice"):
        make("regression", (2,), 1, metric="dice")
    with pytest.raises(ConfigError, match="metrics of at most 1024 sums"):
        make("classification", (2,), 500, metric="macro-f1")
    assert make("classification", (2,), 500).scoring.counted


def test_measures_say_how_values_are_shown():
    assert Measure().text(0.9312) == "93.1 %"
    assert Measure("rmse", "mg/dl", higher=False).text(54.321) == "54.32 mg/dl"
    assert Measure("perplexity", "", higher=False).axis == "perplexity"
    assert Measure("rmse", "", higher=False).better(1.0, 2.0)
    assert measure_of({"accuracy": {}}) == Measure()
    assert measure_of({"metric": {"name": "mae", "unit": "", "higher": False}}) == Measure("mae", "", higher=False)
    assert headline({"headline": {"trained": 1}}) == {"trained": 1}
