"""The built-in metrics: sums by torchmetrics where it has a state that adds up, values by formulas.

``sums`` take outputs and targets of a batch on the CPU and import torch and torchmetrics when they are called;
``value`` needs neither. tests/sepal/protocol/test_metrics.py holds both against torchmetrics over pooled examples.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sepal.tasks.scoring import GREATEST_SUM, Metric, Sums

if TYPE_CHECKING:
    import torch

BINS = 51  # thresholds of AUROC, evenly spaced in log odds, where scores near 0 and 1 are told apart too
ODDS = 8.0  # the first and the last: 0.0003 and 0.9997
IGNORED = -1  # target of a pixel or token that counts neither in the loss nor in a metric
MOST_NATS = 41.0  # a mean loss above it is shown as the perplexity at it, 6e17


def torchmetrics(module: str) -> Any:
    """Import ``torchmetrics.<module>``, which imports torchvision where it is installed."""
    from sepal.data.sources.torchvision_import import torchvision

    try:
        return importlib.import_module(f"torchmetrics.{module}")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    torchvision()  # declares what a CPU-only torch lacks
    for name in [name for name in sys.modules if name.split(".")[0] == "torchmetrics"]:
        del sys.modules[name]
    return importlib.import_module(f"torchmetrics.{module}")


def accuracy(read: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Metric:
    """Return the share of right labels; ``read`` returns predicted and true labels, those that count."""

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        predicted, true = read(outputs, targets)
        return float((predicted == true).sum()), float(true.numel())

    return Metric("accuracy", 2, sums, _share)


def _share(sums: Sums) -> float | None:
    return _ratio(sums[0], sums[1])


def by_class(
    name: str,
    classes: int,
    value: Callable[[Sums, Sums, Sums], float | None],
    read: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    targets: int = 1,
) -> Metric:
    """Return a metric over true positives, false positives and false negatives of each class, in this order.

    An example has at most ``targets`` of what is classified: itself, or its pixels.
    """

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        predicted, true = read(outputs, targets)
        if not true.numel():
            return [0.0] * (3 * classes)
        count = torchmetrics("functional.classification").multiclass_stat_scores
        return _three(count(predicted.flatten(), true.flatten(), classes, average=None))

    return Metric(name, 3 * classes, sums, _of_counts(value), classes=classes, targets=targets)


def by_label(name: str, labels: int, value: Callable[[Sums, Sums, Sums], float | None]) -> Metric:
    """Return the same over the labels of a multi-label task, each of which is there with a probability above 0.5."""

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        count = torchmetrics("functional.classification").multilabel_stat_scores
        return _three(count((outputs > 0).long(), targets, labels, average=None))

    return Metric(name, 3 * labels, sums, _of_counts(value), classes=labels, targets=labels)


def _three(counts: torch.Tensor) -> Iterable[float]:
    """Return tp, fp and fn from torchmetrics' tp, fp, tn, fn, support, (classes, 5)."""
    sums: list[float] = counts.reshape(-1, 5)[:, [0, 1, 3]].T.flatten().double().tolist()
    return sums


def _of_counts(value: Callable[[Sums, Sums, Sums], float | None]) -> Callable[[Sums], float | None]:
    def of_sums(sums: Sums) -> float | None:
        n = len(sums) // 3
        return value(sums[:n], sums[n : 2 * n], sums[2 * n :])

    return of_sums


def mean_recall(tp: Sums, fp: Sums, fn: Sums) -> float | None:
    """Return balanced accuracy: the mean recall of the classes that occur."""
    return _mean(_ratio(t, t + n) for t, n in zip(tp, fn, strict=True))


def mean_f1(tp: Sums, fp: Sums, fn: Sums) -> float | None:
    """Return macro F1: the mean F1 of the classes that occur or are predicted; of masks, F1 is Dice."""
    return _mean(_ratio(2 * t, 2 * t + p + n) for t, p, n in zip(tp, fp, fn, strict=True))


def dice(tp: Sums, fp: Sums, fn: Sums) -> float | None:
    """Return the mean Dice of the classes but 0, the background."""
    return mean_f1(tp[1:], fp[1:], fn[1:])


def iou(tp: Sums, fp: Sums, fn: Sums) -> float | None:
    """Return the mean intersection over union of the classes but 0, the background."""
    return _mean(_ratio(t, t + p + n) for t, p, n in zip(tp[1:], fp[1:], fn[1:], strict=True))


