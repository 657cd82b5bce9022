"""The registry: names, entry points of other packages, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from sepal.errors import ConfigError
from sepal.runs.places import run_path
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import stored_config
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import local
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.plan import check_keys
from sepal.user_modules import VARIABLE


def others(monkeypatch, **points):
    entry_points = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: entry_points)


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavgg", "method: expected fedavg, or another one of `sepal methods`, got fedavgg"),
        ("zzz", "method: expected one of `sepal methods`, or MODULE:NAME for a method of your own, got zzz"),
        ("mine.zzz.Zzz", "method: expected one of `sepal methods`, or mine.zzz:Zzz for a method of your own, got "),
        ("fedamp.py", "method: expected fedamp:NAME, where NAME is what `register` returned in that module"),
        ("./mine/fedamp.py", "method: expected mine.fedamp:NAME, where NAME is"),
    ],
)
def test_an_unknown_method_is_one_line_with_the_likely_one_first(name, words):
    with pytest.raises(ConfigError) as caught:
        registry.get(name)
    assert str(caught.value).startswith(words)


def test_what_is_no_method_is_refused(monkeypatch):
    others(monkeypatch, mine="sepal.strategies.baselines.local:LocalServer")
    with pytest.raises(ConfigError, match=r"method: expected .*LocalServer to be a sepal\.method\.interface\.Method"):
        registry.get("mine")


OWN = """
from sepal.config import Settings
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer
from sepal.strategies.registration import register

class Hyper(Settings):
    mu: float = 0.1

OwnMethod = register("ownmethod", "", "", FedAvgServer, FedAvgClient, Hyper)
Renamed, Nothing = OwnMethod, len
Local = register("local", "", "", FedAvgServer, FedAvgClient)
Hyphens = register("hy-phens", "", "", FedAvgServer, FedAvgClient)
"""


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    (tmp_path / "own_methods.py").write_text(OWN)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return "own_methods:OwnMethod"


def test_a_method_of_ones_own_code_needs_no_registration(own_method, tmp_path):
    assembly = assemble({"method": own_method, "ownmethod.mu": 0.5, "clients": 2, "rounds": 1})
    assert assembly.setup.hyper.mu == 0.5
    assert assembly.setup.config.method == own_method, "as it was given: workers and a run that goes on find it again"
    assert "ownmethod.mu\t0.5\trun config" in assembly.agreed
    with RunDirectory(run_path(assembly.setup.config, tmp_path), assembly, "test") as directory:
        assert directory.path.name.startswith("ownmethod-digits-")
        stored = stored_config(directory.path)
    assert (stored["method"], stored["ownmethod.mu"]) == (own_method, 0.5)
    assert registry.defaults(own_method)["ownmethod.mu"] == 0.1, "Flower refuses a key that the app does not declare"
    check_keys("plan", [PlannedRun("", "", "mine", 0, {"method": own_method, "ownmethod.mu": 0.2})])


def test_who_looks_at_a_run_executes_none_of_its_code(own_method):
    assert registry.deployed(own_method) == ""
    assert "own_methods" not in sys.modules or not registry._loaded


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("own_methods:Renamed", "registered under the name .renamed., the variable in lower case"),
        ("own_methods:Hyphens", r"variable in lower case \(hyphens are for built-in and installed methods\)"),
        ("own_methods:Local", "a name for own_methods:Local that no other method has, got .local."),
        ("own_methods:Nothing", "to be what .*register returns"),
        ("own_methods:Missing", "that can be imported"),
    ],
)
def test_an_own_method_that_cannot_be_used_is_one_line(own_method, key, words):
    with pytest.raises(ConfigError, match=f"method: expected .*{words}"):
        assemble({"method": key})


def test_an_unknown_key_of_an_own_method_has_a_suggestion(own_method):
    with pytest.raises(ConfigError, match=r"did you mean ownmethod\.mu"):
        assemble({"method": own_method, "ownmethod.mi": 0.5})


def test_a_method_whose_init_says_no_type_is_one_line():
    class Server(FedAvgServer):
        def init(self):
            return super().init()

    method = replace(local.Local, server=Server)
    with pytest.raises(ConfigError, match=r"method: expected a return annotation, the type .*Server\.init"):
        _ = method.server_state


def test_a_name_that_a_module_of_ones_own_does_not_have_is_answered_with_the_likely_one():
    with pytest.raises(ConfigError, match=r"has no attribute 'jsondecoder'; did you mean JSONDecoder\?\)$"):
        registry.get("json:jsondecoder")
