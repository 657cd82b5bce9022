"""The sparse wire format, specified in FORMAT.md; ``records`` converts payloads to Flower's Array."""

from sepal.wire.codec import Spec, Specs, decode, encode
from sepal.wire.header import Contents, IndexCoding, TensorHeader, inspect
from sepal.wire.tensors import (
    Array,
    Index,
    SparseTensor,
    Support,
    Tensors,
    TensorSpec,
    ValueCoding,
    Values,
    at,
    members,
    whole,
)
from sepal.wire.values import rounded

__all__ = [
    "Array",
    "Contents",
    "Index",
    "IndexCoding",
    "SparseTensor",
    "Spec",
    "Specs",
    "Support",
    "TensorHeader",
    "TensorSpec",
    "Tensors",
    "ValueCoding",
    "Values",
    "at",
    "decode",
    "encode",
    "inspect",
    "members",
    "rounded",
    "whole",
]
