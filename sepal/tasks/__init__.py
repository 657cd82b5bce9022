"""Tasks: target, loss, prediction, and metrics as sums. Importing this package imports no torch."""

from __future__ import annotations

from sepal.tasks.learning import LearningTask, Targets
from sepal.tasks.making import learning_task
from sepal.tasks.scoring import Measure, Metric, Scoring

__all__ = ["LearningTask", "Measure", "Metric", "Scoring", "Targets", "learning_task"]
