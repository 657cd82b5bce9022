"""FLANC: weights composed of a basis that all clients share, and coefficients for each width.

Mei, Guo, Zhou, Patel, "Resource-Adaptive Federated Learning with All-In-One Neural Composition", NeurIPS 2022, and the
authors' code. Each layer's weight is a product of a basis θ_u and coefficients θ_v
(:class:`sepal.models.factors.DecomposedLayer`, equation 3 of Pa3dFL). The basis has the same shape at every width and
is averaged over all clients with equal weights. Coefficients, biases, norms and the head belong to a width: they are
averaged over the clients of that width, and do not change in a round without such clients. The loss includes
λ·Σ_layers mean((θ_uᵀθ_u - I)²), which keeps the basis near orthogonal. A deployed client predicts with the server's
tensors of its width, which is *received*; *kept* are those after its last local epochs.

Deviations:

* All layers but the head are composed; the authors keep the first convolution plain, too. Models consist of
  convolutions, linear layers and ``GroupNorm``.
* The bases have the sizes given in Pa3dFL's paper (R1, R2 of :mod:`sepal.models.decomposed`); initial bases are normal
  and not orthogonal, and the coefficients of all widths start as prefixes of one draw.
* The last hidden layer's outputs are whole at every width, as in our Pa3dFL.
* A client's width follows from its capacity and is fixed; the authors draw one for each client and round.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn

from sepal.config import Mark, marks
from sepal.layout import Layout
from sepal.method import Hooks, Plan, RunSetup, Upload, Weights
from sepal.models.decomposed import Decomposed, cut, initial_weights
from sepal.models.factors import LEAST, DecomposedLayer, Decomposition
from sepal.models.weights import load_weights
from sepal.strategies.baselines.widths import Place, WidthClient, WidthServer, WidthSettings, numbers
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective


class Hyper(WidthSettings):
    """FLANC's keys."""

    # The paper's fractions. Each must be a multiple of 1/16.
    widths: str = Field(
        "0.25,0.5,0.75,1",
        description="model widths; each client gets the largest with width² ≤ capacity",
        json_schema_extra=marks(Mark.WORDS),
    )
    # The middle of the grid of Pa3dFL's authors (.01, .1, 1; they chose .01 or 1 by setting); our choice, not searched.
    lambda_: float = Field(0.1, ge=0, description="λ, weight of the orthogonality regulariser on the bases")

    def largest_message(self, setup: RunSetup) -> int:
        """Return the entries of the factors at width 1, which can be several times those of the model."""
        sent = sum(parameter.numel() for parameter in Composed(setup, 1.0).parameters())
        return max(super().largest_message(setup), sent)


class Composed(Decomposed):
    """A decomposed model with one head, which is trained like the rest."""

    def __init__(self, setup: RunSetup, width: float) -> None:
        """Build the model around W_0, whose head, biases and norms it starts with; its factors are zeros."""
        plain = setup.make()
        load_weights(plain, setup.weights)
        super().__init__(plain, setup.input_shape, width, least=LEAST, decomposition=Decomposition.FLANC)
        del self.global_head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch to logits, float32 (batch, classes)."""
        logits: torch.Tensor = self.local_head(self.features(x))
        return logits

    def distance(self) -> torch.Tensor:
        """Return Σ over layers of the mean squared entry of θ_uᵀθ_u - I, a scalar."""
        bases = [layer.theta_u for layer in self.modules() if isinstance(layer, DecomposedLayer)]
        grams = [basis.T @ basis - torch.eye(basis.shape[1], device=basis.device) for basis in bases]
        return torch.stack([gram.square().mean() for gram in grams]).sum()


class Levels:
    """What server and client share. The server's tensors: each basis, and ``WIDTH/NAME`` for each other tensor."""

    setup: RunSetup

    @cached_property
    def layouts(self) -> dict[float, Layout]:
        """The tensors of a model by width."""
        modules = {width: self.module(width) for width in {*numbers(self.setup.hyper.widths), 1.0}}
        return {width: (*module.general, *module.personal) for width, module in modules.items()}

    def check(self) -> None:
        """Refuse a model or a width that cannot be composed.

        Raises:
            ModelError: Layers of other kinds, or a width that does not fit.
        """
        self.client_layout(1.0, 1)

    def module(self, width: float) -> Composed:
        """Return a new module of ``width``."""
        return Composed(self.setup, width)

    def client_layout(self, width: float, round: int) -> Layout:
        """Return the tensors that a client of ``width`` holds."""
        return self.layouts[width]

    def first(self) -> Weights:
        """Return bases and the coefficients of all widths."""
        whole, weights = initial_weights(self.module(1.0), self.setup.config.seed), dict[str, npt.NDArray[np.float32]]()
        for width in numbers(self.setup.hyper.widths):
            narrow = cut(whole, self.client_layout(width, 1))
            weights |= {server: narrow[name] for name, (server, _) in self.places(width, 1).items()}
        return weights

    def places(self, width: float, round: int) -> dict[str, tuple[str, Place]]:
        """Return the server's name of each tensor of a client of ``width``; it is stored there whole."""
        names = [p.name for p in self.client_layout(width, round)]
        return {name: (name if name.endswith("theta_u") else f"{width:g}/{name}", ()) for name in names}

    def client_weights(self, weights: Weights, width: float, round: int) -> Weights:
        """Return bases and the coefficients of one width."""
        return {name: weights[server] for name, (server, _) in self.places(width, round).items()}


class FlancServer(Levels, WidthServer):
    """Averages bases over all clients, everything else by width."""

    uses_capacity = True

    def weigh(self, upload: Upload) -> float:
        """Return 1: all clients have equal weight."""
        return 1


@dataclass(frozen=True)
class OrthogonalBases(Capturable):
    """The loss plus λ times the bases' distance from orthogonal ones."""

    objective: Objective
    strength: float

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        pull: torch.Tensor = self.strength * typing.cast("Composed", module).distance()
        return self.objective(module(x), y) + pull


class FlancClient(Levels, WidthClient):
    """Trains basis and coefficients together."""

    def hooks(self, received: Weights, plan: Plan) -> Hooks:
        """Return the loss with the regulariser towards orthogonal bases."""
        return Hooks(OrthogonalBases(self.trainer.loss, self.hyper.lambda_))


Flanc = register(
    "flanc",
    "Weights composed of a shared basis and coefficients for each width",
    "Mei et al., NeurIPS 2022",
    FlancServer,
    FlancClient,
    Hyper,
    deployed="received",
    starts_from="factors of its own",
)
