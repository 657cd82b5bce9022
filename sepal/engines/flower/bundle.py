"""The Flower app that ``sepal serve`` submits: a generated pyproject.toml without code.

Server and clients run their installed Sepal, and the roster query compares versions. A client refuses a bundle that
does contain code (``flwr run .``), unless its operator allows it (:mod:`sepal.engines.flower.protection`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from sepal import __version__
from sepal.engines.flower.protection import COMPONENTS, OURS
from sepal.protocol.types import Scalar
from sepal.strategies import registry


def write_app(directory: Path, method: str = "") -> list[Path]:
    """Write the app's files to ``directory`` and return them.

    The app declares every run-config key of every registered method and of the run's ``method``: ``flwr run`` refuses
    keys that are not declared.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "pyproject.toml"
    file.write_text(tomli_w.dumps(app_config(registry.defaults(method))), encoding="utf-8")
    return [file]


def app_config(defaults: dict[str, Scalar]) -> dict[str, Any]:
    """Return the content of the app's pyproject.toml."""
    return {
        "project": {
            "name": OURS[1],
            "version": __version__,
            "description": "Sepal, as installed on the server and on each client",
            "license": "Apache-2.0",
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": OURS[0],
                    "components": COMPONENTS,
                    "config": defaults,
                }
            }
        },
    }
