"""The run's configuration: what is refused, in which words, and that defaults are written down once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from sepal.config import AUTOMATIC, PARTS, RunConfig, Settings, flatten, parse
from sepal.config.parse import NOT_SET
from sepal.errors import ConfigError
from sepal.strategies import registry

ROOT = Path(__file__).parents[3]


class Chosen(Settings):
    keep: float = Field(0.1, gt=0, le=1)
    per_layer: bool = False
    rule: Literal["a", "b"] = "a"


class Other(Settings):
    steps: int = Field(1, ge=1)


METHODS = {"chosen": Chosen, "other": Other}


def read(**flat):
    return parse({"method": "chosen", **{key.replace("__", "."): value for key, value in flat.items()}}, METHODS)


@pytest.mark.parametrize(
    ("flat", "key", "expected", "got"),
    [
        ({"roundz": 3}, "roundz", "a known key", "an unknown one; did you mean rounds?"),
        ({"partition.alfa": 0.1}, "partition.alfa", "a known key", "an unknown one; did you mean partition.alpha?"),
        ({"chosen.kep": 0.1}, "chosen.kep", "a known key", "an unknown one; did you mean chosen.keep?"),
        ({"other.stepz": 1}, "other.stepz", "a known key", "an unknown one; did you mean other.steps?"),
        ({"other.steps": 0}, "other.steps", "greater than or equal to 1", "0"),
        ({"nobody.keep": 0.1}, "nobody.keep", "a known key", "an unknown one"),
        ({"chosen.qqqqqqqqqqqq": 1}, "chosen.qqqqqqqqqqqq", "a known key (chosen has chosen.keep", "an unknown one"),
        ({"batch_size": 3}, "batch_size", "hyphens: batch-size", "batch_size"),
        ({"partition.lambda_": 0.5}, "partition.lambda_", "hyphens: partition.lambda", "partition.lambda_"),
        ({"chosen.per_layer": True}, "chosen.per_layer", "hyphens: chosen.per-layer", "chosen.per_layer"),
        ({"partition": 3}, "partition", "its parts as keys, partition.…", "3"),
        ({"partition": 3, "partition.alpha": 0.1}, "partition", "its parts as keys, partition.…", "3"),
        ({"split.": 1}, "split.", "a known key", "an unknown one; did you mean split.by?"),
        ({"clients": 3.0}, "clients", "a valid integer", "3.0"),
        ({"clients": True}, "clients", "a valid integer", "True"),
        ({"lr": True}, "lr", "a valid number", "True"),
        ({"lr": "0.1"}, "lr", "a valid number", "'0.1'"),
        ({"lr": float("inf")}, "lr", "a finite number", "inf"),
        ({"lr": float("nan")}, "lr", "a finite number", "nan"),
        ({"timeout": 0}, "timeout", "greater than 0", "0"),
        ({"momentum": 1.0}, "momentum", "less than 1", "1.0"),
        ({"threads": 0}, "threads", "greater than or equal to 1", "0"),
        ({"seed": -1}, "seed", "greater than or equal to 0", "-1"),
        ({"device": "cuda:x"}, "device", "string should match", "'cuda:x'"),
        ({"partition.name": "dirichle"}, "partition.name", "'auto', 'iid', 'dirichlet'", "'dirichle'"),
        ({"partition.alpha": 0.0}, "partition.alpha", "greater than 0", "0.0"),
        ({"chosen.rule": "c"}, "chosen.rule", "'a' or 'b'", "'c'"),
        ({"chosen.keep": 1.5}, "chosen.keep", "less than or equal to 1", "1.5"),
        ({"chosen.per-layer": 1}, "chosen.per-layer", "a valid boolean", "1"),
        ({"name": ".."}, "name", "string should match", "'..'"),
        ({"name": "a/b"}, "name", "string should match", "'a/b'"),
        ({"name": "a\n"}, "name", "string should match", "'a\\n'"),
        ({"method": "fedpze"}, "method", "one of `sepal methods`, or MODULE:NAME", "fedpze"),
        ({"clients": 4, "clients-per-round": 5}, "clients-per-round", "at most clients = 4", "5"),
        ({"clients": 4, "min-replies": 5}, "min-replies", "at most the 4 clients of a round", "5"),
        ({"stop-after": 5, "split.validation": 0.0}, "stop-after", "0 with split.validation = 0", "5"),
        (
            {"stop-after": 5, "evaluate-sampled": False, "evaluate-every": 0},
            "stop-after",
            "0 with evaluate-sampled = false and evaluate-every = 0",
            "5",
        ),
        ({"clients-per-round": 2, "min-replies": 3}, "min-replies", "at most the 2 clients of a round", "3"),
    ],
)
def test_refuses(flat, key, expected, got):
    with pytest.raises(ConfigError) as caught:
        parse({"method": "chosen", **flat}, METHODS)
    assert (caught.value.key, caught.value.got) == (key, got)
    assert caught.value.expected.startswith(expected)
    assert "\n" not in str(caught.value)


def test_an_int_counts_as_a_float():
    config, hyper = parse({"method": "chosen", "lr": 1, "chosen.keep": 1}, METHODS)
    assert (config.lr, hyper.keep) == (1.0, 1.0)
    assert isinstance(config.lr, float)


def test_any_number_of_clients_may_be_sampled_where_their_number_is_open():
    assert read(clients=0, **{"clients-per-round": 50})[0].clients_per_round == 50


def test_keys_that_are_left_out_take_their_defaults():
    config, hyper = read()
    assert config == RunConfig(method="chosen")
    assert hyper == Chosen()


def test_flat_keys_read_back_to_the_same_configuration():
    config, hyper = read(
        **{"lr": 0.3, "partition.lambda": 0.25, "split.test-of-labels": True, "chosen.per-layer": True, "name": "run.1"}
    )
    flat = {**config.flat(), **flatten(hyper, "chosen.")}
    assert flat["partition.lambda"] == 0.25
    assert flat["chosen.per-layer"] is True
    assert all(isinstance(value, int | float | str | bool) for value in flat.values()), "run-config holds scalars only"
    assert parse(flat, METHODS) == (config, hyper)
    assert {key: config.value(key) for key in config.flat()} == config.flat()


def test_completed_takes_the_first_default_and_leaves_what_was_set():
    data = {"rounds": 9, "local-epochs": 2, "batch-size": 32, "optimizer": "sgd", "lr": 1, "model": "cnn"}
    data |= {"partition.name": "natural"}
    config = RunConfig(rounds=4, model="mine:build").completed({"local-epochs": 7}, data)
    values = {key: config.flat()[key] for key in AUTOMATIC}
    assert values == {
        "rounds": 4,
        "local-epochs": 7,
        "batch-size": 32,
        "optimizer": "sgd",
        "lr": 1.0,
        "model": "mine:build",
        "partition.name": "natural",
    }
    assert isinstance(config.lr, float)


def test_completed_names_the_key_that_nothing_gives_a_default_for():
    with pytest.raises(ConfigError) as caught:
        RunConfig(dataset="folder").completed({}, {"rounds": 1})
    assert caught.value.key == "local-epochs"
    assert "'folder' has no default" in caught.value.expected


def test_completed_never_replaces_a_zero_that_means_zero():
    data = dict.fromkeys(AUTOMATIC, 1) | {"clients-per-round": 9, "momentum": 0.9, "seed": 7}
    config = RunConfig().completed({**data, "optimizer": "sgd", "model": "cnn"})
    assert (config.clients_per_round, config.momentum, config.seed) == (0, 0.0, 0)


def test_the_learning_rate_decays_from_the_second_round_on():
    config = RunConfig(lr=0.5, lr_decay=0.1)
    assert [config.learning_rate(n) for n in (1, 2, 3)] == pytest.approx([0.5, 0.05, 0.005])


def test_schedules_by_hand():
    """Four rounds and the closing one. Cosine: (1 + cos 0, 45°, 90°, 135°) / 2; the closing round is as the last."""
    cosine, step = (RunConfig(lr=2.0, rounds=4, schedule=name) for name in ("cosine", "step"))
    root = 2**0.5 / 2
    assert [cosine.learning_rate(n) for n in range(1, 6)] == pytest.approx([2, 1 + root, 1, 1 - root, 1 - root])
    assert [step.learning_rate(n) for n in range(1, 6)] == pytest.approx([2, 2, 0.2, 0.02, 0.02])
    assert RunConfig(lr=2.0, rounds=4, lr_decay=0.5, schedule="step").learning_rate(3) == pytest.approx(2 / 4 / 10)


def test_every_key_says_what_it_means():
    assert [n for n, info in RunConfig.model_fields.items() if n not in PARTS and not info.description] == []


def test_pyproject_lists_every_key_with_its_default():
    """Flower refuses a run-config key that pyproject.toml does not list."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    listed = {}
    for key, value in table.items():
        listed |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    expected = dict(RunConfig().flat()) | NOT_SET
    for name in registry.METHODS:
        expected |= flatten(registry.get(name).hyper(), f"{name}.")
    shown = "\n".join(f"{key} = {expected[key]!r}" for key in expected if listed.get(key) != expected[key])
    assert not shown, f"missing from pyproject.toml, or another default there:\n{shown}"
    surplus = ", ".join(sorted(listed.keys() - expected.keys()))
    assert not surplus, f"in pyproject.toml, and keys of no registered method: {surplus}"
