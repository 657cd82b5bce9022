"""A server in Flower's simulation knows that it is one, also while Ray is still starting beside it."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from sepal.flower.simulation import on_one_machine, wait_for_ray


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
