"""What an author of a method sees, to be imported in one line.

``from sepal.method import ClientBase, ServerBase, Payload, Plan``. A name's module is imported when the name is first
used: those of clients import torch, those of servers do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sepal.method.client_base import ClientBase as ClientBase
    from sepal.method.interface import Compression as Compression
    from sepal.method.interface import Method as Method
    from sepal.method.interface import RunSetup as RunSetup
    from sepal.method.means import sparse_mean as sparse_mean
    from sepal.method.means import weighted_mean as weighted_mean
    from sepal.method.server_base import ServerBase as ServerBase
    from sepal.method.tensors import dense as dense
    from sepal.method.tensors import dense_schema as dense_schema
    from sepal.protocol.types import ClientInfo as ClientInfo
    from sepal.protocol.types import Metrics as Metrics
    from sepal.protocol.types import Payload as Payload
    from sepal.protocol.types import Plan as Plan
    from sepal.protocol.types import Predictor as Predictor
    from sepal.protocol.types import Schema as Schema
    from sepal.protocol.types import Upload as Upload
    from sepal.protocol.types import Uploads as Uploads
    from sepal.protocol.types import Weights as Weights
    from sepal.training.hooks import Hooks as Hooks
    from sepal.training.trainer import Trainer as Trainer

_MODULES = {
    "sepal.method.client_base": ("ClientBase",),
    "sepal.method.interface": ("Compression", "Method", "RunSetup"),
    "sepal.method.means": ("sparse_mean", "weighted_mean"),
    "sepal.method.server_base": ("ServerBase",),
    "sepal.method.tensors": ("dense", "dense_schema"),
    "sepal.protocol.types": (
        "ClientInfo",
        "Metrics",
        "Payload",
        "Plan",
        "Predictor",
        "Schema",
        "Upload",
        "Uploads",
        "Weights",
    ),
    "sepal.training.hooks": ("Hooks",),
    "sepal.training.trainer": ("Trainer",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sepal.method' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
