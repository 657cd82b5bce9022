"""What Pa3dFL's server and client share: keys, the model at a client's width, exchanged tensors, states.

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity". The
paper's symbols: θ_u → ``general``; θ_v, biases, norms and the local head → ``personal``; p → ``width``; p_min →
``least``; r → a client's ``capacity``; λ → ``lambda``; γ → ``rate``; M_0, M_1 → the received and the trained model.

Downloads and uploads have the whole general tensors, and the personal tensors in the shapes of the client's width, all
dense. Both sides compute the width from the client's capacity. The global head is that of W_0 and is never sent;
neither are the hypernetwork and the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sepal.config import Mark, NotNegativeOrAuto, Settings, auto, marks
from sepal.layout import Layout
from sepal.method import RunSetup, Weights
from sepal.models.decomposed import Decomposed
from sepal.models.factors import Decomposition, width_for
from sepal.models.weights import load_weights

Array: TypeAlias = npt.NDArray[np.float32]


class Hyper(Settings):
    """Pa3dFL's keys."""

    # Table 3: "w.o. HN-based Agg." is local (section 6.5); position is our addition.
    personal: Literal["hypernetwork", "local", "position"] = Field(
        "hypernetwork", description="personal parameters: generated, kept by each client, or averaged by position"
    )
    decomposition: Literal["channels", "flanc"] = Field("channels", description="Pa3dFL's or FLANC's decomposition")
    # Table 2's smallest reduction ratio is 1/256; the paper takes the least width of its clients.
    least: float = Field(1 / 16, gt=0, le=1, description="p_min = 1/n, smallest width and step between widths")
    # Chosen in the paper: FMNIST ideal .01, hetero .001; CIFAR-100 .001, .01; CIFAR-10 .1.
    lambda_: float = Field(0.001, ge=0, description="λ, weight of the regulariser on general parameters")
    # Chosen in the paper by data set, .001 to 1: .1 for FMNIST ideal and CIFAR-100 hetero. See NOTES.md.
    rate: NotNegativeOrAuto = auto(0.1, "γ, learning rate of the hypernetwork and the embeddings")
    clip: float = Field(1.0, gt=0, description="maximum gradient norm of the hypernetwork")
    # To first order. Above 1 a step overshoots: see NOTES.md.
    absorb: float = Field(1.0, gt=0, description="maximum share of the clients' change that one step absorbs")
    # Chosen in the paper: FMNIST ideal [64, 64, 3].
    embedding: int = Field(64, ge=1, description="size of a client's embedding")
    hidden: int = Field(64, ge=1, description="units per hidden layer of the encoder")
    depth: int = Field(3, ge=1, description="number of linear layers in the encoder")
    decoder_rank: int = Field(0, ge=0, description="units per hidden layer of the decoders; 0: same as hidden")
    most_mib: int = Field(1024, ge=1, description="maximum size of the hypernetwork in MiB; a larger one is refused")
    # The loss or the gradient of the hypernetwork.
    non_finite: Literal["go-on", "end"] = Field(
        "go-on",
        description="non-finite step: skip the round, or end the run",
        json_schema_extra=marks(Mark.FREE_BACK),
    )

    def largest_message(self, setup: RunSetup) -> int:
        """Return the entries that travel at width 1; a small ``least`` makes them several times those of the model."""
        return max(super().largest_message(setup), sum(part.size for part in DecomposedShape(setup, 1.0).shared))


@dataclass(frozen=True)
class State:
    """A hypernetwork as arrays.

    Attributes:
        embeddings: By client, float32 (embedding,): of all that joined, whether they take part or not.
        weights: By name, float32: ``encoder.N.weight`` and ``.bias``, ``log-temperature`` (layers,),
            ``hidden.weight`` (layers, rank, embedding), ``hidden.bias``, and for each personal tensor NAME
            ``decoder.NAME.weight`` (*shape, rank) and ``decoder.NAME.bias`` (*shape).
    """

    embeddings: Weights
    weights: Weights


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        general: Mean of the last round's general tensors, float32 by name.
        hypernetwork: Weights, and embeddings of all clients that joined; empty in the ablations.
        personal: Averaged by position, float32 by name at width 1; empty otherwise.
    """

    general: Weights
    hypernetwork: State
    personal: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state: its model, and its personal tensors in the ablation ``local``.

    Attributes:
        model: The plain model at the client's width, M_0 + α·(M_1 - M_0), float32 by name; empty before training.
        alpha: The chosen α.
        personal: Personal tensors after the last training; empty if the server sends them.
    """

    model: Weights = field(default_factory=dict)
    alpha: float = 0.0
    personal: Weights = field(default_factory=dict)


class DecomposedShape:
    """The decomposed model of a run at one width."""

    def __init__(self, setup: RunSetup, width: float) -> None:
        """Compute the layouts of the decomposed model.

        Args:
            setup: Its model is decomposed.
            width: p.

        Raises:
            ModelError: The model cannot be decomposed.
        """
        self.setup, self.width = setup, width
        layouts = self._around(setup.make())  # on "meta" torch would import its compiler: .9 s in every process
        self.general, self.personal = layouts.general, layouts.personal
        self.shared: Layout = self.general if setup.hyper.personal == "local" else self.general + self.personal

    @classmethod
    def of(cls, setup: RunSetup, capacity: float) -> DecomposedShape:
        """Return the shape of a client's model.

        Raises:
            ModelError: The capacity is below p_min² or above 1, or the model cannot be decomposed.
        """
        return cls(setup, width_for(capacity, setup.hyper.least))

    def module(self) -> Decomposed:
        """Return the model, with heads, biases and norms of W_0; factors are zeros."""
        plain = self.setup.make()
        load_weights(plain, self.setup.weights)
        return self._around(plain)

    @property
    def share(self) -> float:
        """Entries of the model at this width, with both heads, as a share of the plain model's."""
        head = sum(p.size for p in self.personal if p.name.startswith("local_head"))
        size = head + sum(p.size for p in self.general + self.personal)
        return size / sum(p.size for p in self.setup.layout)

    def _around(self, plain: object) -> Decomposed:
        hyper: Hyper = self.setup.hyper
        how = Decomposition(hyper.decomposition)
        return Decomposed(plain, self.setup.input_shape, self.width, least=hyper.least, decomposition=how)  # type: ignore[arg-type]
