"""Models with running statistics: every baseline trains them, and shared ones are plain means that stay positive."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.strategies import registry
from tests.strategies.baselines import model, run

FROZEN = {"fedmask", "fedpm"}  # their statistics stay W_0's
COMPOSED = {"flanc"}  # its layers are convolutions, linear layers and group norms: another model is refused
BASELINES = [name for name, at in registry.METHODS.items() if ".baselines." in at and name not in COMPOSED]


@pytest.mark.parametrize("method", BASELINES)
def test_a_model_with_batch_normalisation(method):
    keys = {
        "model": "tests.strategies.baselines:normed",
        "batch-size": 240,
        "local-epochs": 8,
        "lr": 0.2,
        "timeout": 20.0,
    }
    keys |= {"pfedme.lambda": 2.0, "pfedme.rate": 0.1}  # the authors' λ of 15 wants lr < 2/λ and 100 rounds
    keys |= {"fedbuff.buffer": 2}  # with 10 there is no step in four rounds
    if method in ("fedsa-lora", "flasc"):  # adapters beside random frozen layers learn little
        keys |= {"trainable": "*", "flasc.rate": 0.1}
    strategy = run(method, 4, **keys)
    assert strategy.report.accuracy["trained"]["mean"] > 0.3
    shared = model(strategy)
    for name, value in shared.items():
        assert np.isfinite(value).all()
        if name.endswith("running_var"):
            assert (value > 0).all()
            assert bool(np.abs(value - 1).max() > 1e-3) is (method not in FROZEN), "it was not trained"
