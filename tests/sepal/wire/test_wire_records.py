"""A payload in a Flower Array, and Arrays that are none."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from sepal.errors import WireError
from sepal.wire import encode, whole
from sepal.wire.records import from_array, to_array

DATA = encode({"w": whole(np.ones(3))})


def test_round_trip_through_a_record():
    record = ArrayRecord({"payload": to_array(DATA)})
    assert from_array(record["payload"]) == DATA
    assert (record["payload"].dtype, record["payload"].shape) == ("uint8", (len(DATA),))


@pytest.mark.parametrize(
    "array",
    [
        Array("uint8", (len(DATA),), "numpy.ndarray", DATA),
        Array("float32", (len(DATA),), "sepal.sparse.v1", DATA),
        Array("uint8", (len(DATA) + 1,), "sepal.sparse.v1", DATA),
        Array("uint8", (1, len(DATA)), "sepal.sparse.v1", DATA),
    ],
    ids=["type", "dtype", "length", "dimensions"],
)
def test_refuses_another_array(array):
    with pytest.raises(WireError, match=r"Array.*: expected"):
        from_array(array)
