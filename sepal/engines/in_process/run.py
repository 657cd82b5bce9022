"""Runs a federation in process, with the same strategy and client hosts as Flower's engines."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from flwr.app import Message

from sepal.config import RunConfig
from sepal.config.rules import check_deployed
from sepal.engines.in_process.cache import DEFAULT_LIMIT, forget_secrets
from sepal.engines.in_process.grid import Batches, InProcessGrid
from sepal.engines.in_process.pool import Pool, WorkerSetup
from sepal.engines.in_process.worker import Clients
from sepal.errors import ConfigError
from sepal.protocol.messages import Content
from sepal.seeding import generators_kept
from sepal.server.central_noise import of_seed
from sepal.server.observer import Observer
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import MemoryRunStore, RunStore
from sepal.server.strategy import SepalStrategy
from sepal.strategies.assembly import Assembly
from sepal.training.devices import at_once, spread

UPLOADS = 256 << 20  # bytes of a round's uploads in memory; more go to temporary files
PAUSE = 30.0  # seconds between two checkpoints, at most, where rounds are not longer


class FlushedStore:
    """A run store that writes clients' states to disk before each checkpoint.

    After a kill, clients' states on disk are those of the last checkpoint, so later rounds are run again rather than
    replayed. A checkpoint is due after ``PAUSE`` seconds, so that this is never much work. Uploads are kept in memory
    only. Records are stored, because the report is computed from them.
    """

    replays = False
    lasts = True

    def __init__(self, store: RunStore, flush: Callable[[], None]) -> None:
        self._store, self._flush, self._memory = store, flush, MemoryRunStore(UPLOADS)
        self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether the last checkpoint was long ago."""
        return time.monotonic() - self._last >= PAUSE

    def check_held(self) -> None:
        """Check that no other process has taken the run over."""
        self._store.check_held()

    def latest(self) -> RunState | None:
        """Return the newest checkpoint."""
        return self._store.latest()

    def replay(self, round: int) -> RoundRecord | None:
        """Return None: rounds after the checkpoint are run again."""

    def records(self, last: int) -> Iterator[RoundRecord]:
        """Return the records of rounds 1 to ``last``."""
        return self._store.records(last)

    def spool(self, round: int, client: str, content: Content) -> None:
        """Store an upload in memory."""
        self._memory.spool(round, client, content)

    def read(self, round: int, client: str) -> Content:
        """Return an upload."""
        return self._memory.read(round, client)

    def keep_part(self, round: int, name: str, data: bytes) -> None:
        """Keep a part of a round in memory."""
        self._memory.keep_part(round, name, data)

    def part(self, round: int, name: str) -> bytes | None:
        """Return a part of the current round."""
        return self._memory.part(round, name)

    def drop_parts(self, round: int, prefix: str) -> None:
        """Discard parts of the current round."""
        self._memory.drop_parts(round, prefix)

    def releases(self, round: int) -> frozenset[str]:
        """Return the releases of a round that are noted on disk."""
        return self._store.releases(round)

    def note_release(self, round: int, name: str) -> int:
        """Note a release on disk; return how many different ones there were of this round, before a kill too."""
        return self._store.note_release(round, name)

    def commit(self, record: RoundRecord) -> None:
        """Store the round's record."""
        self._store.commit(record)

    def undo(self, record: RoundRecord) -> None:
        """Go back to before ``record.round``."""
        self._store.undo(record)

    def undone(self, round: int) -> RoundRecord | None:
        """Return the record of the undone attempts of ``round``."""
        return self._store.undone(round)

    def undoable(self) -> list[RoundRecord]:
        """Return nothing, because no round is replayed."""
        return []

    def checkpoint(self, progress: RunState) -> None:
        """Write the clients' states to disk, then the checkpoint."""
        self.check_held()
        self._flush()
        self._store.checkpoint(progress)
        self._last = time.monotonic()

    def keep_best(self, progress: RunState, whole: bool = True) -> None:
        """Write the clients' states to disk, then the state from which the best full evaluation began."""
        self.check_held()
        self._flush()
        self._store.keep_best(progress, whole)

    def best(self) -> RunState | None:
        """Return that state."""
        return self._store.best()

    def durable(self) -> Mapping[str, str]:
        """Return the clients' versions at the oldest kept checkpoint."""
        return self._store.durable()

    def best_versions(self) -> Mapping[str, str]:
        """Return the clients' versions of the best state."""
        return self._store.best_versions()

    def evicted(self) -> frozenset[str]:
        """Return the clients that an operator has evicted."""
        return self._store.evicted()


