"""The specification of a partitioned data set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sepal.config import FolderSettings, PartitionSettings, SplitSettings
from sepal.errors import DataError


@dataclass(frozen=True)
class DataSpec:
    """Everything that determines which client holds which example. Hashable, safe to pickle.

    Attributes:
        dataset: One of :func:`sepal.data.source_names`.
        data_dir: Directory of the files; empty for ``$SEPAL_DATA`` or ``~/.cache/sepal/data``.
        partition: The keys ``partition.*``.
        split: The keys ``split.*``.
        clients: Number of clients, at least 1.
        seed: The run's seed, used for partition and split unless ``split.seed`` is set. By default, methods compared at
            one seed see the same clients, and the spread over seeds includes that of the partition. Set ``split.seed``
            to measure the spread of training alone.
        folder: The keys ``folder.*``.
    """

    dataset: str
    data_dir: str | Path = ""
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    clients: int = 10
    seed: int = 0
    folder: FolderSettings = field(default_factory=FolderSettings)

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise DataError("clients", "at least 1", self.clients)

    @property
    def data_seed(self) -> int:
        """The seed that partition and split are derived from."""
        return self.seed if self.split.seed < 0 else self.split.seed
