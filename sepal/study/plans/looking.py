"""Reads a plan that may be somebody else's, to see how far its runs are: nothing that it names is executed or read.

`sepal compare PLAN --status` needs no more of a plan than the names of its runs. Two things in a plan may lead beyond
it: a method of its author's, whose own keys stand in its module, and learning rates that ``tune = true`` takes from the
data, because they are in the names of trials.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sepal import user_modules
from sepal.config.elsewhere import PLACES
from sepal.data.sources import FILES
from sepal.errors import ConfigError

HOW = "you allow (sepal compare --status --allow package.module:NAME)"
_reads_data: ContextVar[bool] = ContextVar("reads_data", default=True)


@contextmanager
def looking(code: Collection[str] = (), data: bool = False) -> Iterator[None]:
    """Read plans within this block for the names of their runs alone.

    Args:
        code: What may be imported if a plan names it: ``package.module:NAME``, or all of ``package.module``.
        data: Whether the data that a plan names may be read.
    """
    before = _reads_data.set(data)
    try:
        with user_modules.only(code, HOW):
            yield
    finally:
        _reads_data.reset(before)


def is_looking() -> bool:
    """Return whether a plan is read for the names of its runs alone, and its data may not be read."""
    return not _reads_data.get()


def without_data(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat keys of a run without those that lead out of its plan, where its data may not be read.

    Raises:
        ConfigError: The data are files that the plan names, so that nothing is known of them without reading them.
    """
    if not is_looking():
        return dict(keys)
    if keys.get("dataset") in FILES:
        expected = "a data set that Sepal knows, or --data, with which --status reads the data that the plan names"
        raise ConfigError("dataset", f"{expected}: the rates that it tries follow from them", keys["dataset"])
    return {key: value for key, value in keys.items() if key not in PLACES}
