"""A pretended CUDA graph for machines without one: it keeps a step's operations and repeats them on the same tensors.

As on CUDA, a replay runs no Python: what the step decided when it was recorded is decided for good, and a value that
the host would wait for is refused. Unlike CUDA, recording a step also makes it.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

WARM_UP = 3
WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten._unique2", "aten.equal")


class _Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith(WAITS):
            raise RuntimeError(f"{func} is not permitted when a stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class Tape:
    """A recorder (:class:`sepal.training.programs.Programs`).

    Attributes:
        recorded: Number of steps that were recorded.
        replayed: Number of replays.
    """

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, step):
        """Return what repeats the operations of ``step``."""
        for _ in range(WARM_UP):
            step()
        with _Recording() as recording:
            step()
        self.recorded += 1

        def replay():
            self.replayed += 1
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                for func, args, kwargs, out in recording.calls:
                    for old, new in zip(tree_flatten(out)[0], tree_flatten(func(*args, **kwargs))[0], strict=True):
                        if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                            old.copy_(new)

        return replay
