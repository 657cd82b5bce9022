"""A payload inside a Flower message. The only file of this package that imports Flower.

One Array for each message: every Array costs about 2.5 kB of framing, so the codec joins the tensors, not Flower.
"""

from __future__ import annotations

from flwr.app import Array

from sepal.errors import WireError

MEDIA_TYPE = "sepal.sparse.v1"


def to_array(data: bytes) -> Array:
    """The payload ``data`` as a Flower Array: type ``sepal.sparse.v1``, dtype uint8, shape (length,)."""
    return Array("uint8", (len(data),), MEDIA_TYPE, data)


def from_array(array: Array) -> bytes:
    """The payload in ``array``, not yet decoded.

    Raises:
        WireError: The Array is not one that ``to_array`` makes.
    """
    if array.stype != MEDIA_TYPE:
        raise WireError("Array type", MEDIA_TYPE, str(array.stype))
    if array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        raise WireError("Array", f"uint8 ({len(array.data)},)", f"{array.dtype} {tuple(array.shape)}")
    return array.data
