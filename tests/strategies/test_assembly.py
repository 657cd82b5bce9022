"""A run's parts from flat keys: what ``auto`` and 0 become."""

from __future__ import annotations

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sepal import models
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.models.weights import read_weights
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

OWN = {"dataset": "own", "own.shape": "1x8x8", "own.classes": 3, "model": "digits-cnn"}


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"dataset": "har"}, "natural"),
        ({"dataset": "femnist"}, "natural"),
        ({"dataset": "digits"}, "dirichlet"),
        ({"dataset": "har", "partition.name": "iid"}, "iid"),
        ({"dataset": "har", "partition.name": "dirichlet"}, "dirichlet"),
        (OWN, "dirichlet"),
    ],
)
def test_data_with_owners_is_split_by_them_unless_the_run_says_otherwise(keys, name):
    """What the configuration of the run holds is the resolved name: it is what config.toml shows."""
    config = assemble({"method": "fedavg", **keys}).setup.config
    assert config.partition.name == name
    assert config.flat()["partition.name"] == name


def test_a_shift_towards_others_data_is_refused_where_nobody_may_see_it():
    with pytest.raises(ConfigError, match=r"evaluate.shift: expected false \(clients' data is their own"):
        assemble({**OWN, "method": "fedavg", "evaluate.shift": True})


def test_weights_to_start_from_of_another_shape_are_refused_by_name(tmp_path):
    """The tensors before it are as the model's, and are not named."""
    weights = read_weights(models.build("digits-cnn", (1, 8, 8), 10))
    weights["fc2.bias"] = np.zeros(7, np.float32)
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"fc2\.bias: expected shape \(10,\), got shape \(7,\).*initial-head"):
        assemble({"dataset": "digits", "model": "digits-cnn", "initial-weights": str(tmp_path / "w.safetensors")})


BN = {"dataset": "digits", "model": "digits-cnn-bn", "method": "fedavg", "clients": 2, "partition.subsample": 60}


@pytest.fixture
def checkpoint(tmp_path):
    """A file as torch users have it: running statistics, counters of batches, a last layer for seven classes."""
    module = models.build("digits-cnn-bn", (1, 8, 8), 7, seed=5)
    stored = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert any(array.dtype.kind == "i" for array in stored.values())
    save_file(stored, tmp_path / "c.safetensors")
    return str(tmp_path / "c.safetensors")


def test_a_file_with_counters_and_another_head_is_where_a_run_starts(checkpoint):
    setup = assemble({**BN, "initial-weights": checkpoint, "initial-head": "new"}).setup
    drawn = assemble(BN).setup.weights
    head = {name for name in drawn if name.startswith("fc2.")}
    assert len(head) == 2
    stored = load_file(checkpoint)
    for name, array in setup.weights.items():
        np.testing.assert_array_equal(array, (drawn if name in head else stored)[name], name)
    with pytest.raises(ConfigError, match=r"fc2\.weight: expected shape \(10, .*got .*\(7, .*initial-head"):
        assemble({**BN, "initial-weights": checkpoint})


def test_of_a_torch_file_the_error_says_how_to_convert_it(tmp_path):
    """And what it says works."""
    import safetensors.torch
    import torch

    module = models.build("digits-cnn-bn", (1, 8, 8), 10, seed=5)
    torch.save(module.state_dict(), tmp_path / "c.pt")
    with pytest.raises(ConfigError) as refused:
        assemble({**BN, "initial-weights": str(tmp_path / "c.pt")})
    suggestion = re.search(r"expected a safetensors file: (\S.*\)) writes one, got", str(refused.value))
    eval(suggestion[1], {"torch": torch, "safetensors": safetensors})
    weights = assemble({**BN, "initial-weights": str(tmp_path / "c.safetensors")}).setup.weights
    np.testing.assert_array_equal(weights["fc2.weight"], module.get_parameter("fc2.weight").detach().numpy())


def test_what_no_pattern_names_is_frozen_and_keeps_the_files_values(checkpoint):
    keys = {**BN, "initial-weights": checkpoint, "initial-head": "new", "trainable": "fc2.*, norm?.bias", "rounds": 1}
    assembly = assemble(keys)
    parameters = {name for name, _ in assembly.make().named_parameters()}
    assert parameters == {"fc2.bias", "fc2.weight", "norm1.bias", "norm2.bias"}
    stored = load_file(checkpoint)
    assert len(assembly.setup.frozen) == 8
    for name, array in assembly.setup.frozen.items():
        np.testing.assert_array_equal(array, stored[name], name)
    assert "model: 8 frozen tensors stay as initial-weights sets them" in assembly.notes
    strategy = run_in_process(assembly)
    model = strategy.algorithm.model(strategy.progress.server)
    assert "conv1.weight" not in model
    assert np.abs(model["norm1.bias"] - stored["norm1.bias"]).max() > 0


def test_a_pattern_that_names_no_parameter_is_one_line():
    with pytest.raises(ConfigError, match=r"trainable: expected patterns of conv1\.weight, .*, got head"):
        assemble({**BN, "trainable": "fc2.*,head"})


def test_a_key_of_another_method_gets_a_line():
    """Flower's run config has every method's keys, with their defaults: these are not named."""
    flat = {**registry.defaults(), "method": "fedavg", "fedprox.mu": 0.3, "dataset": "digits"}
    notes = [note for note in assemble(flat).notes if "without effect" in note]
    assert notes == ["fedprox.mu: without effect, because the method is fedavg"]
    assert not any("without effect" in note for note in assemble({**flat, "method": "fedprox"}).notes)