class _InMemory(MemoryRunStore):
    """A store in memory; clients, which forget old states in memory, write those of the best evaluation to disk."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(UPLOADS)
        self._flush = flush

    def keep_best(self, progress: RunState, whole: bool = True) -> None:
        """Keep the state from which the best full evaluation began."""
        if whole:
            self._flush()
        super().keep_best(progress, whole)


def run_in_process(
    assembly: Assembly,
    *,
    store: RunStore | None = None,
    observers: Sequence[Observer] = (),
    workers: int = 1,
    state_dir: Path | None = None,
    limit: int = DEFAULT_LIMIT,
) -> SepalStrategy:
    """Run a federation and return the strategy, with the final state as ``progress``.

    Args:
        assembly: The run's parts; ``clients`` must be above 0.
        store: Stores what is needed to resume; by default in memory only.
        observers: Called after every round.
        workers: Number of worker processes; 1 uses this process, 0 one worker per core. Results do not depend on it.
            They use the machine's accelerators in turn, or those of ``gpus``; several may share one. With
            ``engine.batch`` above 1 they depend on it by rounding, because other clients train at once.
        state_dir: Directory of clients' states, needed to resume; None for a temporary directory.
        limit: Bytes of clients' states in memory, over all workers; others are on disk.

    Raises:
        SepalError: As in :meth:`SepalStrategy.start`.
    """
    config = assembly.setup.config
    check_clients(config)
    workers = min(workers or len(os.sched_getaffinity(0)), config.clients)
    devices = spread(config.device, config.gpus, workers)
    alone = config.engine.capture or not assembly.method.batched
    batch = 1 if alone else at_once(config.engine.batch, devices[0])
    with tempfile.TemporaryDirectory(prefix="sepal-") as scratch:
        directory = state_dir or Path(scratch)
        forget_secrets(directory)
        if workers == 1:
            clients = Clients(assembly, directory, limit, devices[0], batch)
            with generators_kept():
                return _run(assembly, store, observers, _serial_grid(clients, config.clients, batch), clients.flush)
        level = logging.getLogger("sepal").getEffectiveLevel()
        pool = Pool([WorkerSetup(assembly, directory, limit // workers, device, batch, level) for device in devices])
        try:
            nodes = dict.fromkeys(range(1, config.clients + 1), _never)
            return _run(assembly, store, observers, InProcessGrid(nodes, pool), pool.flush)
        finally:
            pool.close()


def check_clients(config: RunConfig) -> None:
    """Raise if ``clients`` is 0, which means all clients that register, or a key needs machines of their own.

    Raises:
        ConfigError: See above.
    """
    check_deployed(config)
    if not config.clients:
        raise ConfigError("clients", "a number: in process no clients register", 0)


def _run(
    assembly: Assembly,
    store: RunStore | None,
    observers: Sequence[Observer],
    grid: InProcessGrid,
    flush: Callable[[], None],
) -> SepalStrategy:
    kept = FlushedStore(store, flush) if store else _InMemory(flush)
    about = (assembly.method, assembly.setup, kept, observers)
    secret = of_seed(assembly.setup.config.seed)  # clients trust this process, and a run is to be repeated by its seed
    strategy = SepalStrategy(*about, settle=0.0, agreed=assembly.agreed, secret=secret)
    strategy.start(grid)
    return strategy


def _serial_grid(clients: Clients, count: int, batch: int) -> InProcessGrid:
    if batch > 1:
        return InProcessGrid(dict.fromkeys(range(1, count + 1), _never), Batches(clients.answer_all, batch))
    return InProcessGrid({number + 1: partial(clients.answer, number) for number in range(count)})


def _never(message: Message) -> Message:
    raise NotImplementedError("messages go to the workers")
