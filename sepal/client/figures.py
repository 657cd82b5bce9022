"""What a client's work costs, and the figures that its method reports."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sepal.errors import ProtocolError
from sepal.protocol.fields import GREATEST, NAME
from sepal.protocol.views import CLOSING_VIEWS

MOST_REPORTS = 12  # figures that a method may report; keeps a reply below sepal.protocol.fields.MOST_METRICS
OURS = frozenset({"capacity", "examples", "multiply-adds", "seconds", "steps", "unseen-test-labels"})


class Figures:
    """Base of :class:`sepal.client.training.Trainer`, which has these attributes as fields.

    Attributes:
        seconds: Seconds of training since :meth:`spent` was last called.
        steps: Optimizer steps since then.
        multiply_adds: Multiply-adds since then; see :mod:`sepal.client.multiply_adds`.
        reports: The method's own figures since then.
    """

    seconds: float
    steps: int
    multiply_adds: float
    reports: dict[str, float]

    def report(self, name: str, value: float) -> None:
        """Report a figure of this round; it appears in the client's ``metrics`` in metrics.jsonl.

        Call it from ``train`` or ``adapt``. If a name is reported twice, the last value counts. Values that are not
        finite are ignored.

        Args:
            name: At most 64 letters, digits, ``_`` or ``-``; at most 12 names a round.
            value: From 0 to 1e18.

        Raises:
            ProtocolError: The name is invalid or reserved, the value is out of range, or there are too many names.
        """
        if not NAME.match(name) or "." in name:
            raise ProtocolError("report", "a name of at most 64 letters, digits, '_' or '-'", name)
        if name in OURS or name.partition("-")[0] in CLOSING_VIEWS:
            raise ProtocolError("report", f"another name than {', '.join(sorted(OURS))} and views", name)
        if not math.isfinite(value):
            return
        if not 0 <= value <= GREATEST:
            raise ProtocolError(f"report {name}", f"a number from 0 to {GREATEST:g}", value)
        self.reports[name] = float(value)
        if len(self.reports) > MOST_REPORTS:
            raise ProtocolError("report", f"at most {MOST_REPORTS} names", f"{len(self.reports)}, the last {name}")

    def spent(self) -> Mapping[str, float]:
        """Return the figures since the last call, and reset them: seconds, steps, multiply-adds, reports."""
        figures = {"seconds": self.seconds, "steps": float(self.steps), "multiply-adds": self.multiply_adds}
        figures |= self.reports
        self.seconds, self.steps, self.multiply_adds, self.reports = 0.0, 0, 0.0, {}
        return figures
