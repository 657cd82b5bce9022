"""The run-config keys: names, ranges, defaults; the specification of a federation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sepal.config import PartitionSettings, Settings, SplitSettings, parse
from sepal.data import DataSpec
from sepal.errors import ConfigError, DataError
from tests.worker_pipe import through_a_pipe


def test_aliases_are_the_run_config_keys():
    assert PartitionSettings().model_dump(by_alias=True) == {
        "name": "auto",
        "alpha": 0.3,
        "beta": 0.5,
        "lambda": 1.0,
        "classes": 2,
        "shards": 2,
        "shard-size": 0,
        "min-examples": 10,
        "within": "iid",
        "noise": 0.0,
        "subsample": 0,
    }
    assert SplitSettings().model_dump(by_alias=True) == {
        "test-fraction": 0.0,
        "test-of-labels": False,
        "by": "random",
        "validation": 0.1,
        "seed": -1,
    }


@pytest.mark.parametrize("settings", [PartitionSettings, SplitSettings])
def test_every_key_is_described_and_scalar(settings):
    for field in settings.model_fields.values():
        assert field.description
        assert isinstance(field.default, str | int | float)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "sorted"},
        {"alpha": 0.0},
        {"beta": 0.0},
        {"within": "natural"},
        {"noise": -0.1},
        {"lambda": 1.5},
        {"classes": 0},
        {"shards": 0},
        {"shard-size": -1},
        {"min-examples": 0},
        {"subsample": -1},
        {"alhpa": 0.1},
        {"alpha": "0.1"},
    ],
)
def test_partition_refuses(values):
    with pytest.raises(ValidationError):
        PartitionSettings(**values)


@pytest.mark.parametrize("values", [{"test-fraction": 1.0}, {"validation": -0.1}, {"seed": -2}, {"tests": 1}])
def test_split_refuses(values):
    with pytest.raises(ValidationError):
        SplitSettings(**values)


def test_both_spellings_are_taken_and_nothing_changes_afterwards():
    assert PartitionSettings(**{"lambda": 0.5}) == PartitionSettings(lambda_=0.5)
    with pytest.raises(ValidationError, match="frozen"):
        PartitionSettings().alpha = 1.0


def test_spec_is_hashable_and_travels_to_worker_processes():
    spec = DataSpec("digits", partition=PartitionSettings(name="iid"), clients=3)
    assert through_a_pipe(spec) == spec
    assert hash(spec) == hash(DataSpec("digits", partition=PartitionSettings(name="iid"), clients=3))


def test_split_seed_replaces_the_runs_seed():
    assert DataSpec("digits", seed=4).data_seed == 4
    assert DataSpec("digits", seed=4, split=SplitSettings(seed=9)).data_seed == 9


def test_spec_needs_a_client():
    with pytest.raises(DataError, match="clients: expected at least 1, got 0"):
        DataSpec("digits", clients=0)


def test_test_of_labels_excludes_a_fraction():
    with pytest.raises(ConfigError, match=r"split.test-of-labels: expected split.test-fraction = 0"):
        parse({"method": "m", "split.test-of-labels": True, "split.test-fraction": 0.2}, {"m": Settings})
