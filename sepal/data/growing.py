"""A client's own data that may grow while a run goes on (``data-changes = "accept"``).

Which part an example belongs to follows from the example alone, by a digest with a secret of the client, and not from
how many there are or in which order they come. So an example that was once in the test part is never trained on, and
examples that are alike are in one part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.config import RunConfig
from sepal.data.examples import ClientData, Examples, Index
from sepal.data.federation import DealtData, DerivedData, FederatedData
from sepal.data.schema import parsed
from sepal.data.sources import load
from sepal.data.splitting import FALLBACK_TEST_FRACTION
from sepal.data.streams import Stream
from sepal.errors import ConfigError

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class GrowingData(DerivedData):
    """A client's own data, split by the examples' digests; see :class:`sepal.data.federation.FederatedData`.

    Attributes:
        salt: A secret of the client: without it, nobody could tell whether an example of theirs would be a test.
        test: Share of all examples in the test part, in the mean.
        validation: Share of the others in the validation part, in the mean.
    """

    salt: str
    test: float
    validation: float

    @classmethod
    def of(cls, source: FederatedData, salt: str, config: RunConfig) -> GrowingData:
        """Return the data with the shares of ``split.*``."""
        return cls(source, salt, config.split.test_fraction or FALLBACK_TEST_FRACTION, config.split.validation)

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return the client's data as they are now.

        Raises:
            ConfigError: The data are not the client's own, or a Dataset that is read batch by batch.
            DataError: They are unusable.
        """
        data = self._unscaled(number, clients, name)
        if not isinstance(self.source, DealtData) or not self.info.table:
            return data
        return data.standardized(parsed(self.info.schema).numbers, self.source.spec.folder.precision == "float32")

    def raw(self, number: int, clients: int, name: str) -> NDArray[np.float64]:
        """Return the first training rows of a table as they are in its file, float64 (at most 64, columns)."""
        return np.asarray(self._unscaled(number, clients, name).train.x[:64], np.float64)

    def _unscaled(self, number: int, clients: int, name: str) -> ClientData:
        if not self.source.private:
            expected = "refuse where a client has a part of shared files (sepal join --data, or --data-dir alone)"
            raise ConfigError("data-changes", expected, "accept")
        if isinstance(self.source, DealtData):
            spec = self.source.spec
            rows = load(spec.dataset, spec.data_dir, spec.folder)
            train, validation, test = (rows.take(places) for places in self._sides(rows.x))
            return ClientData(train, validation, test)
        data = self.source.client(number, clients, name)
        if isinstance(data.train, Stream):
            expected = "refuse with a Dataset, which is read batch by batch: return arrays for it"
            raise ConfigError("data-changes", expected, "accept")
        x, y = (np.concatenate([getattr(getattr(data, part), key) for part in PARTS]) for key in ("x", "y"))
        train, validation, test = (Examples(x[places], y[places]) for places in self._sides(x))
        return ClientData(train, validation, test)

    def _sides(self, x: NDArray[Any]) -> tuple[Index, Index, Index]:
        """Return the places of train, validation and test part among the examples ``x`` (n, …), each sorted."""
        key = hashlib.sha256(self.salt.encode()).digest()
        where = np.array([_share(row, key) for row in x])
        is_test = where < self.test
        is_validation = ~is_test & (where < self.test + (1 - self.test) * self.validation)
        train, validation, test = map(np.flatnonzero, (~is_test & ~is_validation, is_validation, is_test))
        return train, validation, test


def _share(row: NDArray[Any], key: bytes) -> float:
    """Return a number in [0, 1) that follows from an example's input and ``key`` alone."""
    number = row + 0.0 if row.dtype.kind == "f" else row  # -0.0 and 0.0 are alike
    digest = hashlib.blake2b(np.ascontiguousarray(number).tobytes(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big") / 2**64
