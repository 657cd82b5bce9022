"""The figures of its own that a method may report of a client's round."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sepal.errors import ProtocolError
from sepal.names import NAME
from sepal.protocol.fields import GREATEST
from sepal.protocol.views import CLOSING_VIEWS

MOST_REPORTS = 12  # figures that a method may report; keeps a reply below sepal.protocol.fields.MOST_METRICS
OURS = frozenset({"capacity", "examples", "multiply-adds", "seconds", "steps", "unseen-test-labels"})


def reported(reports: Mapping[str, float], name: str, value: float) -> dict[str, float]:
    """Return ``reports`` with another figure; one that is not finite is ignored.

    Args:
        reports: The figures so far.
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
        return dict(reports)
    if not 0 <= value <= GREATEST:
        raise ProtocolError(f"report {name}", f"a number from 0 to {GREATEST:g}", value)
    figures = {**reports, name: float(value)}
    if len(figures) > MOST_REPORTS:
        raise ProtocolError("report", f"at most {MOST_REPORTS} names", f"{len(figures)}, the last {name}")
    return figures
