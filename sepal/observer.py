"""Who wants to know what happens in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from sepal.progress import Progress, RoundRecord


class Observer(Protocol):
    """Told what happens in a run: a progress bar, the run directory's writer."""

    def opened(self, progress: Progress, total: int) -> None:
        """Take note of the state that the run starts or continues from, and of its number of rounds."""

    def round(self, progress: Progress, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Take note of a completed (or replayed) round."""

    def closed(self, progress: Progress, line: Mapping[str, Any]) -> None:
        """Take note of the completed closing round."""
