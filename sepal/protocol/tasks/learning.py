"""What a run learns: the contract of a task, and the built-in tasks. Imports torch when a loss is computed.

A task of your own is ``task = "package.module:Task"``, a class or function that is called with the shape of one input
and the number of classes, and returns a :class:`LearningTask` (docs/tasks.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError, DataError
from sepal.protocol.tasks import metrics
from sepal.protocol.tasks.scoring import BY_ACCURACY, MOST_SUMS, NAME, UNIT, Scoring
from sepal.user_modules import described, load

if TYPE_CHECKING:
    import torch

    from sepal.config import RunConfig

CLASSIFICATION = "classification"
LABELS = "class labels"  # what methods may need, and not every task has
PER_EXAMPLE = "a loss for each example"
SHARE = "a metric from 0 to 1"


@dataclass(frozen=True)
class Targets:
    """What a target of one example looks like.

    Attributes:
        shape: Its shape; () for one number. A single number may also come as shape (1,).
        floating: Whether targets are float32; if not, int64.
        least: Least value of whole numbers.
        above: What whole numbers are below; 0: no limit.
    """

    shape: tuple[int, ...] = ()
    floating: bool = False
    least: int = 0
    above: int = 0

    def checked(self, key: str, given: npt.NDArray[Any], examples: int) -> npt.NDArray[Any]:
        """Return targets, int64 or float32 (n, *shape).

        Args:
            key: Name of the data in error messages.
            given: The targets as the user gives them.
            examples: n, number of inputs.

        Raises:
            DataError: They have another shape or type, or a value is out of range.
        """
        if given.shape[1:] in ((), (1,)) and self.shape in ((), (1,)):
            given = given.reshape(-1, *self.shape)
        if given.shape != (examples, *self.shape):
            raise DataError(key, f"shape {(examples, *self.shape)}, a target for each input", given.shape)
        if self.floating:
            values = given.astype(np.float32) if given.dtype.kind in "fiu" else None
            if values is None or not np.isfinite(values).all():
                raise DataError(key, "finite numbers", str(given.dtype) if values is None else "NaN or infinity")
            return values
        if given.dtype.kind == "f" and (given == np.floor(given)).all():
            given = given.astype(np.int64)  # a table's columns are floats
        if given.dtype.kind not in "iub":
            raise DataError(key, "whole numbers", str(given.dtype))
        given = given.astype(np.int64)
        if given.size and (given.min() < self.least or (self.above and given.max() >= self.above)):
            upper = f" to {self.above - 1}" if self.above else ""
            raise DataError(key, f"whole numbers from {self.least}{upper}", f"{given.min()} to {given.max()}")
        return given


@dataclass(frozen=True)
class LearningTask:
    """A task: targets, loss, prediction and metrics.

    Attributes:
        name: ``classification``, …; of an own task, its ``package.module:Task``.
        targets: What a target looks like.
        output: Shape of the model's output for one example.
        loss: Maps outputs (n, *output) and targets (n, *shape) to the mean loss, a scalar.
        scoring: Its metrics.
        predict: Maps outputs to predictions, (n, …): what `sepal predict` writes.
        loss_each: Maps outputs and targets to the loss of each example, (n,); None: the task has none, and methods that
            need one are refused.
        share: Name of the metric from 0 to 1, higher is better, that thresholds in methods refer to; empty: none.
        recipe: The arguments of :func:`made` that make it again in another process, to which functions cannot be sent.
    """

    name: str
    targets: Targets
    output: tuple[int, ...]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    scoring: Scoring
    predict: Callable[[torch.Tensor], torch.Tensor]
    loss_each: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    share: str = ""
    recipe: tuple[Any, ...] = field(default=(), compare=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (made, self.recipe) if self.recipe else super().__reduce_ex__(protocol)

    @property
    def classifies(self) -> bool:
        """Whether a target is the number of one class."""
        return self.name == CLASSIFICATION

    @property
    def offers(self) -> frozenset[str]:
        """What methods may need (:attr:`sepal.protocol.method.Method.needs`)."""
        found = {LABELS: self.classifies, PER_EXAMPLE: self.loss_each is not None, SHARE: bool(self.share)}
        return frozenset(name for name, there in found.items() if there)

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, ...]:
        """Return the sums of a batch (:mod:`sepal.protocol.tasks.scoring`)."""
        outputs, targets = outputs.detach().cpu(), targets.cpu()
        n = float(len(targets))
        loss = n * self.loss(outputs, targets) if self.loss_each is None else self.loss_each(outputs, targets).sum()
        parts = [[float(each) for each in metric.sums(outputs, targets)] for metric in self.scoring.metrics]
        return (n, float(loss), *(each for part in parts for each in part))


def classification(shape: tuple[int, ...], classes: int, unit: str = "") -> LearningTask:
    """One class number for each example; the model returns logits (classes,)."""

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return outputs.argmax(1), targets

    found = [
        metrics.accuracy(read),
        metrics.by_class("balanced-accuracy", classes, metrics.mean_recall, read),
        metrics.by_class("macro-f1", classes, metrics.mean_f1, read),
    ]
    if classes == 2:
        found.append(metrics.auroc(lambda outputs: outputs[:, 1] - outputs[:, 0]))
    each = partial(_cross_entropy, reduction="none")
    scoring = Scoring(tuple(found), counted=True)
    targets = Targets((), above=classes)
    return LearningTask(CLASSIFICATION, targets, (classes,), _cross_entropy, scoring, _argmax, each, "accuracy")


def multilabel(shape: tuple[int, ...], labels: int, unit: str = "") -> LearningTask:
    """Any number of labels for each example, as 0 and 1 (labels,); the model returns a logit for each label."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        y = targets.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)

    found = (
        metrics.by_label("macro-f1", labels, metrics.mean_f1),
        metrics.auroc(lambda outputs: outputs),
        metrics.accuracy(lambda outputs, targets: ((outputs > 0).long(), targets)),
    )
    targets = Targets((labels,), above=2)
    scoring = Scoring(found, "macro-f1")
    return LearningTask("multilabel", targets, (labels,), loss, scoring, lambda x: (x > 0).long(), each, "macro-f1")


