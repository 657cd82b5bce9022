"""Data that changes under the same name: a run must not go on with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.client_app.data_digest import data_digest
from sepal.data import ClientData, Examples
from sepal.engines.in_process import run_in_process
from sepal.errors import DataError
from sepal.server.run_store import DiskRunStore
from sepal.strategies.assembly import assemble
from tests.attacks.attacked_federation import EVIL, Hostile
from tests.contract.fakes import FAKES
from tests.contract.harness import Killed

METHOD = FAKES["queue"][0]
KEYS = {
    "dataset": "own",
    "own.shape": "1x8x8",
    "own.classes": 2,
    "model": "digits-cnn",
    "own.data": "rows_of_test:data",
}
ROWS = """
import os
import numpy as np
def data(client):
    x = np.full((8, 1, 8, 8), float(os.environ["ROWS_OF_TEST"]))
    return x, np.arange(8) % 2, x, np.arange(8) % 2
"""


class Own(Hostile):
    """A federation whose clients report the digest of their data."""

    def __init__(self, directory, **settings):
        super().__init__(None, when=lambda order: False, **settings)
        self.directory, self.data = directory, {}
        for name in list(self.nodes.values()):
            self.stores.pop(name)
        self.nodes = {}
        for number in range(4):
            self.join(f"client-{number}")

    def host(self, name):
        host = super().host(name)
        return replace(host, info=replace(host.info, data=self.data.get(name, "a" * 64)))


def test_a_resumed_run_refuses_a_client_with_other_data_of_the_same_size(tmp_path):
    federation = Own(tmp_path / "clients")
    federation.killed_at = 3
    with pytest.raises(Killed):
        federation.run(DiskRunStore(tmp_path / "server", METHOD.server_state))
    federation.killed_at, federation.data[EVIL] = 0, "b" * 64
    words = "client-1: data: expected the data with which the run was started (digest aaaaaaaaaaaa), got other data"
    with pytest.raises(DataError) as caught:
        federation.run(DiskRunStore(tmp_path / "server", METHOD.server_state))
    assert str(caught.value).startswith(words)
    assert all(cause in str(caught.value) for cause in ("schema.toml", "another version of Sepal"))
    federation.data.clear()
    assert federation.run(DiskRunStore(tmp_path / "server", METHOD.server_state)).progress.closed


def test_data_that_changes_in_mid_run_is_refused(tmp_path):
    federation = Own(tmp_path / "clients")
    inner_round = federation.round

    def round(progress, record, line):
        inner_round(progress, record, line)
        if record.round == 2:
            federation.data[EVIL] = "b" * 64

    federation.round = round
    federation.run()
    assert [entry.status for entry in federation.entries(2)] == ["accepted"]
    (entry,) = federation.entries(3)
    assert (entry.status, entry.reason[:24]) == ("refused", "client-1: data: expected")


def test_in_process_a_run_is_not_continued_on_other_data(tmp_path, monkeypatch):
    """The same name, size and shape; only the values differ."""
    (tmp_path / "rows_of_test.py").write_text(ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ROWS_OF_TEST", "0.25")
    assembly = assemble({**KEYS, "method": "fedavg", "clients": 2, "rounds": 2})
    store = lambda: DiskRunStore(tmp_path / "run", assembly.method.server_state)  # noqa: E731

    class Stop:
        def opened(self, progress, total):
            pass

        def round(self, progress, record, line):
            raise Killed

        closed = opened

    with pytest.raises(Killed):
        run_in_process(assembly, store=store(), observers=[Stop()], state_dir=tmp_path / "clients")
    monkeypatch.setenv("ROWS_OF_TEST", "0.5")
    with pytest.raises(DataError, match="client-00000: data: expected the data with which the run was started"):
        run_in_process(assembly, store=store(), state_dir=tmp_path / "clients")
    monkeypatch.setenv("ROWS_OF_TEST", "0.25")
    assert run_in_process(assembly, store=store(), state_dir=tmp_path / "clients").progress.closed


def test_the_digest_covers_every_part_of_the_data_and_needs_the_clients_secret():
    def part(value):
        return Examples(np.full((2, 3), value, np.float32), np.zeros(2, np.int64))

    data = ClientData(part(1), part(2), part(3))
    others = [replace(data, train=part(4)), replace(data, validation=part(4)), replace(data, test=part(4))]
    assert len({data_digest(d, "salt") for d in (data, *others)}) == 4
    assert data_digest(data, "salt") == data_digest(replace(data), "salt") != data_digest(data, "other salt")
