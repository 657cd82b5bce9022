"""A server in Flower's simulation knows that it is one, also while Ray is still starting beside it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from sepal.errors import ConfigError
from sepal.flower.simulation import check_shared_states, on_one_machine, wait_for_ray


@pytest.mark.parametrize("ray", [None, SimpleNamespace(), SimpleNamespace(is_initialized=lambda: False)])
def test_a_ray_that_is_absent_half_imported_or_not_started_is_no_simulation(monkeypatch, ray):
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert not on_one_machine()
    wait_for_ray(0.0)  # ends all the same


def test_a_server_waits_until_ray_has_started(monkeypatch):
    """Asked before, its noise came from a secret and not from the seed, and it stored no labels."""
    has_started = threading.Event()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=has_started.is_set))
    threading.Timer(0.2, has_started.set).start()
    wait_for_ray()
    assert on_one_machine()


class TwoNodes:
    """Two nodes of a Ray cluster, each with a home of its own."""

    def __init__(self, homes, monkeypatch):
        self.homes, self.monkeypatch, self.asked = homes, monkeypatch, []

    def is_initialized(self):
        return True

    def nodes(self):
        return [{"Alive": True, "NodeManagerAddress": address} for address in self.homes]

    def remote(self, function):
        def call(resources, *arguments):
            (place,) = resources
            address = place.removeprefix("node:")
            self.asked.append(address)
            with self.monkeypatch.context() as patch:
                patch.setenv("SEPAL_HOME", str(self.homes[address]))
                return function(*arguments)

        return SimpleNamespace(
            options=lambda num_cpus, resources: SimpleNamespace(remote=lambda *given: call(resources, *given))
        )

    def get(self, result, timeout):
        return result


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    homes = {"10.0.0.2": tmp_path / "a", "10.0.0.3": tmp_path / "b"}
    monkeypatch.setenv("SEPAL_HOME", str(homes["10.0.0.2"]))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    cluster = TwoNodes(homes, monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", cluster)
    return cluster


def test_nodes_of_a_ray_cluster_that_do_not_share_the_states_are_refused_by_name(two_nodes, tmp_path):
    """A client that lands on another node would find none of its states there."""
    with pytest.raises(ConfigError, match=r"state-dir: expected a directory that all nodes .* 10\.0\.0\.3 has files"):
        check_shared_states("")
    assert two_nodes.asked == ["10.0.0.2", "10.0.0.3"]
    check_shared_states(str(tmp_path / "shared"))
    assert not list((tmp_path / "shared").iterdir()), "nothing is left of the check"
    assert not list((tmp_path / "a" / "state").iterdir())


def test_a_cluster_without_a_token_is_refused(two_nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(ConfigError, match="RAY_AUTH_MODE: expected token"):
        check_shared_states(str(tmp_path / "shared"))


def test_on_one_node_nothing_is_asked(two_nodes):
    del two_nodes.homes["10.0.0.3"]
    check_shared_states("")
    assert not two_nodes.asked
