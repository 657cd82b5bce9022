"""What DM-PFL's server and client share: keys, phases, budgets and initial masks, schemas, states.

Zhang, Zhou, Wang, Tong: "DM-PFL: Hitchhiking Generic Federated Learning for Efficient Shift-Robust Personalization",
KDD 2023. Paper's symbols: S, the sparsity → ``keep`` = 1 - S; α → ``prune``; m_c, w_c → a client's ``mask``,
``personal``; m_g, w_g → ``global_mask``, ``weights`` (server) and ``shared`` (a client's copy of m_g ⊙ w_g); θ_c, θ_g →
the personal and the global model; C_t → the clients whose uploads of a round were accepted.

Layer weights are masked; biases, norms and statistics are always kept. A masked tensor is sent as values at its
support. A download includes the support only if the client has an older m_g, and is empty if the client has the current
w_g. The support of an upload is m_g (2a), or m_c as the server knows it; it is only sent in rounds that readjust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator

from sepal.config import Mark, Settings, ShareOrAuto, auto, marks
from sepal.layout import Layout, Role
from sepal.masks.budgets import erk, uniform
from sepal.masks.packed import Masks, Packed, pack
from sepal.masks.selection import largest, random_subset
from sepal.method import RunSetup, Schema, Weights
from sepal.method.tensors import at_masks_specs
from sepal.rng import derive

Phase: TypeAlias = Literal["1", "2a", "2b"]
PHASES: tuple[Phase, ...] = ("1", "2a", "2b")


class Hyper(Settings):
    """DM-PFL's keys."""

    # A.1.4: sparsity .5; Figure 5 varies it from .3 to .8.
    keep: float = Field(0.5, gt=0, le=1, description="1 - S, fraction of weights in each mask; 1: no mask")
    # The paper claims ERK; its FLOPs in Table 4 do not fit that (NOTES.md).
    budget: Literal["uniform", "erk"] = Field("uniform", description="how the kept weights are distributed over layers")
    dense_first: bool = Field(False, description="keep the first layer dense (uniform: on top of keep; erk: within it)")
    # Unpublished; our choice.
    initial_mask: Literal["common", "own"] = Field("common", description="initial personal masks: one for all, or own")
    # Unpublished, too. The largest |W_0| is as a dense model prunes.
    mask_by: Literal["random", "magnitude"] = Field(
        "random", description="initial masks: drawn, or where W_0 is largest in size, the same for all clients"
    )
    # Unpublished; RigL's and FedDST's schedule from .5.
    alpha: ShareOrAuto = auto(0.5, "initial fraction of a mask to readjust, cosine to 0; 0: fixed")
    # FedDST's interval by A.1.4; DM-PFL's own is unpublished.
    readjust_every: int = Field(10, ge=0, description="phase-1 rounds between readjustments; 0: never")
    # Section 3.3.2: "ignore positions selected by no more than 30% clients".
    agreement: float = Field(0.3, ge=0, lt=1, description="global positions: held by more than this share of clients")
    # Figure 5 (e), (f), A.1.2: 300 rounds "divided equally into each phase"; 2a and 2b divide phase 2 equally.
    schedule: str = Field(
        "1:2,2a:1,2b:1",
        description="phases of an iteration as PHASE:SHARE,…; PHASE is 1, 2a or 2b",
        json_schema_extra=marks(Mark.WORDS),
    )
    iterations: int = Field(2, ge=1, description="number of times the schedule repeats within rounds")
    adaptive_inference: bool = Field(False, description="DM-PFL+: choose θ_c or θ_g for each example (Algorithm 4)")

    @field_validator("schedule")
    @classmethod
    def _well_formed(cls, text: str) -> str:
        parse_schedule(text)
        return text


