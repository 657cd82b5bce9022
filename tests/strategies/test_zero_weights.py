"""Weights that are 0 at first: methods that could never train them refuse LoRA and such models, and only those."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from referee.matrix import models as kinds
from referee.matrix.__main__ import KEYS
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ModelError
from sepal.strategies.assembly import assemble
from tests.strategies.baselines import BASE

ADAPTERS = {**KEYS, "own.data": f"{kinds.__name__}:images", "own.shape": "1x8x8", "lora.rank": 2}
ADAPTERS |= {"model": f"{kinds.__name__}:vision_transformer", "capacity.profile": "0.5"}
REFUSED = {
    "sparsyfed": r"lora\.rank: expected 0 with sparsyfed: .* 0, got 2, with which \S+lora_B is all 0 at first, and",
    "spafl": r"lora\.rank: expected 0 with spafl: a row of zeros is off, .* got 2",
    "fiarse": r"fiarse\.ranking: expected layer: .* got a model where \S+lora_B is all 0",
}


def zero_head(shape, classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4), nn.Linear(4, classes))
    nn.init.zeros_(model[2].weight)
    return model


def server(**keys):
    assembly = assemble(keys)
    return assembly.method.make_server(assembly.setup)


@pytest.mark.parametrize("method", REFUSED)
def test_adapters_that_would_never_be_trained_are_refused(method):
    keys = {"capacity.profile": "1"} if method != "fiarse" else {}
    with pytest.raises(ConfigError, match=REFUSED[method]):
        server(**{**ADAPTERS, "method": method, **keys})


@pytest.mark.parametrize(("method", "key"), [("sparsyfed", "model"), ("spafl", "model"), ("fiarse", "fiarse.ranking")])
def test_so_is_a_model_with_a_weight_of_zeros(method, key):
    model = {**BASE, "method": method, "model": f"{__name__}:zero_head"}
    with pytest.raises((ConfigError, ModelError), match=rf"^{key}: expected .* where 2\.weight is all 0 at first$"):
        server(**model)


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "fiarse", "fiarse.ranking": "layer"},
        {"method": "sparsyfed", "sparsyfed.alpha": 1.0, "sparsyfed.largest": "change", "capacity.profile": "1"},
    ],
)
def test_where_zeros_are_trained_adapters_run(keys):
    strategy = run_in_process(assemble({**ADAPTERS, **keys}))
    after = strategy._method.make_server(strategy.setup).model(strategy.progress.server)
    assert all(after[name].any() for name in after)


def test_norms_and_biases_of_zeros_are_no_such_weights():
    server(**BASE, method="sparsyfed", model="tests.strategies.baselines:normed")


def test_pruned_to_the_largest_weights_it_would_be_zero_again():
    with pytest.raises(
        ConfigError, match=r"^lora\.rank: expected 0 with sparsyfed: sparsyfed\.largest = weights prunes"
    ):
        server(**{**ADAPTERS, "method": "sparsyfed", "sparsyfed.alpha": 1.0, "capacity.profile": "1"})
