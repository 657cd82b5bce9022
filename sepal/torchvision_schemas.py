"""Lets torchvision be imported where its wheel does not fit torch's build.

torchvision's common wheel cannot load its compiled operators with a CPU-only torch; ``import torchvision`` then fails
at the first fake kernel it registers. Only on that error are the missing schemas declared; data sets, transforms and
models work without the operators behind them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a torch.library.Library takes its schemas with it when it is collected


def imported(module: str) -> ModuleType:
    """Import ``module``; where it imports a torchvision that does not fit torch, declare the schemas and try again."""
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
