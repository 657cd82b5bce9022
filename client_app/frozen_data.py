"""The copy of a client's own data on which it trains in a run with ``data-changes = "freeze"``.

It is taken when the server first asks the client who it is, so that the digest that the server pins is that of the
copy. It lies in the client's state directory of the run, readable by its user alone, and goes with the closing round.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from sepal.data import ClientData, Examples
from sepal.data.federation import DealtData, DerivedData
from sepal.data.growing import PARTS
from sepal.data.scaling import Scale
from sepal.data.streams import Stream
from sepal.errors import ConfigError, DamagedError, StateError
from sepal.storage.files import read_tensors, write_once, write_tensors
from sepal.storage.regular import check_lock

log = logging.getLogger("sepal")
FILE, PIN, LOCK = "data.frozen", "data.digest", "data.lock"
PATIENCE = 60.0  # seconds to wait for another process that takes the copy
RAW = 64  # rows of a table as they are in its file, by which an exported model is tried


@dataclass(frozen=True)
class FrozenData(DerivedData):
    """A client's data as they were when its run began; see :class:`sepal.data.federation.FederatedData`.

    Attributes:
        directory: The client's state directory of the run.
        digest: Returns the digest of a client's data.
    """

    directory: Path
    digest: Callable[[ClientData], str]

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return the copy of the client's data. The first call takes it.

        Raises:
            ConfigError: The data are not the client's own, or a Dataset that is read batch by batch.
            StateError: The copy cannot be written or read.
        """
        return self._parts(number, clients, name)[0]

    def raw(self, number: int, clients: int, name: str) -> npt.NDArray[np.float64]:
        """Return the first training rows of a table as they were in its file, float64 (at most 64, columns)."""
        return self._parts(number, clients, name)[1]

    def _parts(self, number: int, clients: int, name: str) -> tuple[ClientData, npt.NDArray[np.float64]]:
        if not self.source.private:
            expected = "refuse where a client has a part of shared files (sepal join --data, or --data-dir alone)"
            raise ConfigError("data-changes", expected, "freeze")
        check_lock(self.directory / LOCK)
        try:
            lock = FileLock(self.directory / LOCK, PATIENCE).acquire()
        except Timeout:
            raise StateError(str(self.directory / LOCK), "one process at a time", "another one that uses it") from None
        with lock:
            if (stored := self._stored(name)) is not None:
                return stored
            data = self.source.client(number, clients, name)
            if isinstance(data.train, Stream):
                expected = "refuse with a Dataset, which is read batch by batch: return arrays for it"
                raise ConfigError("data-changes", expected, "freeze")
            raw = np.empty((0, 0))
            if isinstance(self.source, DealtData) and data.scale:
                raw = np.asarray(self.source.raw(number, clients).train.x[:RAW], np.float64)
            digest = self.digest(data)
            began = write_once(self.directory / PIN, digest.encode()).decode(errors="replace")
            if began == digest:  # else the copy was lost, and the data are others by now: the host refuses them
                self._store(data, raw)
            return data, raw

    def _stored(self, name: str) -> tuple[ClientData, npt.NDArray[np.float64]] | None:
        """Return the copy; None if there is none, or a damaged one."""
        path = self.directory / FILE
        if not path.exists():
            return None
        try:
            arrays, text = read_tensors(path)
            if json.loads(text).get("of") != self._of:
                raise DamagedError(str(path), "the copy of this client's data in this run", "another file")
            train, validation, test = (Examples(arrays[f"{part}.x"], arrays[f"{part}.y"]) for part in PARTS)
            scale = Scale(arrays["mean"], arrays["factor"]) if "mean" in arrays else None
            return ClientData(train, validation, test, scale), arrays["raw"]
        except (DamagedError, KeyError) as reason:
            log.warning("%s: %s; it is copied again if the data are as they were", name, reason)
            path.unlink(missing_ok=True)
            return None

    def _store(self, data: ClientData, raw: npt.NDArray[np.float64]) -> None:
        arrays = {f"{part}.{key}": getattr(getattr(data, part), key) for part in PARTS for key in ("x", "y")}
        arrays = {name: np.ascontiguousarray(array) for name, array in {**arrays, "raw": raw}.items()}
        if data.scale:
            arrays |= {"mean": data.scale.mean, "factor": data.scale.factor}
        write_tensors(self.directory / FILE, arrays, json.dumps({"of": self._of}), mode=0o600)

    @property
    def _of(self) -> str:
        """Return what the file claims to be: of this client in this run."""
        return "/".join(self.directory.parts[-2:])

    def remove(self) -> None:
        """Remove the copy: the run has ended. Its digest stays, by which data that have changed are still refused."""
        (self.directory / FILE).unlink(missing_ok=True)
