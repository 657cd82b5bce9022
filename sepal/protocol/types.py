"""What server and client algorithms take and return: payloads and their schemas, plans, clients, uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from sepal.storage.serialize import SPARING
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec

if TYPE_CHECKING:
    import torch


Scalar: TypeAlias = int | float | str | bool
Weights: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
Metrics: TypeAlias = Mapping[str, float]
Predictor: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
SpecLike: TypeAlias = TensorSpec | Callable[[Mapping[str, SparseTensor]], TensorSpec]


class Kind(StrEnum):
    """What a message is about; the last three are the steps of a secure sum (docs/secure-sums.md)."""

    QUERY = "query"  # send the roster entry
    TRAIN = "train"  # train, store the new state, send an upload
    ADAPT = "adapt"  # train and evaluate; no upload, and the new state is stored only if the order says so
    SHARE = "share"  # deal shares of the round's secrets to the other clients
    MASK = "mask"  # send the masked update
    UNMASK = "unmask"  # send a share of each client's secret


STEPS = (Kind.SHARE, Kind.MASK, Kind.UNMASK)


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows about a client: its roster entry.

    Attributes:
        name: The client's name; unlike Flower's node id, it never changes.
        examples: n_i, number of training examples.
        capacity: Share of the full model that the client can hold, in (0, 1].
        device: Kind of the device on which it trains: ``cpu``, ``cuda``, …; without a number.
        data: Digest of its data, the same in all of a run; empty if it reports none.
    """

    name: str
    examples: int
    capacity: float = 1.0
    device: str = "cpu"
    data: str = ""


@dataclass(frozen=True)
class Payload:
    """The content of one message: tensors, and scalars such as a rate or a flag."""

    tensors: Tensors = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """What a receiver accepts.

    Attributes:
        tensors: Name to spec, in the order of the payload. A spec may be a function of the tensors decoded before it,
            for example if a mask in the same payload determines another tensor's support.
        scalars: Name to (type, minimum, maximum); both bounds are None for str and bool.
    """

    tensors: Mapping[str, SpecLike] = field(default_factory=dict)
    scalars: Mapping[str, tuple[type, float | None, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What happens in one round. Server and clients both receive it, so shapes and schedules may depend on it.

    Attributes:
        round: From 1; the closing round is the last training round plus 1.
        phase: The method's own name of the round's phase.
        who: ``sampled`` (the run's sampling decides), ``all`` (the whole roster) or ``none`` (no message is sent, and
            ``aggregate`` gets no upload).
        scalars: Numbers that every participant needs, such as a rate or a flag.
        novel: Whether the receiving client is a novel one, which never trained and joins in the closing round.
        halvings: How often clients' learning rates are halved; above 0 where a round is repeated because clients
            diverged (:mod:`sepal.server.recovery`).
        clip: The largest norm of an update, with ``privacy.mode = "central"``; else 0.
    """

    round: int
    phase: str = ""
    who: Literal["sampled", "all", "none"] = "sampled"
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    novel: bool = False
    halvings: int = field(default=0, metadata=SPARING)
    clip: float = field(default=0.0, metadata=SPARING)


@dataclass(frozen=True)
class Upload:
    """One accepted upload and the client that sent it."""

    client: ClientInfo
    payload: Payload


@runtime_checkable
class Uploads(Protocol):
    """A round's accepted uploads in the order of client names, decoded one at a time; may be iterated repeatedly."""

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """The clients that uploaded, sorted by name; does not decode any upload."""
        ...

    def __iter__(self) -> Iterator[Upload]: ...

    def __len__(self) -> int: ...
