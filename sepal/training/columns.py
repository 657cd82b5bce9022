"""Inputs and targets of a client's part, as tensors in memory or read from a Dataset when they are needed.

The training loop and methods handle a part as two columns, x and y. In memory, a column is a tensor (n, …). Of a
Dataset it is a :class:`StreamColumn`, which has a length, and becomes a tensor where it is indexed; :func:`split` and
:func:`read_batches` read both columns of a batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from sepal.data.examples import Examples
from sepal.data.streams import Stream

BATCH = 512  # batch size where it only affects memory


@dataclass(frozen=True, eq=False)
class StreamColumn:
    """The inputs or the targets of a Dataset.

    Attributes:
        stream: The Dataset.
        which: ``x`` or ``y``.
        device: Where its tensors are put.
    """

    stream: Stream
    which: Literal["x", "y"]
    device: str

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, key: slice | torch.Tensor) -> torch.Tensor:
        """Return the examples of a slice, or at places int64 (m,), as a tensor (m, …)."""
        places = np.arange(len(self))[key] if isinstance(key, slice) else key.cpu().numpy()
        parts = [places[start : start + BATCH] for start in range(0, len(places), BATCH)] or [places]
        return torch.cat([tensors(part, self.device)[self.which == "y"] for part in self.stream.read(parts)])


Part = torch.Tensor | StreamColumn
Batch = tuple[torch.Tensor, torch.Tensor]


def tensors(examples: Examples, device: str) -> Batch:
    """Return inputs and targets, int64 or float32, as tensors on ``device``; memory maps are read into memory."""
    x = torch.from_numpy(np.array(examples.x))
    kind = np.float32 if examples.y.dtype.kind == "f" else np.int64
    return x.to(device), torch.from_numpy(np.array(examples.y, kind)).to(device)


def columns(part: Examples | Stream, device: str) -> tuple[Part, Part]:
    """Return the two columns of a part."""
    if isinstance(part, Stream):
        return StreamColumn(part, "x", device), StreamColumn(part, "y", device)
    return tensors(part, device)


def split(x: Part, y: Part, size: int = BATCH) -> Iterator[Batch]:
    """Yield all examples in order, in batches of ``size`` and a rest."""
    if isinstance(x, StreamColumn) or isinstance(y, StreamColumn):
        places = torch.arange(len(y))
        yield from read_batches(x, y, torch.split(places, size) if len(places) else ())
    else:
        yield from zip(torch.split(x, size), torch.split(y, size), strict=True)


def read_batches(x: Part, y: Part, batches: Sequence[torch.Tensor]) -> Iterator[Batch]:
    """Yield the batches whose places, int64 (m,), are given. The two columns may be of different parts."""
    if not batches:
        return
    if not isinstance(x, StreamColumn) and not isinstance(
        y, StreamColumn
    ):  # once for all batches: a device copies them faster
        order, sizes = torch.cat(list(batches)).to(x.device), [len(places) for places in batches]
        yield from zip(torch.split(x[order], sizes), torch.split(y[order], sizes), strict=True)
        return
    if not isinstance(x, StreamColumn):
        for places in batches:
            yield x[places], y[places]
        return
    read = x.stream.read([places.cpu().numpy() for places in batches])
    for places, examples in zip(batches, read, strict=True):
        inputs, targets = tensors(examples, x.device)
        yield inputs, targets if isinstance(y, StreamColumn) else y[places.to(y.device)]


def equal_parts(x: Part, count: int) -> Iterator[torch.Tensor]:
    """Yield inputs in order, in ``count`` batches whose sizes differ by at most one."""
    if not isinstance(x, StreamColumn):
        yield from torch.tensor_split(x, count)
        return
    for places in torch.tensor_split(torch.arange(len(x)), count):
        yield x[places]
