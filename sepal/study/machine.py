"""What this machine has and lacks for a run: ``sepal doctor``. Nothing is written, and nothing is downloaded."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from sepal.data.catalogue import CATALOGUE
from sepal.data.locations import cache_directory, data_directory, downloads_allowed
from sepal.data.sources import is_here
from sepal.engines.flower.processes import unusable
from sepal.errors import SepalError, one_line
from sepal.flower.versions import RANGE, require_supported, transport
from sepal.storage.files import check_owner
from sepal.storage.home import home

PORTS = {"clients": 9092, "Flower's commands": 9093}  # the defaults of `sepal serve`


class Finding(NamedTuple):
    """One line of what is found.

    Attributes:
        check: What was looked at.
        words: What is there, or what to do.
        good: Whether nothing is to do.
        stops: Whether a run in process cannot start.
    """

    check: str
    words: str
    good: bool = True
    stops: bool = False


def examine() -> Iterator[Finding]:
    """Yield the findings, one for each thing that a run needs."""
    yield Finding("Python", platform.python_version())
    yield from torch_findings()
    yield from _whole("data directory", data_findings)
    yield from directory_findings()
    for what, port in PORTS.items():
        reason = unusable("127.0.0.1", port)
        words = f"{port} is free" if not reason else f"{port}: {reason}; give `sepal serve` another one"
        yield Finding(f"port for {what}", words, not reason)
    yield from flower_findings()


def _whole(what: str, findings: Callable[[], Iterator[Finding]], stops: bool = False) -> Iterator[Finding]:
    """Yield findings, and as the last one what keeps the rest from being found, such as a name of no directory."""
    try:
        yield from findings()
    except SepalError as error:
        yield Finding(what, str(error), False, stops)
    except OSError as error:
        yield Finding(what, one_line(f"{error.strerror}: {error.filename}", 200), False, stops)


def torch_findings() -> Iterator[Finding]:
    """Yield torch's version, build and device, and whether torchvision fits it."""
    try:
        import torch
    except Exception as error:  # a library of another build
        yield Finding("torch", f"cannot be imported ({one_line(str(error), 200)}): install it again", False, True)
        return
    build = next((f"{name} {number}" for name, number in _builds(torch.version) if number), "the CPU build")
    yield Finding("torch", f"{torch.__version__}, {build}")
    from sepal.training.devices import choose_device

    device = choose_device("auto")
    if device == "cpu" and torch.version.cuda:
        words = "cpu: no GPU is found, so the CPU build of torch does the same in a tenth of the space (README)"
        yield Finding("device", words, False)
    elif device == "cpu":
        yield Finding("device", f"cpu, {os.cpu_count()} cores")
    else:
        yield Finding("device", f"{device}, {torch.accelerator.device_count()} of them")
    try:
        import torchvision
    except Exception as error:
        words = f"does not fit torch ({one_line(str(error), 120)}): install both from one index"
        yield Finding("torchvision", words, False)
    else:
        yield Finding("torchvision", torchvision.__version__)


def _builds(found: object) -> Iterator[tuple[str, str | None]]:
    for name, attribute in (("CUDA", "cuda"), ("ROCm", "hip"), ("XPU", "xpu")):
        yield name, getattr(found, attribute, None)


def data_findings() -> Iterator[Finding]:
    """Yield the data directory, and the data sets whose files are there."""
    directory = data_directory("")
    here = [name for name in sorted(CATALOGUE) if is_here(name)]
    lacking = [name for name in sorted(CATALOGUE) if name not in here]
    where = (
        str(directory) if directory.is_dir() else f"{directory}, which does not exist yet (SEPAL_DATA names another)"
    )
    yield Finding("data directory", where)
    yield Finding("data sets here", ", ".join(here) or "none", bool(here))
    if lacking:
        how = "a run that asks for one says what to put where"
        if downloads_allowed():
            how = "a run that asks for one downloads it, or says what to put where"
        yield Finding("data sets elsewhere", f"{', '.join(lacking)}: {how}")


def directory_findings() -> Iterator[Finding]:
    """Yield whether runs, states and prepared data can be written."""
    for what, place, stops in (
        ("runs", lambda: Path.cwd() / "runs", True),
        ("SEPAL_HOME", home, False),
        ("cache of data", lambda: cache_directory(data_directory("")), False),
    ):
        yield from _whole(what, partial(_directory, what, place, stops), stops)


def _directory(what: str, place: Callable[[], Path], stops: bool) -> Iterator[Finding]:
    path = place()
    nearest = next(there for there in (path, *path.parents) if there.exists() or there.is_symlink())
    reason = ""
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        reason = f"{nearest} cannot be written: change its rights, or start in another directory"
    elif nearest == path and what == "SEPAL_HOME":
        try:
            check_owner(path)
        except SepalError as error:
            reason = str(error)
    yield Finding(what, reason or str(path), not reason, stops and bool(reason))


def flower_findings() -> Iterator[Finding]:
    """Yield whether Flower and Ray are there, for deployments and the simulation."""
    try:
        require_supported()
    except SepalError as error:
        yield Finding("Flower", f"{error}: pip install 'flwr>=1.39,<1.43'", False)
    else:
        yield Finding("Flower", f"{version('flwr')} of {RANGE}, speaks {transport()}")
    try:
        yield Finding("Ray", version("ray"))
    except PackageNotFoundError:
        words = "not installed, needed for Flower's simulation alone: pip install 'sepal-fl[simulation]'"
        yield Finding("Ray", words, False)
