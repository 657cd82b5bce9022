"""The built-in tasks. Torch is imported when a loss is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sepal.errors import ConfigError
from sepal.tasks import metrics
from sepal.tasks.learning import CLASSIFICATION, Targets, Task
from sepal.tasks.scoring import BY_ACCURACY, Scoring

if TYPE_CHECKING:
    import torch


def classification(shape: tuple[int, ...], classes: int, unit: str = "") -> Task:
    """One class number for each example; the model returns logits (classes,)."""

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.argmax(1), targets

    task_metrics = [
        metrics.accuracy(read),
        metrics.by_class("balanced-accuracy", classes, metrics.mean_recall, read),
        metrics.by_class("macro-f1", classes, metrics.mean_f1, read),
    ]
    if classes == 2:
        task_metrics.append(metrics.auroc(lambda outputs: outputs[:, 1] - outputs[:, 0]))
    loss_each = partial(_cross_entropy, reduction="none")
    scoring = Scoring(tuple(task_metrics), counted=True)
    targets = Targets((), above=classes)
    return Task(
        CLASSIFICATION, targets, (classes,), _cross_entropy, scoring, _argmax, loss_each, "accuracy", averages=True
    )


def multilabel(shape: tuple[int, ...], labels: int, unit: str = "") -> Task:
    """Any number of labels for each example, as 0 and 1 (labels,); the model returns a logit for each label."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def loss_each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        y = targets.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)

    task_metrics = (
        metrics.by_label("macro-f1", labels, metrics.mean_f1),
        metrics.auroc(lambda outputs: outputs),
        metrics.accuracy(lambda outputs, targets: ((outputs > 0).long(), targets)),
    )
    targets = Targets((labels,), above=2)
    scoring = Scoring(task_metrics, "macro-f1")
    predict = lambda outputs: (outputs > 0).long()  # noqa: E731
    return Task("multilabel", targets, (labels,), loss, scoring, predict, loss_each, "macro-f1", averages=True)


def regression(shape: tuple[int, ...], numbers: int, unit: str = "") -> Task:
    """Numbers for each example (numbers,), with the squared error; the model returns as many."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean()

    def loss_each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean(1)

    scoring = Scoring((metrics.rmse(unit), metrics.mae(unit), metrics.r2(numbers)), "rmse")
    targets = Targets((numbers,), floating=True)
    predict = lambda outputs: outputs  # noqa: E731
    return Task("regression", targets, (numbers,), loss, scoring, predict, loss_each, "r2", averages=True)


def segmentation(shape: tuple[int, ...], classes: int, unit: str = "") -> Task:
    """A class for each pixel (H, W) of an image, 0 the background, -1 unknown; logits (classes, H, W)."""
    if len(shape) != 3:
        raise ConfigError("task", "images (channels, height, width) for segmentation", f"shape {shape}")

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labelled = targets != metrics.IGNORED
        return outputs.argmax(1)[labelled], targets[labelled]

    task_metrics = (
        metrics.by_class("dice", classes, metrics.dice, read, math.prod(shape[1:])),
        metrics.by_class("iou", classes, metrics.iou, read, math.prod(shape[1:])),
        metrics.accuracy(read),
    )
    targets = Targets(shape[1:], least=metrics.IGNORED, above=classes)
    loss_each, scoring = _loss_each_known, Scoring(task_metrics, "dice")
    return Task("segmentation", targets, (classes, *shape[1:]), _loss_of_known, scoring, _argmax, loss_each, "dice")


def tokens(shape: tuple[int, ...], classes: int, unit: str = "") -> Task:
    """A token for each position (length,), such as the next one, -1 unknown; logits (length, classes)."""
    if len(shape) != 1:
        raise ConfigError("task", "tokens (length,) for the task tokens", f"shape {shape}")

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _loss_of_known(outputs.transpose(1, 2), targets)

    def loss_each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _loss_each_known(outputs.transpose(1, 2), targets)

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labelled = targets != metrics.IGNORED
        return outputs.argmax(2)[labelled], targets[labelled]

    task_metrics = (metrics.perplexity(lambda outputs, targets: (outputs, targets)), metrics.accuracy(read))
    targets = Targets(shape, least=metrics.IGNORED, above=classes)
    scoring = Scoring(task_metrics, "perplexity")
    output = (*shape, classes)
    return Task("tokens", targets, output, loss, scoring, lambda x: x.argmax(2), loss_each, "accuracy")


TASKS: dict[str, Callable[..., Task]] = {
    CLASSIFICATION: classification,
    "multilabel": multilabel,
    "regression": regression,
    "segmentation": segmentation,
    "tokens": tokens,
}
LEAST = {"multilabel": 1, "regression": 1}  # least number of classes; of the others 2


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, reduction=reduction)


def _argmax(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.argmax(1)


def _loss_of_known(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of outputs (n, classes, …) over the targets that are known; 0 without one."""
    from torch.nn import functional

    total = functional.cross_entropy(outputs, targets, ignore_index=metrics.IGNORED, reduction="sum")
    return total / (targets != metrics.IGNORED).sum().clamp(min=1)


def _loss_each_known(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    total = functional.cross_entropy(outputs, targets, ignore_index=metrics.IGNORED, reduction="none").flatten(1).sum(1)
    return total / (targets != metrics.IGNORED).flatten(1).sum(1).clamp(min=1)


# Classification without a known number of classes: the default of a task that is built without a run config.
BY_CLASS = Task(
    CLASSIFICATION,
    Targets(),
    (),
    _cross_entropy,
    BY_ACCURACY,
    _argmax,
    partial(_cross_entropy, reduction="none"),
    "accuracy",
    averages=True,
)