def auroc(score: Callable[[torch.Tensor], torch.Tensor]) -> Metric:
    """Return the area under the ROC curve; ``score`` returns log odds, which with the targets are flattened.

    The state has a fixed size: true and false positives at :data:`BINS` thresholds, positives and negatives. Labels of
    a multi-label task are pooled (micro average).
    """

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        import torch

        thresholds = torch.sigmoid(torch.linspace(-ODDS, ODDS, BINS, dtype=torch.float64))
        curve = torchmetrics("classification").BinaryPrecisionRecallCurve
        metric: Any = curve(thresholds=thresholds, validate_args=False)
        metric.set_dtype(torch.float64)
        metric.update(torch.sigmoid(score(outputs).double()).flatten(), targets.flatten())
        counts = metric.confmat.double()  # (thresholds, true label, predicted label)
        totals = counts[0].sum(1)
        return [*counts[:, 1, 1].tolist(), *counts[:, 0, 1].tolist(), float(totals[1]), float(totals[0])]

    return Metric("auroc", 2 * BINS + 2, sums, area)


def area(sums: Sums) -> float | None:
    """Return the area under the ROC curve by the trapezoidal rule; None without positives or without negatives."""
    positives, negatives = sums[-2], sums[-1]
    if not positives or not negatives:
        return None
    rates = [(1.0, 1.0), *((sums[BINS + k] / negatives, sums[k] / positives) for k in range(BINS)), (0.0, 0.0)]
    return math.fsum((x0 - x1) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(rates))


def mae(unit: str) -> Metric:
    """Return the mean absolute error over all outputs."""

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        return _states(torchmetrics("regression").MeanAbsoluteError(), outputs, targets, "sum_abs_error", "total")

    return Metric("mae", 2, sums, _share, unit, higher=False, most=math.inf)


def rmse(unit: str) -> Metric:
    """Return the root of the mean squared error over all outputs."""

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        return _states(torchmetrics("regression").MeanSquaredError(), outputs, targets, "sum_squared_error", "total")

    def value(sums: Sums) -> float | None:
        mean = _ratio(sums[0], sums[1])
        return None if mean is None else math.sqrt(mean) if mean >= 0 else mean

    return Metric("rmse", 2, sums, value, unit, higher=False, most=math.inf)


def r2(outputs: int) -> Metric:
    """Return the share of the variance that is explained, mean over outputs; None where nothing varies."""

    def sums(predicted: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        import torch

        metric: Any = torchmetrics("regression").R2Score()
        metric.set_dtype(torch.float64)
        pair = (entry.double().reshape(-1, outputs) for entry in (predicted, targets))
        metric.update(*(entry.squeeze(1) for entry in pair))
        parts = (metric.residual, metric.sum_squared_error, metric.sum_error)
        return [*(float(entry) for part in parts for entry in part.reshape(-1)), float(metric.total)]

    def value(sums: Sums) -> float | None:
        rest, squares, totals, n = (*(sums[k * outputs : (k + 1) * outputs] for k in range(3)), sums[-1])
        if not n:
            return None
        shares = []
        for error, square, total in zip(rest, squares, totals, strict=True):
            spread = square - total * total / n
            shares.append(1 - error / spread if spread > 1e-12 * square else None)
        return _mean(shares)

    return Metric("r2", 3 * outputs + 1, sums, value, "", least=-GREATEST_SUM)


def perplexity(read: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> Metric:
    """Return exp of the mean cross-entropy of a token; ``read`` returns logits (n, length, classes) and targets."""

    def sums(outputs: torch.Tensor, targets: torch.Tensor) -> Iterable[float]:
        logits, true = read(outputs, targets)
        return _states(torchmetrics("text").Perplexity(ignore_index=IGNORED), logits, true, "total_log_probs", "count")

    def value(sums: Sums) -> float | None:
        mean = _ratio(sums[0], sums[1])
        return None if mean is None else math.exp(min(mean, MOST_NATS))

    return Metric("perplexity", 2, sums, value, "", higher=False, most=math.inf)


def _states(metric: Any, outputs: torch.Tensor, targets: torch.Tensor, *names: str) -> Iterable[float]:
    """Return states of a torchmetrics object after one batch, computed in float64."""
    import torch

    metric.set_dtype(torch.float64)
    metric.update(outputs.double(), targets.double() if targets.is_floating_point() else targets)
    return [float(getattr(metric, name)) for name in names]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None
