"""What the tests of Pa3dFL's hypernetwork share: a small one, steps of it, uploads."""

import math
from dataclasses import replace

import numpy as np

from sepal import models
from sepal.models.decomposed import Decomposed, initial_weights
from sepal.strategies.pa3dfl.contract import Hyper
from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork

WIDTHS = {"a": 1.0, "b": 1 / 2, "c": 1 / 16}
SMALL = Hyper(embedding=8, hidden=6, depth=3, decoder_rank=5)


def decomposed(width=1.0, name="digits-cnn", shape=(1, 8, 8), classes=10):
    return Decomposed(models.build(name, shape, classes).to("meta"), shape, width)


def step(hypernetwork, state, uploads, rate=0.2, clip=1.0, rounded=np.copy, absorb=math.inf):
    """A step at other settings than the hypernetwork's."""
    hypernetwork.hyper = hypernetwork.hyper.model_copy(update={"rate": rate, "clip": clip, "absorb": absorb})
    return hypernetwork.step(state, uploads, rounded)


def shapes(width):
    return {p.name: p.shape for p in decomposed(width).personal}


def network(hyper=SMALL, clients=("a", "b", "c")):
    full = Decomposed(models.build("digits-cnn", (1, 8, 8), 10), (1, 8, 8))
    hypernetwork = Hypernetwork(full.personal, 7, hyper)
    return hypernetwork, hypernetwork.join(hypernetwork.init(initial_weights(full, 7)), clients)


def stirred(state, seed=0, scale=0.3):
    """The state with noise on every tensor, so that no gradient is zero by chance."""
    rng = np.random.default_rng(seed)
    weights = {k: v + np.float32(scale) * rng.standard_normal(v.shape, np.float32) for k, v in state.weights.items()}
    return replace(state, weights=weights)


def trained(sent, seed):
    rng = np.random.default_rng(seed)
    return {k: v + np.float32(0.1) * rng.standard_normal(v.shape, np.float32) for k, v in sent.items()}


def bits(state):
    return [(k, v.tobytes()) for part in (state.weights, state.embeddings) for k, v in sorted(part.items())]
