"""The arrays that server and clients of a process share cannot be written to, also in a worker."""

import pickle

import numpy as np
import pytest

from sepal.config import RunConfig
from sepal.method.interface import Task


def through_pickle(task):
    return pickle.loads(pickle.dumps(task))


@pytest.mark.parametrize("received", [lambda task: task, through_pickle], ids=["here", "in a worker"])
@pytest.mark.parametrize("name", ["weights", "frozen"])
def test_first_weights_and_frozen_tensors_are_read_only(name, received):
    task = received(Task((), {"w": np.ones(3, np.float32)}, RunConfig(), None, frozen={"f": np.ones(2, np.float32)}))
    (array,) = getattr(task, name).values()
    with pytest.raises(ValueError, match="read-only"):
        array *= 0.9
