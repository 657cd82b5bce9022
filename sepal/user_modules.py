"""Imports a user's own modules, given as ``package.module:function`` for data and models.

They are searched for in the directories of the environment variable ``SEPAL_USER_PATH``, after all installed packages.
Worker processes, SuperNodes and their ClientApp processes inherit it. Each process calls :func:`enable` when it starts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from sepal.errors import SepalError, suggest

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch.library.Library takes its schemas with it when it is collected
VARIABLE = "SEPAL_USER_PATH"
DEFINED = "defined_in_this_session"  # stands for a module
_functions: dict[str, bytes] = {}  # name → the function, by cloudpickle
_loaded: dict[str, Callable[..., Any]] = {}
# What may be imported, and how more is; None: all.
_only: ContextVar[tuple[frozenset[str], str] | None] = ContextVar("only", default=None)


def directories() -> list[str]:
    """Return the user's directories, in search order."""
    return [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def enable(*more: Path) -> None:
    """Let this process and its children import from ``more`` and from the directories in ``SEPAL_USER_PATH``."""
    paths = [*(str(directory.absolute()) for directory in more), *directories()]
    if paths:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(paths))


@contextlib.contextmanager
def only(allow: Collection[str], how: str) -> Iterator[None]:
    """Import nothing within this block but what is allowed: keys that are read there may be somebody else's.

    Args:
        allow: ``package.module:NAME``, or all of ``package.module``.
        how: How more is allowed, for the error, which says ``code that`` before it.
    """
    before = _only.set((frozenset(allow), how))
    try:
        yield
    finally:
        _only.reset(before)


def is_withheld(target: str) -> bool:
    """Return whether ``package.module:NAME`` may not be imported; see :func:`only`."""
    only_these = _only.get()
    return only_these is not None and only_these[0].isdisjoint((target, target.partition(":")[0]))


def load(key: str, target: str, error: type[SepalError]) -> Callable[..., Any]:
    """Import ``package.module:function`` and return the function.

    The user's directories are put at the end of ``sys.path`` here and not before: libraries try to import modules that
    are often not installed (``orjson``), and a file of that name must not run just because somebody looks at a run.

    Args:
        key: The config key, for error messages.
        target: ``package.module:function``.
        error: Type of the errors.

    Raises:
        SepalError: It cannot be imported or is not callable, or may not be imported (:func:`only`).
    """
    if (only_these := _only.get()) is not None and is_withheld(target):
        raise error(key, f"code that {only_these[1]}", target)
    module, colon, name = target.partition(":")
    place = "package.module:NAME" if key == "method" else "package.module:function"  # a method is no function
    if not (module and colon and name):
        raise error(key, place, target)
    if module.endswith(".py"):
        raise error(key, f"{Path(module).stem}:{name}, a module's name and not its file", target)
    if module == DEFINED:
        return _defined(key, name, error)
    sys.path.extend(directory for directory in directories() if directory not in sys.path)
    try:
        attribute: Any = getattr(imported(module), name)
    except (ImportError, AttributeError, ValueError) as reason:
        loaded = sys.modules.get(module) if isinstance(reason, AttributeError) else None
        words = suggest(str(reason), name, [word for word in vars(loaded) if word[0] != "_"] if loaded else [])
        raise error(key, f"{place} that can be imported", f"{target} ({words})") from reason
    except (Exception, SystemExit) as reason:  # of the module's own code
        if isinstance(reason, SystemExit) and not left_by_own_code(reason):
            raise  # by a signal
        raise error(key, f"{place} that can be imported", f"{target} ({described(reason)})") from reason
    if not callable(attribute):
        raise error(key, f"{target} to be a function", type(attribute).__name__)
    function: Callable[..., Any] = attribute
    return function


