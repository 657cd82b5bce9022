"""Tasks: target, loss, prediction, and metrics as sums. Importing this package imports no torch."""

from __future__ import annotations

from sepal.tasks.learning import Targets, Task
from sepal.tasks.making import task_of_run
from sepal.tasks.scoring import Measure, Metric, Scoring

__all__ = ["Measure", "Metric", "Scoring", "Targets", "Task", "task_of_run"]
