"""``data-changes = "freeze"``: a client trains on a copy of its data from the beginning of a run to its end."""

from __future__ import annotations

import stat
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from sepal.client_app.frozen_data import FrozenData
from sepal.data import ClientData, Examples
from sepal.data.scaling import Scale
from sepal.data.schema import written
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, SepalError
from sepal.export.portable import load
from sepal.flower.simulation import SIMULATION
from sepal.server.run_store import DiskRunStore
from sepal.server_app import app as server_app
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from tests.client_app.deployed_clients import NAMES, RUN, Deployment, own_nodes
from tests.client_app.test_whole_tables import SCHEMA, table
from tests.contract.harness import Killed


@pytest.fixture
def sites(tmp_path, monkeypatch):
    return own_nodes(tmp_path, monkeypatch)


def copies(directory):
    return sorted(path.parent.name for path in (directory / "states").glob("*/*/data.frozen"))


def test_data_that_grow_do_not_end_the_run_for_all(sites):
    """``refuse``, the default: client.examples: expected 22, got 43."""
    nodes, change = sites
    deployment = Deployment(nodes, changes={2: lambda: change((48, 0), (24, 0)), 3: lambda: change((24, 0), (24, 0))})
    assert deployment.start().progress.closed
    assert deployment.statuses("site-a") == [["accepted"], ["accepted"], ["refused"], ["accepted"], ["accepted"]]
    assert deployment.statuses("site-b") == [["accepted"]] * 5
    assert "site-a: data: expected the data with which the run was started" in deployment.reason(3, "site-a")


def test_a_frozen_run_has_the_bits_of_one_whose_data_never_changed(sites, tmp_path):
    nodes, change = sites
    expected = Deployment(nodes).start().progress
    seen = []

    def grow(size):
        seen.append(copies(tmp_path))
        modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "states").glob("*/*/data.frozen")}
        assert modes == {0o600}
        change((size, size), (24, 0))

    deployment = Deployment(nodes, changes={1: partial(grow, 48), 2: partial(grow, 30)}, **{"data-changes": "freeze"})
    progress = deployment.start().progress
    assert [len(statuses) for statuses in deployment.statuses("site-a")] == [1] * 5
    assert digest(progress.server) == digest(expected.server)
    assert seen == [["site-a", "site-b"]] * 2
    assert copies(tmp_path) == [], "they go with the run"


def test_a_restart_between_two_growths_goes_on_with_the_copy(sites, tmp_path):
    nodes, change = sites
    expected = Deployment(nodes).start().progress
    keys = {"data-changes": "freeze", "checkpoint-every": 1}

    def killed():
        change((48, 0), (48, 0))
        raise Killed

    store = lambda: DiskRunStore(tmp_path / "server", deployment.assembly.method.server_state)  # noqa: E731
    deployment = Deployment(nodes, changes={2: killed}, **keys)
    deployment.store = store()
    with pytest.raises(Killed):
        deployment.start()
    change((60, 0), (48, 0))
    deployment = Deployment(nodes, changes={3: lambda: change((99, 0), (48, 0))}, **keys)
    deployment.store = store()
    progress = deployment.start().progress
    assert progress.closed
    assert digest(progress.server) == digest(expected.server)
    assert copies(tmp_path) == []


@pytest.mark.parametrize("grown", [False, True])
def test_a_damaged_copy_is_made_again_if_the_data_are_as_they_were(sites, tmp_path, grown, caplog):
    nodes, change = sites

    def damage():
        (path,) = (tmp_path / "states").glob("*/site-a/data.frozen")
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        change((48 if grown else 24, 0), (24, 0))

    deployment = Deployment(nodes, changes={2: damage}, **{"data-changes": "freeze"})
    assert deployment.start().progress.closed
    status = "refused" if grown else "accepted"
    assert deployment.statuses("site-a") == [["accepted"]] * 2 + [[status]] * 3
    assert "it is copied again if the data are as they were" in caplog.text


