"""The arrays that server and clients of a process share cannot be written to, also in a worker."""

import pickle

import numpy as np
import pytest

from sepal.config import RunConfig
from sepal.method.interface import RunSetup


def through_pickle(setup):
    return pickle.loads(pickle.dumps(setup))


@pytest.mark.parametrize("received", [lambda setup: setup, through_pickle], ids=["here", "in a worker"])
@pytest.mark.parametrize("name", ["weights", "frozen"])
def test_first_weights_and_frozen_tensors_are_read_only(name, received):
    setup = received(
        RunSetup((), {"w": np.ones(3, np.float32)}, RunConfig(), None, frozen={"f": np.ones(2, np.float32)})
    )
    (array,) = getattr(setup, name).values()
    with pytest.raises(ValueError, match="read-only"):
        array *= 0.9
