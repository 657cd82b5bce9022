"""One interface for every source: a data set that is dealt to clients, and data that only its client sees."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest

from sepal.config import OwnSettings, PartitionSettings, RunConfig, SplitSettings
from sepal.data import DataSpec, OwnData, client_data, federated_data, pooled_test
from sepal.errors import ConfigError, DataError
from tests.worker_pipe import through_a_pipe

CLINIC = RunConfig(dataset="own", own=OwnSettings(shape="4", classes=2, data="clinic:load"), seed=3)


@pytest.fixture
def clinic(monkeypatch):
    module = ModuleType("clinic")

    def load(client):
        x = np.full((10, 4), float(client), np.float32)
        return x, np.arange(10) % 2, x[:4], np.arange(4) % 2

    module.load = load
    monkeypatch.setitem(sys.modules, "clinic", module)


def test_a_dealt_data_set_gives_each_client_its_part():
    data = federated_data(RunConfig(dataset="digits", seed=3, split=SplitSettings(seed=5)))
    spec = DataSpec(
        "digits", partition=PartitionSettings(name="dirichlet"), split=SplitSettings(seed=5), clients=4, seed=3
    )
    assert np.array_equal(data.client(2, 4, "x").train.x, client_data(spec, 2).train.x)
    assert np.array_equal(data.pooled_test(4, 50).x, pooled_test(spec, 50, 3).x)
    assert (data.private, data.seed, data.info.classes) == ("", 5, 10)
    with pytest.raises(ConfigError, match="clients: expected more than partition-id = 4, got 4"):
        data.client(4, 4, "x")


def test_own_data_comes_from_the_clients_function_and_is_nobody_elses(clinic):
    data = federated_data(CLINIC)
    part = data.client(2, 5, "clinic-b")
    assert part.train.x.shape == (9, 4)
    assert (part.test.x == 2).all()
    assert "clients' data is their own" in data.private
    with pytest.raises(DataError, match="test data of all clients: expected a data set that clients share"):
        data.pooled_test(5)


def test_own_data_without_a_function_or_of_another_shape_names_the_client(clinic):
    info = federated_data(CLINIC).info
    with pytest.raises(ConfigError, match=r"clinic-b: data: expected package\.module:function in the node config"):
        OwnData(info, "").client(0, 1, "clinic-b")
    wide = federated_data(CLINIC.model_copy(update={"own": OwnSettings(shape="5", classes=2, data="clinic:load")}))
    with pytest.raises(
        DataError, match=r"clinic-b: data: expected examples of shape \(5,\), as the run says, got \(4,\)"
    ):
        wide.client(0, 1, "clinic-b")


@pytest.mark.parametrize("config", [CLINIC, RunConfig(dataset="digits")], ids=["own", "digits"])
def test_data_travels_to_worker_processes(config):
    data = federated_data(config)
    assert through_a_pipe(data) == data


def test_an_unknown_name_lists_own_too():
    with pytest.raises(DataError, match=r"dataset: expected one of .*, mnist, own, .*, got"):
        federated_data(RunConfig(dataset="mnits"))