def test_a_copy_is_whole(tmp_path):
    """Empty parts, a table's scale and its raw rows come back as they were."""
    train = Examples(np.arange(6, dtype=np.float32).reshape(3, 2)[::-1], np.arange(3))
    none = Examples(np.empty((0, 2), np.float32), np.empty(0, np.int64))
    data = ClientData(train, none, train.first(1), Scale(np.array([1.0, 2.0]), np.array([3.0, 4.0])))

    class Source:
        private, info, seed = "own", None, 0

        def client(self, number, clients, name):
            return data

    (tmp_path / "run" / "a").mkdir(parents=True)
    frozen = FrozenData(Source(), tmp_path / "run" / "a", lambda data: "d" * 64)
    first = frozen.client(0, 1, "a")
    again = frozen.client(0, 1, "a")
    assert (first is data, again is data) == (True, False)
    for part in ("train", "validation", "test"):
        for key in ("x", "y"):
            left, right = getattr(getattr(again, part), key), getattr(getattr(data, part), key)
            assert left.dtype == right.dtype
            assert np.array_equal(left, right)
    assert np.array_equal(again.scale.mean, data.scale.mean)
    assert np.array_equal(again.scale.factor, data.scale.factor)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dataset": "digits", "data-changes": "freeze"}, "data-changes: expected refuse with dataset = digits"),
        ({"data-changes": "accept", "split.by": "time"}, "split.by: expected random with data-changes = accept"),
        ({"data-changes": "accept", "partition.subsample": 9}, "partition.subsample: expected 0 with data-changes"),
        ({"data-changes": "accept", "data-growth": 0.5}, "data-growth: expected greater than or equal to 1"),
        ({"data-changes": "thaw"}, "data-changes: expected 'refuse'"),
    ],
)
def test_where_the_key_cannot_hold_it_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        assemble({**RUN, **keys})


@pytest.mark.parametrize("choice", ["freeze", "accept"])
def test_in_process_and_in_a_simulation_it_is_refused_before_the_run(tmp_path, monkeypatch, choice):
    keys = {**RUN, "data-changes": choice, "out": str(tmp_path / "runs"), "name": "first"}
    words = "data-changes: expected refuse where clients are on the server's machine"
    with pytest.raises(ConfigError, match=words):
        run_in_process(assemble(keys))
    monkeypatch.setitem(sys.modules, SIMULATION, ModuleType(SIMULATION))
    with pytest.raises(ConfigError, match=words):
        server_app.main(None, Context(1, 1, {}, RecordDict(), keys))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("choice", ["freeze", "accept"])
def test_what_cannot_be_copied_or_split_is_refused_by_the_client(sites, tmp_path, caplog, choice):
    """Datasets, and a part of files that several clients share."""
    nodes, _ = sites
    (tmp_path / "streams_of_test.py").write_text(
        "import torch\n"
        "def load():\n"
        "    part = torch.utils.data.TensorDataset(torch.zeros(20, 1, 8, 8), torch.arange(20) % 2)\n"
        "    return part, part\n"
    )
    streams = [{**node, "data": "streams_of_test:load"} for node in nodes]
    with pytest.raises(SepalError, match="data-changes: expected values that it can use"):
        Deployment(streams, **{"data-changes": choice}).start()
    assert "data-changes: expected refuse with a Dataset" in caplog.text
    folder = {"dataset": "folder", "own.shape": "", "own.classes": 0, "model": "auto", "data-changes": choice}
    folder |= {"partition.name": "iid"}
    shared = [{"partition-id": n, "num-partitions": 2, "data-dir": str(table(tmp_path / "own"))} for n in (0, 1)]
    with pytest.raises(SepalError, match="data-changes: expected values that it can use"):
        Deployment(shared, **folder, **{"data-dir": str(tmp_path / "own")}).start()
    assert "data-changes: expected refuse where a client has a part of shared files" in caplog.text


def test_a_table_that_grows_is_exported_as_it_was_in_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    folder = {"dataset": "folder", "own.shape": "", "own.classes": 0, "model": "auto", "rounds": 2}

    def models(name, **run):
        tables = [table(tmp_path / name / site) for site in NAMES]
        files = [tmp_path / name / f"{site}.safetensors" for site in NAMES]
        both = {"state-dir": str(tmp_path / name), "device": "cpu"}
        nodes = [
            {**both, "name": site, "data-dir": str(own), "export": str(file)}
            for site, own, file in zip(NAMES, tables, files, strict=True)
        ]
        schema = tmp_path / "schema.toml"
        schema.write_text(written(SCHEMA))
        changes = {1: lambda: [table(own, rows=90) for own in tables]} if run else {}
        deployment = Deployment(nodes, changes=changes, **{"folder.schema": str(schema)}, **folder, **run)
        assert deployment.start().progress.closed
        assert deployment.statuses("site-a") == [["accepted"]] * 3
        return [load(file) for file in files]

    (tmp_path / "grown").mkdir()
    (tmp_path / "same").mkdir()
    for before, after in zip(models("same"), models("grown", **{"data-changes": "freeze"}), strict=True):
        assert before.origin.offset == after.origin.offset != ()