def regression(shape: tuple[int, ...], numbers: int, unit: str = "") -> LearningTask:
    """Numbers for each example (numbers,), with the squared error; the model returns as many."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean()

    def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean(1)

    scoring = Scoring((metrics.rmse(unit), metrics.mae(unit), metrics.r2(numbers)), "rmse")
    targets = Targets((numbers,), floating=True)
    return LearningTask("regression", targets, (numbers,), loss, scoring, lambda outputs: outputs, each, "r2")


def segmentation(shape: tuple[int, ...], classes: int, unit: str = "") -> LearningTask:
    """A class for each pixel (H, W) of an image, 0 the background, -1 unknown; logits (classes, H, W)."""
    if len(shape) != 3:
        raise ConfigError("task", "images (channels, height, width) for segmentation", f"shape {shape}")

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = targets != metrics.IGNORED
        return outputs.argmax(1)[known], targets[known]

    found = (
        metrics.by_class("dice", classes, metrics.dice, read),
        metrics.by_class("iou", classes, metrics.iou, read),
        metrics.accuracy(read),
    )
    targets = Targets(shape[1:], least=metrics.IGNORED, above=classes)
    each, scoring = _each_known, Scoring(found, "dice")
    return LearningTask("segmentation", targets, (classes, *shape[1:]), _known, scoring, _argmax, each, "dice")


def tokens(shape: tuple[int, ...], classes: int, unit: str = "") -> LearningTask:
    """A token for each position (length,), such as the next one, -1 unknown; logits (length, classes)."""
    if len(shape) != 1:
        raise ConfigError("task", "tokens (length,) for the task tokens", f"shape {shape}")

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _known(outputs.transpose(1, 2), targets)

    def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return _each_known(outputs.transpose(1, 2), targets)

    def read(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        known = targets != metrics.IGNORED
        return outputs.argmax(2)[known], targets[known]

    found = (metrics.perplexity(lambda outputs, targets: (outputs, targets)), metrics.accuracy(read))
    targets = Targets(shape, least=metrics.IGNORED, above=classes)
    scoring = Scoring(found, "perplexity")
    output = (*shape, classes)
    return LearningTask("tokens", targets, output, loss, scoring, lambda x: x.argmax(2), each, "accuracy")


TASKS: dict[str, Callable[..., LearningTask]] = {
    CLASSIFICATION: classification,
    "multilabel": multilabel,
    "regression": regression,
    "segmentation": segmentation,
    "tokens": tokens,
}
LEAST = {"multilabel": 1, "regression": 1}  # least number of classes; of the others 2


def learning_task(config: RunConfig, shape: tuple[int, ...], classes: int) -> LearningTask:
    """Return the task of a run, with the headline that ``metric`` chooses.

    Args:
        config: The run's configuration.
        shape: Shape of one input.
        classes: Number of classes, labels, numbers or token ids to predict.

    Raises:
        ConfigError: The task or the metric is unknown, or does not fit the data.
    """
    return made(config.task, config.metric, config.target_unit, shape, classes)


def made(task: str, metric: str, unit: str, shape: tuple[int, ...], classes: int) -> LearningTask:
    """Return a task from the values of ``task``, ``metric`` and ``target-unit``; see :func:`learning_task`."""
    if unit and task != "regression":
        raise ConfigError("target-unit", f"nothing for the task {task}, whose metrics have units of their own", unit)
    if ":" in task:
        found = own_task(task, shape, classes)
    elif classes < LEAST.get(task, 2):
        raise ConfigError("task", f"data with at least {LEAST.get(task, 2)} classes for {task}", classes)
    else:
        found = TASKS[task](shape, classes, unit)
    if metric != "auto":
        found.scoring.metric(metric)  # refused here if there is none
        counted = found.classifies and metric == "accuracy"
        found = replace(found, scoring=replace(found.scoring, headline=metric, counted=counted))
    if found.scoring.size > MOST_SUMS and not found.scoring.counted:
        got = f"{found.scoring.size} for {classes} classes"
        raise ConfigError("metric", f"metrics of at most {MOST_SUMS} sums", got)
    return replace(found, recipe=(task, metric, unit, shape, classes))


def targets_of(task: str, shape: tuple[int, ...], classes: int) -> Targets:
    """Return what the targets of ``task`` look like; arguments as for :func:`learning_task`.

    Raises:
        ConfigError: The task does not fit the data, or is an own one that cannot be used.
    """
    return (own_task(task, shape, classes) if ":" in task else TASKS[task](shape, classes)).targets


def own_task(target: str, shape: tuple[int, ...], classes: int) -> LearningTask:
    """Return an own task, after a trial of its loss and metrics on two examples of zeros.

    Raises:
        ConfigError: It cannot be imported, fails, or is no task.
    """
    make = load("task", target, ConfigError)
    try:
        found = make(shape, classes)
    except Exception as error:
        expected = f"{target}{shape, classes} to return a LearningTask"
        raise ConfigError("task", expected, described(error)) from error
    if not isinstance(found, LearningTask):
        raise ConfigError("task", f"{target} to return a LearningTask", type(found).__name__)
    _check_names(found)
    try:
        _try(found)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError("task", f"{target} to take two examples of zeros", described(error)) from error
    return replace(found, name=target, scoring=replace(found.scoring, counted=False))


def _check_names(task: LearningTask) -> None:
    for metric in task.scoring.metrics:
        if not NAME.match(metric.name) or metric.size < 1:
            raise ConfigError("task", "metrics with names of a-z, 0-9 and hyphens, and sizes above 0", metric.name)
        if not UNIT.match(metric.unit) or not metric.unit.isprintable():
            raise ConfigError("task", "a unit of at most 16 characters without brackets and quotes", metric.unit)
    task.scoring.metric(task.scoring.headline)
    if task.share and task.scoring.metric(task.share).most > 1:
        raise ConfigError("task", "share to name a metric of at most 1", task.share)


def _try(task: LearningTask) -> None:
    import torch

    outputs = torch.zeros(2, *task.output)
    targets = torch.zeros(2, *task.targets.shape, dtype=torch.float32 if task.targets.floating else torch.int64)
    loss = task.loss(outputs, targets)
    if loss.shape != () or not math.isfinite(float(loss)):
        raise ConfigError("task", "a loss that is one finite number", f"shape {tuple(loss.shape)}")
    for metric in task.scoring.metrics:
        count = len(list(metric.sums(outputs, targets)))
        if count != metric.size:
            raise ConfigError("task", f"{metric.size} sums of {metric.name}", count)


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, reduction=reduction)


def _argmax(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.argmax(1)


def _known(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of outputs (n, classes, …) over the targets that are known; 0 without one."""
    from torch.nn import functional

    total = functional.cross_entropy(outputs, targets, ignore_index=metrics.IGNORED, reduction="sum")
    return total / (targets != metrics.IGNORED).sum().clamp(min=1)


def _each_known(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    total = functional.cross_entropy(outputs, targets, ignore_index=metrics.IGNORED, reduction="none").flatten(1).sum(1)
    return total / (targets != metrics.IGNORED).flatten(1).sum(1).clamp(min=1)


# For a number of classes that nobody has said: what methods are given where no run config is.
BY_CLASS = LearningTask(
    CLASSIFICATION,
    Targets(),
    (),
    _cross_entropy,
    BY_ACCURACY,
    _argmax,
    partial(_cross_entropy, reduction="none"),
    "accuracy",
)
