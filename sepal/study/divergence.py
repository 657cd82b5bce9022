"""What is said of runs in which the training of clients diverged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def divergence(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return a line that counts the diverged trainings of clients and the rounds repeated for them; empty if none.

    Args:
        summaries: Content of the summary.json of runs that differ in their seeds. Runs of versions that did not count
            have none.
    """
    hit = [summary for summary in summaries if summary.get("diverged") or summary.get("undone")]
    if not hit:
        return ""
    diverged, undone = (sum(summary.get(key, 0) for summary in hit) for key in ("diverged", "undone"))
    where = f" in {len(hit)} of {len(summaries)} runs" if len(summaries) > 1 else ""
    repeated = f", and {undone} round{'s were' if undone > 1 else ' was'} repeated with a lower rate" if undone else ""
    trainings = f"{diverged} training{'s' * (diverged != 1)} of clients diverged{where}{repeated}"
    return f"{trainings}: a lower lr or a smaller clip-gradient is safer; `sepal tune` tries several rates"
