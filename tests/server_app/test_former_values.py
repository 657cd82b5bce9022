"""Runs that began before a default changed, or before there was a key, go on as they began."""

import sys

import pytest
import tomli_w

from sepal.config import RunConfig, Settings, former_values, renewed
from sepal.errors import ConfigError
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import read_run, stored_config
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.comparison import _differing
from sepal.study.plans import execute
from sepal.study.plans.model import PlannedRun
from sepal.study.run_keys import gather
from sepal.user_modules import VARIABLE
from tests.sepal.cli.runs_for_tests import write_run

OWN = """
from sepal.config import Settings, renewed
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer
from sepal.strategies.registration import register

class Hyper(Settings):
    mu: float = renewed(0.2, 0.1, "a key whose default was 0.1", ge=0)

Renewed = register("renewed", "", "", FedAvgServer, FedAvgClient, Hyper)
"""
OWN_METHOD = "methods_of_a_test:Renewed"
# Every key with a former value: of the test's method, the shared ones, and each method's own.
RENEWED = [
    ("renewed.mu", OWN_METHOD, 0.1),
    *((key, "fedavg", value) for key, value in former_values(RunConfig).items()),
    *(
        (key, name, value)
        for name in registry.METHODS
        for key, value in former_values(registry.get(name).hyper, f"{name}.").items()
    ),
]


@pytest.fixture(autouse=True)
def own_method(tmp_path, monkeypatch):
    (tmp_path / "methods_of_a_test.py").write_text(OWN)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    sys.modules.pop("methods_of_a_test", None)


class Group(Settings):
    part: float = renewed(0.5, 0.0, "newer", ge=0)


class Whole(Settings):
    first: int = 3
    group: Group = Group()


def test_former_values_are_found_in_groups_too_and_the_default_is_the_new_value():
    assert former_values(Whole, "mine.") == {"mine.group.part": 0.0}
    assert Whole().group.part == 0.5


@pytest.fixture(params=RENEWED, ids=lambda case: case[0])
def run_of_before(request, tmp_path):
    """A run that has begun, whose config lacks the key: the key, its former value, the run's keys and its directory."""
    key, method, value = request.param
    keys = {"method": method, "dataset": "digits", "clients": 2, "rounds": 1, "out": str(tmp_path), "name": "before"}
    if key == "client-names":  # which has a meaning for data with owners alone
        (tmp_path / "table").mkdir()
        rows = "".join(f"{n},{n // 2 % 2},{'ab'[n % 2]}\n" for n in range(60))
        (tmp_path / "table" / "all.csv").write_text(f"height,label,person\n{rows}")
        keys |= {"dataset": "folder", "data-dir": str(tmp_path / "table")}
    if key == "target-scale":  # which has a meaning for a table with targets alone
        (tmp_path / "table").mkdir()
        rows = "".join(f"{n},{n * n % 7}\n" for n in range(60))
        (tmp_path / "table" / "all.csv").write_text(f"height,label\n{rows}")
        keys |= {"dataset": "folder", "data-dir": str(tmp_path / "table"), "task": "regression", "clip-gradient": 0.0}
    if key == "method":
        del keys["method"]
    with RunDirectory(tmp_path / "before", assemble({**keys, key: value}), "in-process") as directory:
        stored = stored_config(directory.path)
    config = {name: entry for name, entry in stored.items() if name != key}
    (tmp_path / "before" / "config.toml").write_text(tomli_w.dumps(config))
    (tmp_path / "before" / "metrics.jsonl").write_text("{}\n")
    return key, value, keys, tmp_path / "before"


def test_a_run_that_lacks_a_key_goes_on_with_its_former_value(run_of_before):
    key, value, keys, path = run_of_before
    by_name = gather(None, (), {"name": "before", "out": str(path.parent)}, path)
    assert by_name[key] == value
    planned = execute.as_begun(PlannedRun("", "", "", 0, keys), path.parent)
    assert planned.keys[key] == value
    new = PlannedRun("", "", "", 0, {**keys, "name": "new"})
    assert execute.as_begun(new, path.parent) is new
    for flat in (by_name, planned.keys):
        with RunDirectory(path, assemble(flat), "in-process"):
            pass
    assert stored_config(path)[key] == value


def test_a_run_without_a_method_is_shown_with_the_former_one(tmp_path):
    path = write_run(tmp_path / "before", method="fedpse")
    config = {name: value for name, value in stored_config(path).items() if name != "method"}
    (path / "config.toml").write_text(tomli_w.dumps(config))
    assert read_run(path).method == "fedpse"
    assert RunConfig().method == "fedavg-ft", "what README advises"


def test_a_run_that_lacks_a_key_is_not_continued_with_the_new_default(run_of_before):
    key, value, keys, path = run_of_before
    with pytest.raises(ConfigError, match=rf"^{key}: expected {value!r}, with which the run before was started"):
        RunDirectory(path, assemble(keys), "in-process")


def test_a_run_that_lacks_a_key_has_ended_as_a_plan_with_the_former_value(run_of_before):
    key, value, keys, path = run_of_before
    (path / "summary.json").write_text('{"complete": true}')
    assert execute.has_ended(PlannedRun("", "", "", 0, {**keys, key: value}), path.parent)


def test_runs_that_lack_a_key_and_those_with_its_former_value_are_seeds_of_one_setting(run_of_before):
    key, value, _, path = run_of_before
    stored = stored_config(path)
    assert list(_differing(stored, {**stored, key: "other"})) == [key]
    assert not list(_differing(stored, {**stored, key: value}))
    if ":" in stored.get("method", ""):
        registry._loaded.clear()
        assert list(_differing(stored, {**stored, key: value})) == [key]
        assert not registry._loaded, "comparing runs executes none of their code"
