"""What an author of a method sees, to be imported in one line.

``from sepal.method import ClientBase, ServerBase, Payload, Plan``; ``register`` alone stands above, in
``sepal.strategies.registration``. A name's module is imported when the name is first used: those of clients import
torch, those of servers do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sepal.config import Settings as Settings
    from sepal.errors import ConfigError as ConfigError
    from sepal.layout import Layout as Layout
    from sepal.layout import Role as Role
    from sepal.layout import layers as layers
    from sepal.layout import statistics as statistics
    from sepal.layout import trained as trained
    from sepal.masks.flat import Flat as Flat
    from sepal.masks.selection import count as count
    from sepal.masks.selection import largest as largest
    from sepal.masks.selection import top_k as top_k
    from sepal.method.client_base import ClientBase as ClientBase
    from sepal.method.interface import Compression as Compression
    from sepal.method.interface import Method as Method
    from sepal.method.interface import RunSetup as RunSetup
    from sepal.method.means import mean_of_holders as mean_of_holders
    from sepal.method.means import sparse_mean as sparse_mean
    from sepal.method.means import weighted_mean as weighted_mean
    from sepal.method.server_base import ServerBase as ServerBase
    from sepal.method.tensors import at_masks as at_masks
    from sepal.method.tensors import at_masks_specs as at_masks_specs
    from sepal.method.tensors import dense as dense
    from sepal.method.tensors import dense_schema as dense_schema
    from sepal.method.tensors import dense_specs as dense_specs
    from sepal.protocol.types import ClientInfo as ClientInfo
    from sepal.protocol.types import Metrics as Metrics
    from sepal.protocol.types import Payload as Payload
    from sepal.protocol.types import Plan as Plan
    from sepal.protocol.types import Predictor as Predictor
    from sepal.protocol.types import Schema as Schema
    from sepal.protocol.types import Upload as Upload
    from sepal.protocol.types import Uploads as Uploads
    from sepal.protocol.types import Weights as Weights
    from sepal.rng import derive as derive
    from sepal.training.hooks import Hooks as Hooks
    from sepal.training.hooks import frozen as frozen
    from sepal.training.hooks import proximal as proximal
    from sepal.training.trainer import Trainer as Trainer
    from sepal.wire import rounded as rounded
    from sepal.wire.tensors import SparseTensor as SparseTensor
    from sepal.wire.tensors import TensorSpec as TensorSpec
    from sepal.wire.tensors import ValueCoding as ValueCoding

_MODULES = {
    "sepal.config": ("Settings",),
    "sepal.errors": ("ConfigError",),
    "sepal.layout": ("Layout", "Role", "layers", "statistics", "trained"),
    "sepal.masks.flat": ("Flat",),
    "sepal.masks.selection": ("count", "largest", "top_k"),
    "sepal.method.client_base": ("ClientBase",),
    "sepal.method.interface": ("Compression", "Method", "RunSetup"),
    "sepal.method.means": ("mean_of_holders", "sparse_mean", "weighted_mean"),
    "sepal.method.server_base": ("ServerBase",),
    "sepal.method.tensors": ("at_masks", "at_masks_specs", "dense", "dense_schema", "dense_specs"),
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
    "sepal.rng": ("derive",),
    "sepal.training.hooks": ("Hooks", "frozen", "proximal"),
    "sepal.training.trainer": ("Trainer",),
    "sepal.wire": ("rounded",),
    "sepal.wire.tensors": ("SparseTensor", "TensorSpec", "ValueCoding"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sepal.method' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
