"""The digest of a function of a notebook or script: the same in every session in which its code is the same.

It covers what cloudpickle would send: code, constants, defaults, and the closure's and global values that the code
uses, down to functions and classes of the session. What can be imported counts by its name. File names, line numbers,
the process and Python's hash seed do not count.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

# Of a class: where it stands, what Python derives, abc's cache, and help, in which a dataclass has its defaults' repr.
_DERIVED = {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "_abc_impl"}
_DERIVED |= {"__firstlineno__", "__static_attributes__"}
_DESCRIPTORS = (type(int.real), type(FunctionType.__globals__))  # of slots: getset and member descriptors


def importable(value: Any) -> str:
    """Return ``package.module:name`` if importing that gives ``value``; empty for anything of ``__main__``."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return f"{module}:{name}" if target is value else ""


def code_digest(function: Callable[..., Any]) -> str:
    """Return the SHA-256 of ``function``, as hexadecimal digits.

    Raises:
        Exception: Of pickling, if it refers to something that cannot be sent to another process.
    """
    walk = _DigestWalk()
    walk.add(function)
    return walk.digest.hexdigest()


class _DigestWalk:
    """Feeds a value to a digest, depth first; a second visit of the same object is its number."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._visited: dict[int, tuple[int, Any]] = {}  # with the object, so that no other gets its id

    def _put(self, kind: str, content: bytes = b"") -> None:
        self.digest.update(f"{kind}:{len(content)}:".encode() + content)

    def add(self, value: Any) -> None:
        """Add any value."""
        if (name := _atom(value)) is not None:
            self._put(type(value).__name__, name)
        elif type(value) is tuple:
            self._all("tuple", value)
        elif type(value) in (set, frozenset):  # in an order that does not depend on the hash seed
            self._all("set", sorted(_alone(item) for item in value))
        elif isinstance(value, CodeType):
            self._code(value)
        elif location := importable(value):
            self._put("place", location.encode())
        elif id(value) in self._visited:  # of a cycle, such as a function that calls itself
            self._put("seen", str(self._visited[id(value)][0]).encode())
        else:
            self._visited[id(value)] = len(self._visited), value
            self._compound(value)

    def _all(self, kind: str, values: Any) -> None:
        items = list(values)
        self._put(kind, str(len(items)).encode())
        for item in items:
            self.add(item)

    def _compound(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._put("class", value.__name__.encode())
            self._all("bases", (type(value), *value.__bases__))
            self._pairs({name: member for name, member in sorted(vars(value).items()) if name not in _DERIVED})
        elif isinstance(value, dict | MappingProxyType) and type(value) in (dict, MappingProxyType):
            self._pairs(value)
        elif type(value) is list:
            self._all("list", value)
        elif isinstance(value, staticmethod | classmethod):
            self._all(type(value).__name__, (value.__func__,))
        elif isinstance(value, property):
            self._all("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, (*_DESCRIPTORS, BuiltinFunctionType)):
            self._all("named", (value.__name__, getattr(value, "__self__", None)))
        elif _is_array(value):
            self._array(value)
        else:
            self._object(value)

    def _pairs(self, values: Mapping[Any, Any]) -> None:
        self._all("dict", (side for pair in values.items() for side in pair))

    def _function(self, function: FunctionType) -> None:
        self._put("function", function.__name__.encode())
        self._code(function.__code__)
        self._all("defaults", (function.__defaults__, function.__kwdefaults__))
        self._all("closure", map(_content, function.__closure__ or ()))
        used = sorted({name for name in _globals(function.__code__) if name in function.__globals__})
        self._pairs({name: function.__globals__[name] for name in used})
        self._pairs(vars(function))

    def _code(self, code: CodeType) -> None:
        self._put("code", code.co_code)
        self._put("exceptions", code.co_exceptiontable)
        self._all("counts", (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
        self._all("names", (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
        self._all("constants", code.co_consts)

    def _array(self, value: Any) -> None:
        import numpy as np

        kind, array = str(value.dtype), value
        if hasattr(value, "detach"):
            array = value.detach().cpu()
            array = array.float() if kind == "torch.bfloat16" else array  # which NumPy does not have
        array = np.asarray(array)
        self._all("array", (type(value).__name__, kind, array.shape, array.tobytes()))

    def _object(self, value: Any) -> None:
        """Add an object as pickle would make it again, without pickle's references to what it has seen."""
        import cloudpickle

        try:
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except TypeError:  # of a kind that cloudpickle alone can send, or nobody
            self._put("pickle", cloudpickle.dumps(value))
            return
        if isinstance(reduced, str):  # by name; what functools.cache wraps is code all the same
            self._all("global", (type(value).__module__, reduced, getattr(value, "__wrapped__", None)))
            return
        function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self._all("object", (function, arguments, state, list(items or ()), list(pairs or ())))


def _atom(value: Any) -> bytes | None:
    """Return the content of a value without parts, whose identity means nothing; None for another."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if value is None or value is ... or isinstance(value, bool | int | complex):
        return repr(value).encode()
    if type(value) is str:
        return value.encode("utf-8", "surrogatepass")
    if type(value) in (bytes, bytearray):
        return bytes(value)
    return value.__name__.encode() if isinstance(value, ModuleType) else None


def _alone(value: Any) -> bytes:
    walk = _DigestWalk()
    walk.add(value)
    return walk.digest.digest()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return ...


def _is_array(value: Any) -> bool:
    module = type(value).__module__.partition(".")[0]
    plain = getattr(getattr(value, "dtype", None), "hasobject", None) is False  # torch's dtypes have no such thing
    return (module == "numpy" and plain) or (type(value).__name__ == "Tensor" and module == "torch")


def _globals(code: CodeType) -> Iterator[str]:
    """Yield the names of globals that the code, or code inside it, reads."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)
