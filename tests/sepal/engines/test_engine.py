"""The in-process engine: one result whatever the number of workers, however little memory, however often killed."""

from __future__ import annotations

from functools import partial

import pytest

from sepal.client_app.state_store import Stored
from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.cache import DEFAULT_LIMIT, StateCache
from sepal.engines.in_process.pool import Pool
from sepal.errors import ConfigError, RoundError, StateError
from sepal.method.interface import resolve
from sepal.protocol.messages import Content, Reply
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import ClientState

FLAT = {
    "dataset": "digits",
    "clients": 5,
    "clients-per-round": 3,
    "rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "partition.subsample": 300,
    "method": "fedpse",
}


def outcome(strategy):
    return digest(strategy.progress.server), dict(strategy.report.digests), strategy.report.totals


@pytest.fixture(scope="module")
def serial():
    return outcome(run_in_process(assemble(FLAT)))


def test_a_memory_that_holds_no_state_changes_nothing(serial):
    """With room for one byte every state is spilled at once and read back from disk."""
    assert outcome(run_in_process(assemble(FLAT), limit=1)) == serial


class Stop(BaseException):
    pass


class StopAfter:
    def __init__(self, at):
        self.at = at

    def opened(self, progress, total):
        self.opened_at = progress.round

    def round(self, progress, record, line):
        if record.round == self.at:
            raise Stop

    def closed(self, progress, line):
        pass


@pytest.mark.parametrize(
    "legs",
    [
        [{"workers": 1, "limit": DEFAULT_LIMIT}, {"workers": 1, "limit": DEFAULT_LIMIT}],
        [{"workers": 3, "limit": 2}, {"workers": 2, "limit": DEFAULT_LIMIT}],
    ],
    ids=["here", "workers"],
)
def test_a_killed_run_goes_on_from_its_last_flush(serial, legs, tmp_path):
    """Killed in round 3; the checkpoint is that of round 2, and the clients are as old as it.

    The number of workers changes nothing: three, the clients of a round, which have no room for states, and after the
    kill two, which keep them.
    """
    assembly = assemble(FLAT)
    server_state = resolve(assembly.method.server_state)
    again, state_dir = StopAfter(99), tmp_path / "state"
    run = partial(run_in_process, assembly, state_dir=state_dir)
    with pytest.raises(Stop):
        run(store=DiskRunStore(tmp_path / "server", server_state), observers=[StopAfter(3)], **legs[0])
    resumed = run(store=DiskRunStore(tmp_path / "server", server_state), observers=[again], **legs[1])
    assert again.opened_at == 2
    assert outcome(resumed) == serial


def test_a_checkpoint_is_written_where_the_last_one_is_old(tmp_path, monkeypatch):
    assembly = assemble({**FLAT, "checkpoint-every": 99})
    server_state = resolve(assembly.method.server_state)
    for pause, expected in ((1e9, 0), (0.0, 2)):  # round 3 is cut before its checkpoint
        monkeypatch.setattr(f"{run_in_process.__module__}.PAUSE", pause)
        store = DiskRunStore(tmp_path / str(pause), server_state)
        with pytest.raises(Stop):
            run_in_process(assembly, store=store, observers=[StopAfter(3)], state_dir=tmp_path / f"state{pause}")
        again = StopAfter(99)
        run_in_process(assembly, store=store, observers=[again], state_dir=tmp_path / f"state{pause}")
        assert again.opened_at == expected


def test_no_number_of_clients_is_refused():
    with pytest.raises(ConfigError, match="clients: expected a number"):
        run_in_process(assemble({**FLAT, "clients": 0, "clients-per-round": 0}))


def test_a_worker_that_dies_is_one_line(monkeypatch):
    """A worker killed from outside (out of memory, say) ends the run with its name, not with a hang."""
    original = Pool.submit

    def kill_first(self, node, message):
        if message.metadata.message_type == "train":
            self._processes[0].kill()
            self._processes[0].join()
        original(self, node, message)

    monkeypatch.setattr(Pool, "submit", kill_first)
    with pytest.raises(StateError, match="worker 0: expected a running process, got one that ended with exit code -9"):
        run_in_process(assemble(FLAT), workers=2)


def stored(round, value):
    import numpy as np

    reply = Reply("run", round, Kind.TRAIN, ClientInfo("c", 1))
    return Stored("asked", ClientState({"w": np.full(1000, value, np.float32)}), reply, Content(b"x"))


def test_the_cache_keeps_its_limit_and_loses_nothing(tmp_path):
    cache = StateCache(tmp_path, ClientState, limit=20_000)
    for number in range(50):
        store = cache.client(f"c{number}")
        store.load("")
        store.save(f"1-{number:024x}", stored(1, number))
        assert cache.bytes <= 20_000
    for number in range(50):
        loaded = cache.client(f"c{number}").load(f"1-{number:024x}")
        assert loaded is not None
        assert loaded.state.model["w"][0] == number


def test_the_cache_forgets_versions_that_nobody_can_ask_for(tmp_path):
    """After a save only the new version and the one it came from remain."""
    cache = StateCache(tmp_path, ClientState)
    store = cache.client("c")
    versions = [f"{round}-{round:024x}" for round in range(1, 5)]
    for round, version in enumerate(versions, 1):
        store.load(versions[round - 2] if round > 1 else "")
        store.save(version, stored(round, round))
    assert cache.versions("c") == versions[-2:]


def test_a_round_error_names_the_client_that_cannot_take_part():
    """A partition that leaves a client without data is the client's own word, and ends the run."""
    with pytest.raises(Exception, match="expected") as error:
        run_in_process(assemble({**FLAT, "partition.name": "natural"}))
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, RoundError) or "client" in str(error.value)


def test_the_versions_of_a_client_are_those_in_memory(tmp_path):
    """They are looked up by client: a scan of all entries made a round of n clients take n² steps."""
    cache = StateCache(tmp_path, ClientState, limit=20_000)
    for number in range(9):
        for client in ("a", "b"):
            cache.put(client, f"{number}-{number:024x}", stored(number, number))
    assert {client: cache.versions(client) for client in ("a", "b")} == {
        client: [version for name, version in cache._entries if name == client] for client in ("a", "b")
    }
    assert cache.versions("a")
    cache.release("a")
    assert cache.versions("a") == []
    assert cache.bytes == sum(size for _, size in cache._entries.values())
