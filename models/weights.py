"""A model's weights as NumPy arrays by name: layout, initial values, reading and loading.

The names and their order are those of ``state_dict``. Tensors that are not floating point (``num_batches_tracked``
and the like) are counters, not weights: they are left out everywhere and keep the value the model holds. So do frozen
parameters of a user's model, and tensors that share another one's storage (:mod:`sepal.modules`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.layout import Layout, Parameter, Role
from sepal.models.lora import LoRA
from sepal.modules import floating
from sepal.rng import derive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Weights: TypeAlias = dict[str, NDArray[np.float32]]

_BY_FAN_IN = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_DRAWN = (*_BY_FAN_IN, *_EMBEDDINGS, *_NORMS, nn.RNNBase, LoRA)


def layout(module: nn.Module) -> Layout:
    """Return the model's tensors in ``state_dict`` order, with shape and role.

    Buffers are statistics, in any module. Weights, which methods prune, are matrices of torch's own layers, and in
    other modules tensors of two or more axes that are called so (``weight``, ``weight_ih``, ``w``). All else is a bias,
    such as learned positions and class tokens.
    """
    return tuple(
        Parameter(name, tuple(tensor.shape), _role(*_owner(module, name), tensor))
        for name, tensor in floating(module).items()
    )


def initial_weights(module: nn.Module, seed: int) -> Weights:
    """Return initial weights drawn by NumPy, each tensor from its own generator (seed, "init", name).

    The distributions are PyTorch's defaults: U(±1/√fan-in) for weight and bias of linear and convolution layers,
    U(±1/√hidden) for recurrent ones, N(0, 1) for embeddings (0 in the padding row), 1 and 0 for norms. Buffers, and
    parameters of modules that are not torch's own layers, keep the value that ``build`` gave them.

    Args:
        module: The model; it is only read.
        seed: The run's seed.

    Returns:
        float32 arrays by name, in the order of ``layout``.
    """
    return {name: _initial(module, name, tensor, seed) for name, tensor in floating(module).items()}


def as_built(module: nn.Module) -> dict[str, float | None]:
    """Return the names of the tensors that :func:`initial_weights` takes from the module, as ``build`` left them.

    With each is the constant that torch itself fills it with, such as 1 for a running variance. It is None in modules
    that are not torch's.
    """
    constants: dict[str, float | None] = {}
    for name in floating(module):
        owner, leaf = _owner(module, name)
        if _kept(owner, leaf):
            constant = 1.0 if leaf == "running_var" else 0.25 if isinstance(owner, nn.PReLU) else 0.0
            constants[name] = constant if type(owner).__module__.startswith("torch.nn.") else None
    return constants


def views(module: nn.Module) -> Weights:
    """Return the model's weights as :func:`read_weights`, without a copy where they are float32 on the CPU."""
    return {name: _array(tensor) for name, tensor in floating(module).items()}


def read_weights(module: nn.Module) -> Weights:
    """Return copies of the model's weights as float32 arrays by name, in the order of ``layout``."""
    return {name: _array(tensor).copy() for name, tensor in floating(module).items()}


def load_weights(module: nn.Module, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Copy ``weights`` into the model, in place, on whatever device it is on.

    Raises:
        ModelError: A name is missing or unknown, or a shape differs; the model is then unchanged.
    """
    tensors = floating(module)
    for name in [
        *(name for name in tensors if name not in weights),
        *(name for name in weights if name not in tensors),
    ]:
        problem = "missing" if name in tensors else "unknown to the model"
        raise ModelError("weights", "exactly the model's tensors", f"{name} {problem}")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != np.shape(weights[name]):
            raise ModelError(f"weights {name}", f"shape {tuple(tensor.shape)}", f"shape {np.shape(weights[name])}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.tensor(np.asarray(weights[name])))


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).numpy()
    return array


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds the tensor ``name``, and the tensor's name within it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _role(owner: nn.Module, leaf: str, tensor: torch.Tensor) -> Role:
    if leaf in owner._buffers:
        return Role.STATISTIC
    if isinstance(owner, _NORMS):
        return Role.NORM
    called = (
        "weight" in leaf
        or leaf.lower() == "w"
        or isinstance(owner, LoRA)
        or type(owner).__module__.startswith("torch.nn.")
    )
    return Role.WEIGHT if tensor.ndim >= 2 and "bias" not in leaf and called else Role.BIAS


def _kept(owner: nn.Module, leaf: str) -> bool:
    return leaf in owner._buffers or not isinstance(owner, _DRAWN)


def _initial(module: nn.Module, name: str, tensor: torch.Tensor, seed: int) -> NDArray[np.float32]:
    owner, leaf = _owner(module, name)
    rng = derive(seed, "init", name)
    shape = tuple(tensor.shape)
    if _kept(owner, leaf):
        return _array(tensor).copy()
    if isinstance(owner, _BY_FAN_IN):
        bound = 1 / math.sqrt(math.prod(owner.weight.shape[1:]))
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    if isinstance(owner, LoRA):
        bound = 1 / math.sqrt(shape[1]) if leaf == "lora_A" else 0.0
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    if isinstance(owner, nn.RNNBase):
        bound = 1 / math.sqrt(owner.hidden_size)
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    if isinstance(owner, _EMBEDDINGS):
        rows = rng.standard_normal(shape).astype(np.float32)
        if owner.padding_idx is not None:
            rows[owner.padding_idx] = 0
        return rows
    return np.full(shape, 1 if leaf == "weight" else 0, np.float32)  # a norm
