"""The registry: names, entry points of other packages, and what it refuses."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from sepal.errors import ConfigError
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import local


def others(monkeypatch, **points):
    found = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)


def test_every_name_of_the_table_is_the_methods_own():
    for name in registry.METHODS:
        assert registry.get(name).name == name


def test_a_method_of_another_package_joins_by_its_entry_point(monkeypatch):
    others(monkeypatch, mine="sepal.strategies.baselines.local:Local")
    assert registry.get("mine") is local.Local
    assert "mine" in registry.names()
    assert assemble({"method": "mine"}).method is local.Local


def test_another_package_cannot_replace_a_method_of_ours(monkeypatch):
    others(monkeypatch, fedavg="sepal.strategies.baselines.local:Local")
    assert registry.get("fedavg").name == "fedavg"


def test_an_unknown_method_is_one_line_that_names_all():
    with pytest.raises(ConfigError, match=r"method: expected one of fedavg, .*, got fedavgg"):
        registry.get("fedavgg")


def test_what_is_no_method_is_refused(monkeypatch):
    others(monkeypatch, mine="sepal.strategies.baselines.local:LocalServer")
    with pytest.raises(ConfigError, match=r"method: expected .*LocalServer to be a sepal\.protocol\.method\.Method"):
        registry.get("mine")