def imported(module: str) -> ModuleType:
    """Import a module that may import torchvision.

    torchvision's common wheel cannot load its compiled operators with a CPU-only torch, and fails at the first fake
    kernel that it registers. Only on that error are the missing schemas declared; data sets, transforms and models work
    without the operators behind them.
    """
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = sys.modules["torch"].library.Library("torchvision", "FRAGMENT")  # torchvision has imported it
    _declared.append(library)
    for schema in _SCHEMAS:
        with contextlib.suppress(RuntimeError):  # declared already, by an earlier attempt or by torchvision
            library.define(schema)
    return importlib.import_module(module)


def described(error: BaseException, most: int = 3) -> str:
    """Return an exception as ``KeyError: 'a' (mine.py:8 in load_rows, called at mine.py:3 in load)``.

    Only frames of the user's own code are named, the last ``most`` of them; an exception without any has no place.
    """
    trace = ", called at ".join(f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in _own_frames(error)[:most])
    return f"{type(error).__name__}: {error}" + f" ({trace})" * bool(trace)


def in_own_code(error: BaseException) -> bool:
    """Return whether the exception passed through the user's own code, so that its text is meant for its author."""
    return bool(_own_frames(error))


def left_by_own_code(stop: SystemExit) -> bool:
    """Return whether the user's own code ended the process, as ``sys.exit()`` at the end of a script does.

    A signal's handler may end it in the midst of such code: then the last frame is the handler's.
    """
    frames = traceback.extract_tb(stop.__traceback__)
    if frames and "_sitebuiltins" in frames[-1].filename:  # exit() and quit() are Python code, sys.exit() is not
        frames.pop()
    return bool(frames) and frames[-1] in _own_frames(stop)


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames that are neither Sepal's, Python's nor an installed package's, the last first."""
    others = [str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return [f for f in frames if not f.filename.startswith("<frozen") and not f.filename.startswith(tuple(others))]


def keep(name: str, content: bytes, function: Callable[..., Any]) -> str:
    """Keep a function of this session by value, and return what a run config says for it.

    Worker processes, and the processes of a comparison's runs, get it from :class:`Functions`. A deployment cannot use
    it, because its clients have no such code.

    Args:
        name: Its name and the digest of its code (:func:`sepal.api.keys.name_of`).
        content: The function, by cloudpickle.
        function: Itself.
    """
    _functions[name], _loaded[name] = content, function
    return f"{DEFINED}:{name}"


class Functions:
    """The functions that :func:`keep` has kept, for a process of this one, which takes them as it unpickles this."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, bytes]]]:
        """Become a call of :func:`receive`: whatever is unpickled after it may be made of the functions."""
        return receive, (dict(_functions),)


def receive(functions: Mapping[str, bytes]) -> None:
    """Take the functions of the parent process."""
    _functions.update(functions)


def _defined(key: str, name: str, error: type[SepalError]) -> Callable[..., Any]:
    if name not in _loaded:
        if name not in _functions:
            raise error(key, *_missing(name))
        # The only place that unpickles (tests/test_imports.py): code by value has no other form. Only the process that
        # started this one can have put it here; a run config names it, but never brings it.
        try:
            if b"torchvision" in _functions[name]:  # it may be imported by the code itself, without imported()
                with contextlib.suppress(ImportError):
                    imported("torchvision")
            _loaded[name] = pickle.loads(_functions[name])
        except Exception as reason:  # of an import that the function needs, as a rule
            plain = name.rpartition("_")[0]
            raise error(key, f"{plain} to load in a worker process, too", described(reason)) from reason
    return _loaded[name]


def _missing(name: str) -> tuple[str, str]:
    """Return what to do about a function that only another session has had, and what there is here."""
    plain = name.rpartition("_")[0]
    present = [function_name for function_name in _functions if function_name.rpartition("_")[0] == plain]
    how = f"sepal.load(RUN, code=[{plain}]), or sepal.run as before"
    expected = f"{plain} of a notebook or script, given to Sepal in this session as it was in the run: {how}"
    return expected, f"{present[-1]}, with other code than {name}" if present else name
