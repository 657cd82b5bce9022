"""Where run directories are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sepal.config import RunConfig, method_name
from sepal.storage.home import home
from sepal.storage.regular import expanded

IN_PROCESS = "in-process"


def default_base(engine: str) -> Path:
    """Return the directory that a relative ``out`` is relative to.

    In process, it is the working directory. Flower runs an app from a temporary directory, so with Flower it is
    :func:`sepal.storage.home.home`.
    """
    if engine == IN_PROCESS:
        return Path.cwd()
    return home()


def named_path(flat: Mapping[str, Any], base: Path) -> Path | None:
    """Return the directory of the run that flat keys name; None if they name none.

    Args:
        flat: Flat run-config keys, not checked yet.
        base: The directory that a relative ``out`` is relative to.
    """
    name, out = flat.get("name"), flat.get("out", RunConfig.model_fields["out"].default)
    if not isinstance(name, str) or not isinstance(out, str) or not name.strip("."):
        return None
    return base / expanded("out", out) / name


def run_path(config: RunConfig, base: Path, now: datetime | None = None) -> Path:
    """Return the run's directory, ``out``/``name``. Without a name, one is generated.

    Args:
        config: The run's configuration.
        base: The directory that a relative ``out`` is relative to.
        now: Time for a generated name, ``METHOD-DATASET-YYYYmmdd-HHMMSS``; by default the local time.
    """
    directory = base / expanded("out", config.out)
    if config.name:
        return directory / config.name
    stem = f"{method_name(config.method)}-{config.dataset}-{now or datetime.now():%Y%m%d-%H%M%S}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, 10_000))
    return next(directory / name for name in names if not os.path.exists(directory / name))
