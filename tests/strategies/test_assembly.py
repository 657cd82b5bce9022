"""A run's parts from flat keys: what ``auto`` and 0 become."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from sepal import models
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
    config = assemble({"method": "fedavg", **keys}).task.config
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
    with pytest.raises(ConfigError, match=r"initial-weights: fc2\.bias: expected shape \(10,\), got shape \(7,\)"):
        assemble({"dataset": "digits", "model": "digits-cnn", "initial-weights": str(tmp_path / "w.safetensors")})


def test_a_key_of_another_method_gets_a_line():
    """Flower's run config has every method's keys, with their defaults: these are not named."""
    flat = {**registry.defaults(), "method": "fedavg", "fedprox.mu": 0.3, "dataset": "digits"}
    notes = [note for note in assemble(flat).notes if "without effect" in note]
    assert notes == ["fedprox.mu: without effect, because the method is fedavg"]
    assert not any("without effect" in note for note in assemble({**flat, "method": "fedprox"}).notes)
