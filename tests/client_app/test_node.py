"""A client's own configuration: names that may be directories, and where states lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sepal.client_app.build import Node, Shared, build_host, open_store
from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.names import client_name
from sepal.runs.places import default_base
from sepal.storage.home import home
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvgServer


def test_a_client_is_called_by_its_partition_unless_it_has_a_name():
    assert Node.of({"partition-id": 7, "num-partitions": 10}).client == "client-00007"
    assert Node.of({"name": "clinic-a"}).client == "clinic-a"
    names = [client_name(n) for n in (2, 10, 99_999)]
    assert names == sorted(names), "names sort as numbers do"


def test_every_key_is_read():
    config = {"partition-id": 1, "num-partitions": 2, "name": "a", "data": "m:f", "device": "cpu", "capacity": 1}
    assert Node.of({**config, "state-dir": "/x"}) == Node(1, 2, "a", "m:f", "cpu", 1.0, "/x")
    assert Node.of({"least-noise": 2}).least_noise == 2.0


@pytest.mark.parametrize(
    "nothing", [{}, {"capacity": 0, "device": 0}, {"capacity": 0.0, "device": ""}, {"capacity": ""}]
)
def test_what_is_left_out_is_told_from_what_is_said(nothing):
    """A node that says 1.0 can hold the full model whatever the run draws; one that says nothing gets what is drawn."""
    assert (Node.of(nothing).capacity, Node.of(nothing).device) == (None, "")
    assert Node.of({"capacity": 1.0}).capacity == 1.0


class Cutting(FedAvgServer):
    uses_capacity = True


def host_of(method, node_config, **keys):
    assembly = assemble({"dataset": "digits", "clients": 4, "capacity.profile": "0.25,0.5", **keys}, method)
    shared, node = Shared.around(assembly, "cpu"), Node.of({"partition-id": 1, "num-partitions": 4, **node_config})
    return build_host(shared, node, "run", None)


def test_a_nodes_own_capacity_wins_over_the_one_that_is_drawn():
    method = replace(registry.get("fedavg"), server=Cutting)
    drawn = host_of(method, {}).info.capacity
    assert drawn in (0.25, 0.5)
    assert host_of(method, {"name": "client-00001"}).info.capacity == drawn, "by name, in every engine"
    assert host_of(method, {"capacity": 1.0}).info.capacity == 1.0
    assert host_of(method, {"capacity": 0.9}).info.capacity == 0.9


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"partition-id": 2, "num-partitions": 2}, "partition-id"),
        ({"partition-id": -1, "num-partitions": 2}, "partition-id"),
        ({"partition-id": "1", "num-partitions": 2}, "partition-id"),
        ({"capacity": -0.5}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"capacity": float("nan")}, "capacity"),
        ({"capacity": "1"}, "capacity"),
        ({"name": "../x"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"device": "gpu"}, "device"),
        ({"least-noise": -1.0}, "least-noise"),
        ({"least-noise": "1"}, "least-noise"),
        ({"only-secure": 1}, "only-secure"),
    ],
)
def test_refuses(config, key):
    with pytest.raises(ConfigError) as caught:
        Node.of(config)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [("/node", "/run", "/node"), ("", "/run", "/run"), ("", "", "home/state")],
)
def test_states_lie_below_the_nodes_word_the_runs_or_home(node, run, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    directories = {
        key: str(tmp_path / value.lstrip("/")) if value else "" for key, value in {"node": node, "run": run}.items()
    }
    assembly = SimpleNamespace(
        setup=SimpleNamespace(config=RunConfig(state_dir=directories["run"])), method=registry.get("fedavg")
    )
    open_store(SimpleNamespace(assembly=assembly), Node(name="a", state_dir=directories["node"]), "run-1")
    assert (tmp_path / expected.lstrip("/") / "run-1" / "a" / "identity").exists()


def test_an_empty_home_is_the_default_home_for_states_and_for_runs_alike(tmp_path, monkeypatch):
    """``SEPAL_HOME=`` once put states below the working directory, and runs below ~/.sepal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SEPAL_HOME", "")
    assembly = SimpleNamespace(setup=SimpleNamespace(config=RunConfig()), method=registry.get("fedavg"))
    open_store(SimpleNamespace(assembly=assembly), Node(name="a"), "run-1")
    assert (tmp_path / "user" / ".sepal" / "state" / "run-1" / "a" / "identity").exists()
    assert home() == default_base("flower") == Path.home() / ".sepal"


@pytest.mark.parametrize("apart", [False, True])
def test_with_validation_apart_no_example_is_both_shown_to_the_method_and_judged(apart):
    keys = {"dataset": "digits", "method": "pa3dfl", "clients": 4, "evaluate.validation-apart": apart}
    shared, node = Shared.of(keys, "cpu"), Node(1, 4)
    host = build_host(shared, node, "run", None)
    whole = shared.assembly.data.client(1, 4, node.client).validation
    shown, judged = host.algorithm.trainer.y_validation, host.evaluate.validation[1]
    assert len(shown) + len(judged) == len(whole) * (1 if apart else 2)
    if apart:
        assert shown.tolist() == whole.y[0::2].tolist()
        assert judged.tolist() == whole.y[1::2].tolist()
