"""What a server keeps of a run, so that it can be continued: checkpoints, records of rounds, and their uploads."""

from sepal.server.run_store.disk import DiskRunStore, evict
from sepal.server.run_store.interface import RunStore
from sepal.server.run_store.memory import MemoryRunStore

__all__ = ["DiskRunStore", "MemoryRunStore", "RunStore", "evict"]
