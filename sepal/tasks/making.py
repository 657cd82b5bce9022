"""Makes the task of a run: a built-in one or the user's own, with the headline that the run key ``metric`` chooses.

A task of your own is ``task = "package.module:NAME"``, a class or function that is called with the shape of one input
and the number of classes, and returns a :class:`~sepal.tasks.learning.Task` (docs/tasks.md).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from sepal.errors import ConfigError
from sepal.tasks.builtin import LEAST, TASKS
from sepal.tasks.learning import Targets, Task
from sepal.tasks.scoring import MOST_SUMS, NAME, UNIT
from sepal.user_modules import described, load

if TYPE_CHECKING:
    from sepal.config import RunConfig


def task_of_run(config: RunConfig, shape: tuple[int, ...], classes: int) -> Task:
    """Return the task of a run, with the headline that ``metric`` chooses.

    Args:
        config: The run's configuration.
        shape: Shape of one input.
        classes: Number of classes, labels, numbers or token ids to predict.

    Raises:
        ConfigError: The task or the metric is unknown, or does not fit the data.
    """
    return make_task(config.task, config.metric, config.target_unit, shape, classes)


def make_task(name: str, metric: str, unit: str, shape: tuple[int, ...], classes: int) -> Task:
    """Return a task from the values of ``task``, ``metric`` and ``target-unit``; see :func:`task_of_run`."""
    if unit and name != "regression":
        raise ConfigError("target-unit", f"nothing for the task {name}, whose metrics have units of their own", unit)
    if ":" in name:
        task = own_task(name, shape, classes)
    elif classes < LEAST.get(name, 2):
        raise ConfigError("task", f"data with at least {LEAST.get(name, 2)} classes for {name}", classes)
    else:
        task = TASKS[name](shape, classes, unit)
    if metric != "auto":
        task.scoring.metric(metric)  # refused here if there is none
        counted = task.classifies and metric == "accuracy"
        task = replace(task, scoring=replace(task.scoring, headline=metric, counted=counted))
    if task.scoring.size > MOST_SUMS and not task.scoring.counted:
        got = f"{task.scoring.size} for {classes} classes"
        raise ConfigError("metric", f"metrics of at most {MOST_SUMS} sums", got)
    return replace(task, recipe=(name, metric, unit, shape, classes))


def targets_of(task: str, shape: tuple[int, ...], classes: int) -> Targets:
    """Return what the targets of ``task`` look like; arguments as for :func:`task_of_run`.

    Raises:
        ConfigError: The task does not fit the data, or is an own one that cannot be used.
    """
    return (own_task(task, shape, classes) if ":" in task else TASKS[task](shape, classes)).targets


def own_task(target: str, shape: tuple[int, ...], classes: int) -> Task:
    """Return an own task, after a trial of its loss and metrics on two examples of zeros.

    Raises:
        ConfigError: It cannot be imported, fails, or is no task.
    """
    make = load("task", target, ConfigError)
    try:
        task = make(shape, classes)
    except Exception as error:
        expected = f"{target}{shape, classes} to return a sepal.tasks.Task"
        raise ConfigError("task", expected, described(error)) from error
    if not isinstance(task, Task):
        raise ConfigError("task", f"{target} to return a sepal.tasks.Task", type(task).__name__)
    _check_names(task)
    try:
        _try(task)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError("task", f"{target} to take two examples of zeros", described(error)) from error
    return replace(task, name=target, scoring=replace(task.scoring, counted=False))


def _check_names(task: Task) -> None:
    for metric in task.scoring.metrics:
        if not NAME.match(metric.name) or metric.size < 1:
            raise ConfigError("task", "metrics with names of a-z, 0-9 and hyphens, and sizes above 0", metric.name)
        if not UNIT.match(metric.unit) or not metric.unit.isprintable():
            raise ConfigError("task", "a unit of at most 16 characters without brackets and quotes", metric.unit)
    task.scoring.metric(task.scoring.headline)
    if task.share and task.scoring.metric(task.share).most > 1:
        raise ConfigError("task", "share to name a metric of at most 1", task.share)


def _try(task: Task) -> None:
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
