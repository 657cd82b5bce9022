"""Whether a curve is still rising at the last round, so that more rounds would change a comparison.

The points are the mean validation accuracies of the rounds' clients, or test accuracies if there is no validation data;
in the received view for a method that deploys it, and otherwise in the trained view. Rounds that evaluate all clients
are left out where there are enough others: in these, some methods tune the trained model further.

The mean of the last tenth of the points is compared with that of the tenth before, of at least three points each. A
curve is still rising if the difference is above half a point and above twice its standard error, which comes from the
scatter within the two tenths. Over several seeds, differences are averaged. With fewer than six points there is no
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sepal.cli.runs import Line

LEAST_POINTS, PARTS = 3, 10
LEAST_RISE, ERRORS = 0.005, 2.0  # accuracy; standard errors


@dataclass(frozen=True)
class Rise:
    """A rise of accuracy at the end of a curve.

    Attributes:
        mean: Mean of the last points minus that of as many before them, as a fraction.
        error: Its standard error.
        points: Number of points in each mean.
    """

    mean: float
    error: float
    points: int

    @property
    def goes_on(self) -> bool:
        """Whether the curve counts as still rising."""
        return self.mean > LEAST_RISE and self.mean > ERRORS * self.error


def rise(lines: Sequence[Line], deployed: str) -> Rise | None:
    """Return the rise at the end of a run; None if it has too few points.

    Args:
        lines: Lines of metrics.jsonl.
        deployed: View of the model that the method deploys.
    """
    view = "received" if deployed == "received" else "trained"
    full = [line for line in lines if line["full"] or line["phase"] == "closing"]
    sampled = [line for line in lines if not (line["full"] or line["phase"] == "closing")]
    kinds = ("validation", "accuracy")
    series = (_means(some, kind, view) for some in (sampled, full) for kind in kinds)
    values = next((means for means in series if len(means) >= 2 * LEAST_POINTS), None)
    if values is None:
        return None
    points = max(LEAST_POINTS, len(values) // PARTS)
    last, before = values[-points:], values[-2 * points : -points]
    error = np.sqrt((np.var(last, ddof=1) + np.var(before, ddof=1)) / points)
    return Rise(float(np.mean(last) - np.mean(before)), float(error), points)


def mean_rise(found: Sequence[Rise | None]) -> Rise | None:
    """Return the mean rise over the runs that have one; None if there is none."""
    there = [each for each in found if each]
    if not there:
        return None
    error = np.sqrt(sum(each.error**2 for each in there)) / len(there)
    return Rise(float(np.mean([each.mean for each in there])), float(error), max(each.points for each in there))


def _means(lines: Sequence[Line], kind: str, view: str) -> list[float]:
    return [found["mean"] for line in lines if (found := line.get(kind, {}).get(view))]
