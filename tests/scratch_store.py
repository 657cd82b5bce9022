"""A client's states for tests: on disk, as in a deployment."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sepal.client.state_store import DiskStateStore


class ScratchStore(DiskStateStore):
    """In a directory that is deleted with the store, and not synced.

    Args:
        kind: The method's client state type, where states are loaded.
    """

    def __init__(self, kind: type = object) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sepal-states-")
        super().__init__(Path(self._scratch.name), kind, durable=False)
