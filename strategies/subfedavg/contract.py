"""What Sub-FedAvg's server and client share: keys and states. What can be pruned, and the messages: ``parts``.

Vahidian, Morafah, Lin: "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021. Paper's symbols: m_k → ``kept``; r_us, r_s → ``step``; p_us, p_s → ``target``,
``channel-target``; ε → ``distance``, ``channel-distance``; Acc_th → ``accuracy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from sepal.config import Settings
from sepal.masks.packed import Packed
from sepal.method import Weights


class Hyper(Settings):
    """Sub-FedAvg's keys."""

    variant: Literal["un", "hy"] = Field("un", description="un: prune weights; hy: convolution channels and weights")
    # Table 1: .3, .5, .7 (Un); .5, .7, .9 (Hy).
    target: float = Field(0.5, ge=0, lt=1, description="share of each layer's weights to prune; hy: linear layers only")
    # Table 1: 35 to 50 % of the filters at every target; section 4.2.3: 50 %.
    channel_target: float = Field(0.5, ge=0, lt=1, description="hy: share of all convolution channels to prune")
    # Section 4.2.1: 5 to 10 % per iteration; the authors' code takes 10 % of what is left.
    step: float = Field(0.1, gt=0, lt=1, description="share of the remaining entries that one step prunes")
    step_by: Literal["count", "percentile"] = Field(
        "count",
        description="weights of a step: count: their share, rounded; percentile: those below that percentile of the "
        "sizes that are left (the authors' code), one more of 13 at 10 %",
    )
    channel_cut: Literal["steps", "at-once"] = Field(
        "steps",
        description="hy: cut channels by step, ranked over all convolutions; at-once: 45 % of each convolution's when "
        "the gate opens, down to the target in each (the authors' code)",
    )
    accuracy: float = Field(
        0.5,
        ge=0,
        le=1,
        description="minimum validation accuracy for a client to prune; of another task macro-f1 (multilabel), "
        "r2 (regression), dice (segmentation), accuracy (tokens)",
    )
    accuracy_of: Literal["before", "after"] = Field(
        "before", description="whose accuracy that is: the model's before the step, or after it (the authors' code)"
    )
    # Section 4.1.
    distance: float = Field(1e-4, ge=0, le=1, description="least distance between first and last epochs' weight masks")
    channel_distance: float = Field(0.05, ge=0, le=1, description="hy: the same for the channel masks")


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        weights: θ_g, dense, float32 by name.
        kept: The masks of each client with an accepted upload, by name and part, without parts in which nothing is
            pruned.
        cost: Bytes up to now by the paper's formula.
    """

    weights: Weights
    kept: Mapping[str, Packed] = field(default_factory=dict)
    cost: float = 0.0


@dataclass(frozen=True)
class ClientState:
    """A client's state.

    Attributes:
        kept: m_k, by part, without the parts in which nothing is pruned.
        model: θ_k after the last training, float32 (nnz,) by name at the masks; empty before.
    """

    kept: Packed = field(default_factory=dict)
    model: Weights = field(default_factory=dict)
