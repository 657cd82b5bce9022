"""Further processes of Sepal's own, which begin with torch and Flower imported.

Importing them takes two seconds of a core, several times what a small run's rounds take. So one server process imports
them, and each further process is forked from it. The server ends with the process that started it. Nobody else can ask
it for a process: its socket has the rights of its user alone (Python 3.11.0 has not, so that uses new processes).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from sepal import user_modules

PRELOADED = ["sepal.engines.in_process.worker", "sepal.study.run"]
SAFE_PATH = "PYTHONSAFEPATH"  # a user's own random.py in the working directory is not the one that torch imports
_FORKS = "forkserver" in multiprocessing.get_all_start_methods() and sys.version_info >= (3, 11, 1)


def prepare() -> bool:
    """Start the server, which imports while this process goes on, unless it runs.

    Returns:
        Whether there is one: not where Python has none, nor where its socket cannot be made, as a ``TMPDIR`` of more
        than some 80 characters is too long for its name.
    """
    if not _FORKS:
        return False
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        with _no_main():
            forkserver.ensure_running()
    except OSError:
        return False
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
    return True


def start(
    target: Callable[..., None],
    *arguments: Any,
    daemon: bool = False,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Start a process that calls ``target``, and return it.

    It knows the functions of this session (:class:`sepal.user_modules.Functions`) before its arguments are unpickled.

    Args:
        target: A function of a module.
        arguments: Its arguments.
        daemon: Whether it is killed at the end of this process, and may start none itself.
        environment: Environment variables besides those of this process.
    """
    context = multiprocessing.get_context("forkserver" if prepare() else "spawn")
    variables = _Environment({**os.environ, **(environment or {})})
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=_call, args=(variables, user_modules.Functions(), target, arguments), daemon=daemon
    )
    with _no_main():
        process.start()
    return process


class _Environment:
    """The environment of this process, which a further one takes as it unpickles this: its own is the server's."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __reduce__(self) -> tuple[Callable[..., None], tuple[dict[str, str]]]:
        return _take_environment, (self._variables,)


def _take_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _call(_environment: None, _functions: None, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    target(*arguments)


@contextmanager
def _no_main() -> Iterator[None]:
    """Start processes that do not run the script of this one, which would start a run of its own in each of them.

    A script needs no ``if __name__ == "__main__"`` then. Its functions reach the processes as bytes.
    """
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module
