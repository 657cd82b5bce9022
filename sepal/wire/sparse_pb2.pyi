# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IndexCoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INDEX_UNSPECIFIED: _ClassVar[IndexCoding]
    INDEX_DENSE: _ClassVar[IndexCoding]
    INDEX_BITMAP: _ClassVar[IndexCoding]
    INDEX_ROWS: _ClassVar[IndexCoding]
    INDEX_GAPS: _ClassVar[IndexCoding]
    INDEX_DERIVED: _ClassVar[IndexCoding]
    INDEX_SAME: _ClassVar[IndexCoding]
    INDEX_ANS: _ClassVar[IndexCoding]

class ValueCoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_UNSPECIFIED: _ClassVar[ValueCoding]
    VALUE_FP32: _ClassVar[ValueCoding]
    VALUE_FP16: _ClassVar[ValueCoding]
    VALUE_BF16: _ClassVar[ValueCoding]
    VALUE_SIGN: _ClassVar[ValueCoding]
    VALUE_NONE: _ClassVar[ValueCoding]
INDEX_UNSPECIFIED: IndexCoding
INDEX_DENSE: IndexCoding
INDEX_BITMAP: IndexCoding
INDEX_ROWS: IndexCoding
INDEX_GAPS: IndexCoding
INDEX_DERIVED: IndexCoding
INDEX_SAME: IndexCoding
INDEX_ANS: IndexCoding
VALUE_UNSPECIFIED: ValueCoding
VALUE_FP32: ValueCoding
VALUE_FP16: ValueCoding
VALUE_BF16: ValueCoding
VALUE_SIGN: ValueCoding
VALUE_NONE: ValueCoding

class Header(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "shape", "index", "values", "count", "index_bytes", "value_bytes", "axis", "low_bits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    LOW_BITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    index: IndexCoding
    values: ValueCoding
    count: int
    index_bytes: int
    value_bytes: int
    axis: int
    low_bits: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., index: _Optional[_Union[IndexCoding, str]] = ..., values: _Optional[_Union[ValueCoding, str]] = ..., count: _Optional[int] = ..., index_bytes: _Optional[int] = ..., value_bytes: _Optional[int] = ..., axis: _Optional[int] = ..., low_bits: _Optional[int] = ...) -> None: ...
