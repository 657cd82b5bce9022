"""Sums of metrics that a client invents: each is refused or counts, and none ends the run for the others."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import numpy as np
import pytest

from sepal.errors import ProtocolError
from sepal.protocol.tasks import Metric, Scoring
from sepal.protocol.tasks.making import made
from sepal.server.accuracy import merged, view_figures

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
    for numbers in ((0.0,) * (scoring.size - 2), *draw.choice(ODD, (count, scoring.size - 2)).tolist()):
        sums = (1.0, 0.0, *numbers)
        with suppress(ProtocolError):
            scoring.check("sums", sums)
            yield {"trained.sums": sums}


@pytest.mark.parametrize("scoring", [OWN, *(made(*task[:2], "", *task[2:]).scoring for task in TASKS)])
def test_no_sums_of_a_client_end_the_run_or_give_a_figure_that_is_none(scoring):
    replies = list(lies(scoring))
    assert replies
    for pair in itertools.pairwise(replies):
        found = view_figures(pair, "trained", "", scoring) or {}
        together = scoring.values(merged(pair, "trained"))
        assert all(map(math.isfinite, [*found.values(), *together.values()]))
        for metric in scoring.metrics:
            assert metric.possible(together.get(metric.name, metric.least))
