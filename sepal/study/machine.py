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


class MachineCheck(NamedTuple):
    """One line of what was checked on this machine.

    Attributes:
        check: What was looked at.
        words: The result, or what to do about it.
        good: Whether nothing needs to be done.
        stops: Whether no run in process can start before it is mended.
    """

    check: str
    words: str
    good: bool = True
    stops: bool = False


def examine() -> Iterator[MachineCheck]:
    """Yield a line for each thing that a run needs."""
    yield MachineCheck("Python", platform.python_version())
    yield from torch_findings()
    yield from _whole("data directory", data_findings)
    yield from directory_findings()
    for purpose, port in PORTS.items():
        reason = unusable("127.0.0.1", port)
        words = f"{port} is free" if not reason else f"{port}: {reason}; give `sepal serve` another one"
        yield MachineCheck(f"port for {purpose}", words, not reason)
    yield from flower_findings()


def _whole(subject: str, findings: Callable[[], Iterator[MachineCheck]], stops: bool = False) -> Iterator[MachineCheck]:
    """Yield the findings; an error ends them and is the last one, for example a path that is no directory."""
    try:
        yield from findings()
    except SepalError as error:
        yield MachineCheck(subject, str(error), False, stops)
    except OSError as error:
        yield MachineCheck(subject, one_line(f"{error.strerror}: {error.filename}", 200), False, stops)


def torch_findings() -> Iterator[MachineCheck]:
    """Yield torch's version, build and device, and whether torchvision fits it."""
    try:
        import torch
    except Exception as error:  # a library of another build
        yield MachineCheck("torch", f"cannot be imported ({one_line(str(error), 200)}): install it again", False, True)
        return
    build = next((f"{name} {number}" for name, number in _builds(torch.version) if number), "the CPU build")
    yield MachineCheck("torch", f"{torch.__version__}, {build}")
    from sepal.training.devices import choose_device

    device = choose_device("auto")
    if device == "cpu" and torch.version.cuda:
        words = "cpu: no GPU is found, so the CPU build of torch does the same in a tenth of the space (README)"
        yield MachineCheck("device", words, False)
    elif device == "cpu":
        yield MachineCheck("device", f"cpu, {os.cpu_count()} cores")
    else:
        yield MachineCheck("device", f"{device}, {torch.accelerator.device_count()} of them")
    try:
        import torchvision
    except Exception as error:
        words = f"does not fit torch ({one_line(str(error), 120)}): install both from one index"
        yield MachineCheck("torchvision", words, False)
    else:
        yield MachineCheck("torchvision", torchvision.__version__)


def _builds(versions: object) -> Iterator[tuple[str, str | None]]:
    for name, attribute in (("CUDA", "cuda"), ("ROCm", "hip"), ("XPU", "xpu")):
        yield name, getattr(versions, attribute, None)


def data_findings() -> Iterator[MachineCheck]:
    """Yield the data directory, and the data sets whose files are there."""
    directory = data_directory("")
    present = [name for name in sorted(CATALOGUE) if is_here(name)]
    lacking = [name for name in sorted(CATALOGUE) if name not in present]
    where = (
        str(directory) if directory.is_dir() else f"{directory}, which does not exist yet (SEPAL_DATA names another)"
    )
    yield MachineCheck("data directory", where)
    yield MachineCheck("data sets here", ", ".join(present) or "none", bool(present))
    if lacking:
        how = "a run that asks for one says what to put where"
        if downloads_allowed():
            how = "a run that asks for one downloads it, or says what to put where"
        yield MachineCheck("data sets elsewhere", f"{', '.join(lacking)}: {how}")


def directory_findings() -> Iterator[MachineCheck]:
    """Yield whether runs, states and prepared data can be written."""
    for purpose, locate, stops in (
        ("runs", lambda: Path.cwd() / "runs", True),
        ("SEPAL_HOME", home, False),
        ("cache of data", lambda: cache_directory(data_directory("")), False),
    ):
        yield from _whole(purpose, partial(_directory, purpose, locate, stops), stops)


def _directory(purpose: str, locate: Callable[[], Path], stops: bool) -> Iterator[MachineCheck]:
    path = locate()
    nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists() or ancestor.is_symlink())
    reason = ""
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        reason = f"{nearest} cannot be written: change its rights, or start in another directory"
    elif nearest == path and purpose == "SEPAL_HOME":
        try:
            check_owner(path)
        except SepalError as error:
            reason = str(error)
    yield MachineCheck(purpose, reason or str(path), not reason, stops and bool(reason))


def flower_findings() -> Iterator[MachineCheck]:
    """Yield whether Flower and Ray are there, for deployments and the simulation."""
    try:
        require_supported()
    except SepalError as error:
        yield MachineCheck("Flower", f"{error}: pip install 'flwr>=1.39,<1.43'", False)
    else:
        yield MachineCheck("Flower", f"{version('flwr')} of {RANGE}, speaks {transport()}")
    try:
        yield MachineCheck("Ray", version("ray"))
    except PackageNotFoundError:
        words = "not installed, needed for Flower's simulation alone: pip install 'sepal-fl[simulation]'"
        yield MachineCheck("Ray", words, False)