@dataclass(frozen=True)
class ClientHolds:
    """What a client has, as of its last accepted upload.

    Attributes:
        global_mask: Version of m_g.
        weights: Version of m_g ⊙ w_g; 0 is W_0 at the first m_g, which both sides derive.
        mask: m_c; empty for the initial mask, which both sides derive.
    """

    global_mask: int = 0
    weights: int = 0
    mask: Packed = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """The server's state. A version is the number of the round in which something last changed; 0 is the start.

    Attributes:
        weights: w_g, dense, float32 by name: eq. 5 keeps the values that no mask covers.
        global_mask: m_g.
        weights_version: Version of w_g.
        mask_version: Version of m_g.
        held: Client name to what the client has; a client without an entry has the initial masks and weights.
    """

    weights: Weights
    global_mask: Packed
    weights_version: int = 0
    mask_version: int = 0
    held: Mapping[str, ClientHolds] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """A client's state; values are float32 (nnz,) by name, in the order of their mask.

    Attributes:
        mask: m_c.
        personal: w_c at m_c.
        global_mask: m_g as last received; initially the common first mask.
        shared: w_g at m_g as last received; initially W_0.
        mask_version: Version of ``global_mask``.
        weights_version: Version of ``shared``.
        trained: Whether w_c was ever trained; before, the client predicts with θ_g.
        ahead: Whether w_c was trained on the overlap after ``shared`` was received (phase 1), so that θ_c = w_c ⊙ m_c.
        entropies: BE(θ_c), BE(θ_g) in nats, after the last phase 2b; empty before, and in plain DM-PFL.
    """

    mask: Packed
    personal: Weights
    global_mask: Packed
    shared: Weights
    mask_version: int = 0
    weights_version: int = 0
    trained: bool = False
    ahead: bool = False
    entropies: tuple[float, ...] = ()


# Phases


def parse_schedule(text: str) -> list[tuple[Phase, int]]:
    """Return ``"1:2,2a:1,2b:1"`` as [("1", 2), ("2a", 1), ("2b", 1)].

    Raises:
        ValueError: Not PHASE:SHARE,… with phases 1, 2a, 2b and whole shares from 1 to 1000.
    """
    parts: list[tuple[Phase, int]] = []
    for part in text.split(","):
        name, _, share = part.strip().partition(":")
        phase = next((candidate for candidate in PHASES if candidate == name), None)
        if phase is None or not (share.isascii() and share.isdigit() and 1 <= int(share) <= 1000):
            raise ValueError(f"phases as PHASE:SHARE,… (PHASE one of {', '.join(PHASES)}, SHARE 1 … 1000)")
        parts.append((phase, int(share)))
    return parts


def phases(hyper: Hyper, rounds: int) -> list[Phase]:
    """Return the phase of each round, first to last.

    The rounds are divided in proportion to the shares; each boundary is rounded half up, so some phases get no
    round if there are fewer rounds than shares.
    """
    parts = parse_schedule(hyper.schedule) * hyper.iterations
    total, share_so_far, by_round = sum(share for _, share in parts), 0, list[Phase]()
    for phase, share in parts:
        share_so_far += share
        end = int(Fraction(rounds * share_so_far, total) + Fraction(1, 2))
        by_round += [phase] * (end - len(by_round))
    return by_round


# Masks


def budgets(layout: Layout, hyper: Hyper) -> dict[str, int]:
    """Return the number of entries in each tensor's mask; tensors other than layer weights are kept whole."""
    shapes = {p.name: p.shape for p in layout if p.role is Role.WEIGHT}
    first = list(shapes)[:1] if hyper.dense_first else []
    rule = uniform if hyper.budget == "uniform" else erk
    return {**{p.name: p.size for p in layout}, **rule(shapes, hyper.keep, first)}


def masked_parts(layout: Layout, budget: Mapping[str, int]) -> Layout:
    """Return the tensors whose mask is smaller than the tensor."""
    return tuple(parameter for parameter in layout if budget[parameter.name] < parameter.size)


def first_masks(setup: RunSetup, budget: Mapping[str, int], client: str = "") -> Packed:
    """Return a client's initial m_c, or without a name the initial m_g, which both sides derive."""
    if setup.hyper.mask_by == "magnitude":
        parts = masked_parts(setup.layout, budget)
        return pack({p.name: largest(setup.weights[p.name], budget[p.name]) for p in parts}, parts)
    owner = [client] if client and setup.hyper.initial_mask == "own" else []
    drawn = {}
    for p in masked_parts(setup.layout, budget):
        rng = derive(setup.config.seed, "dmpfl-mask", p.name, *owner)
        bits = np.zeros(p.size, np.bool_)
        bits[random_subset(np.arange(p.size, dtype=np.int64), budget[p.name], rng)] = True
        drawn[p.name] = np.packbits(bits)
    return drawn


# Messages


def download_schema(layout: Layout, budget: Mapping[str, int], masks: Masks) -> Schema:
    """Return the download's schema: m_g ⊙ w_g, with new supports or at those that the client has; or empty."""
    specs = at_masks_specs(layout, budget, masks, exact=False, optional=True)
    return Schema(specs, {"mask": (int, 0, None), "weights": (int, 0, None)})
