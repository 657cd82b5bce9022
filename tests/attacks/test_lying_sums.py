"""Sums of metrics that a client invents: each is refused or counts, and none ends the run for the others."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import numpy as np
import pytest

from sepal.errors import ProtocolError
from sepal.server.accuracy import merged, view_figures
from sepal.tasks import Metric, Scoring
from sepal.tasks.making import make_task

TASKS = [
    ("multilabel", "auto", (4,), 3),
    ("regression", "auto", (4,), 1),
    ("segmentation", "iou", (1, 2, 2), 3),
    ("tokens", "auto", (4,), 5),
    ("classification", "auroc", (4,), 2),
]
ODD = [0.0, 1.0, -1.0, 5e17, -5e17, 1e18, -1e18, 5e-324, -5e-324]  # 1e18 / 5e-324 is infinite
OWN = Scoring((Metric("share", 2, lambda *_: (), lambda sums: sums[0] / sums[1]),), "share")  # as in docs/tasks.md


def lies(scoring, count=400):
    """Replies that a server accepts, from sums that are mostly nonsense."""
    draw = np.random.default_rng(0)
    for numbers in ([0.0] * (scoring.size - 2), *draw.choice(ODD, (count, scoring.size - 2)).tolist()):
        for metric in (m for m in scoring.metrics if m.classes):  # odd counts by class are refused: below
            at = 2 + sum(earlier.size for earlier in scoring.metrics[: scoring.metrics.index(metric)])
            numbers[at : at + metric.size] = draw.integers(0, 2, metric.size).tolist()
        sums = (100.0, 0.0, *numbers)
        with suppress(ProtocolError):
            scoring.check("sums", sums)
            yield {"trained.sums": sums}


@pytest.mark.parametrize(
    "counts",
    [
        [200.0, 0.0, 0.0, 0.0, -100.0, 1e6],  # recall 200 %, a million examples
        [2.5, 2.0, 1.0, 1.0, 1.0, 1.0],
        [5.0, 5.0, 1.0, 0.0, 0.0, 0.0],  # eleven predictions for ten examples
        [5.0, 5.0, 0.0, 0.0, 0.0, 1.0],
    ],
)
def test_counts_by_class_are_of_no_more_than_the_claimed_examples(counts):
    scoring = make_task("classification", "macro-f1", "", (4,), 2).scoring
    (balanced, f1), rest = scoring.metrics[1:3], (0.0,) * scoring.metrics[3].size
    assert balanced.classes == f1.classes == 2
    right = [4.0, 4.0, 1.0, 1.0, 1.0, 1.0]
    scoring.check("sums", (10.0, 1.0, 8.0, 10.0, *right, *right, *rest))
    with pytest.raises(ProtocolError, match="counts by class of 10 examples"):
        scoring.check("sums", (10.0, 1.0, 8.0, 10.0, *right, *counts, *rest))


@pytest.mark.parametrize("scoring", [OWN, *(make_task(*task[:2], "", *task[2:]).scoring for task in TASKS)])
def test_no_sums_of_a_client_end_the_run_or_give_a_figure_that_is_none(scoring):
    replies = list(lies(scoring))
    assert replies
    for pair in itertools.pairwise(replies):
        figures = view_figures(pair, "trained", "", scoring) or {}
        together = scoring.values(merged(pair, "trained"))
        assert all(map(math.isfinite, [*figures.values(), *together.values()]))
        for metric in scoring.metrics:
            assert metric.possible(together.get(metric.name, metric.least))
