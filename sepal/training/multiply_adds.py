"""Counts the multiply-adds of a training step, forward and backward, by layer.

The formulas of ``torch.utils.flop_counter`` count two operations per multiply-add, so they are halved. Matrix products
and convolutions are counted, masked entries included. Biases, norms, activations, pooling, embeddings, the loss, the
optimizer's step and evaluation are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.module_tracker import ModuleTracker

from sepal.modules import undisturbed
from sepal.seeding import generators_seeded

WHOLE = "Global"  # the tracker's name for everything
AS_THEY_ARE = frozenset({torch.ops.prim.device.default})  # cannot be taken apart
REST = ""  # the key of operations without a layer's weight, such as attention
Trained = frozenset[str]  # names of parameters that require gradients
_KNOWN: WeakKeyDictionary[nn.Module, dict[Trained, Mapping[str, int]]] = WeakKeyDictionary()


def multiply_adds(module: nn.Module, example: torch.Tensor) -> Mapping[str, int]:
    """Return the multiply-adds of one example's forward and backward pass, by name of weight.

    The result is cached by module and by the set of parameters that require gradients, because a frozen layer has no
    backward pass.

    Args:
        module: The module; its mode and gradients are not changed.
        example: One example, (1, …), on the module's device.
    """
    counts = _KNOWN.setdefault(module, {})
    trained = frozenset(name for name, parameter in module.named_parameters() if parameter.requires_grad)
    if trained not in counts:
        with undisturbed(module), generators_seeded(0):
            counts[trained] = MappingProxyType(_count(module, example))
    return counts[trained]


def _count(module: nn.Module, example: torch.Tensor) -> dict[str, int]:
    mode, gradients = module.training, [parameter.grad for parameter in module.parameters()]
    module.zero_grad(set_to_none=True)  # backward would add to gradients that a method still reads
    module.eval()  # one example is too few for statistics of a batch
    with torch.enable_grad(), _unfused(), ModuleTracker() as tracker, _Operations(tracker) as operations:
        output = module(example).sum()
        if output.requires_grad:
            output.backward()
    module.train(mode)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        parameter.grad = gradient
    root, flops = type(module).__name__, operations.flops
    counts = {}
    for name, layer in module.named_modules():
        if "weight" in dict(layer.named_parameters(recurse=False)) and not list(layer.children()):
            counts[f"{name}.weight".lstrip(".")] = flops[f"{root}.{name}".rstrip(".")] // 2
    return {**counts, REST: flops[WHOLE] // 2 - sum(counts.values())}


@contextmanager
def _unfused() -> Iterator[None]:
    """Have an LSTM computed by matrix products: as one operation of oneDNN or cuDNN it has no formula, and counts 0."""
    backends: tuple[Any, Any] = torch.backends.mkldnn, torch.backends.cudnn
    before = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, enabled in zip(backends, before, strict=True):
            backend.enabled = enabled


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by module, as ``FlopCounterMode`` does, without its import of the compiler (.9 s a process)."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: Counter[str] = Counter()
        self._tracker = tracker

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None and func not in AS_THEY_ARE:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if count is not None:
            flops = count(*args, **kwargs, out_val=out)
            for parent in set(self._tracker.parents):
                self.flops[parent] += flops
        return out


def costs(module: nn.Module, example: torch.Tensor, density: Mapping[str, float]) -> float:
    """Return one example's multiply-adds; each weight's count is multiplied by its ``density`` (default 1)."""
    return float(sum(count * density.get(name, 1.0) for name, count in multiply_adds(module, example).items()))
