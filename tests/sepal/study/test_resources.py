"""The table ``[resources]`` of a plan: by method, and nothing that says more to a scheduler than it should."""

from __future__ import annotations

import pytest

from sepal.errors import ConfigError
from sepal.study.plans.plan import make_plan
from sepal.study.plans.resources import Resources, read_resources

VARIANTS = ("fedavg", "fedpse,keep=0.1", "fedpse,keep=0.2", "fedpse-small")


def read(table):
    return read_resources("p.toml", table, VARIANTS)


def test_a_table_of_a_method_holds_for_its_variants_and_adds_to_the_others():
    asked = read({"cores": 2, "memory": "1G", "fedpse": {"memory": "2G"}, "fedpse-small": {"cores": 1}})
    assert asked == {
        "": Resources(cores=2, memory="1G"),
        "fedpse,keep=0.1": Resources(cores=2, memory="2G"),
        "fedpse,keep=0.2": Resources(cores=2, memory="2G"),
        "fedpse-small": Resources(cores=1, memory="1G"),
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("memory", "8G\n#SBATCH --output=/home/x"),
        ("memory", "8G\n"),
        ("memory", "0G"),
        ("time", "90"),
        ("time", "1:00:00 --wrap=x"),
        ("partition", "-x"),
        ("partition", "a b"),
        ("partition", "$(id)"),
        ("account", "a;b"),
        ("constraint", "a|b\n"),
        ("nodelist", "../x"),
        ("gpus", "a100:1,gpu:b:9"),
        ("cores", True),
        ("cores", 0),
        ("cores", "2"),
    ],
)
def test_a_value_of_another_form_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"^p.toml: resources.fedavg.{key}: expected "):
        read({"fedavg": {key: value}})


@pytest.mark.parametrize("key", ["wrap", "output", "chdir", "export", "options", "job-name", "mail-user"])
def test_no_key_says_what_slurm_runs_or_where_it_writes(key):
    with pytest.raises(ConfigError, match=f"resources.{key}: expected one of cores, gpus, memory, time, partition"):
        read({key: "x"})


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ConfigError, match=r"resources.fedprox: expected one of the methods fedavg, fedpse, fedpse-small"
    ):
        read({"fedprox": {"cores": 1}})


def test_a_plan_is_refused_with_a_wrong_table_before_anything_runs(tmp_path):
    table = {"methods": ["local"], "settings": {"rounds": 1}, "resources": {"cores": "many"}}
    with pytest.raises(ConfigError, match=r"p.toml: resources.cores: expected a whole number from 1 to 4096, got many"):
        make_plan(tmp_path / "p.toml", table)
    plan = make_plan(tmp_path / "p.toml", {**table, "resources": {"local": {"cores": 3}}, "one-processor": True})
    assert plan.asked()["local"].cores == 3
    assert plan.one_processor
