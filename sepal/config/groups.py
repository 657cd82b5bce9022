"""The keys ``evaluate.*``, ``capacity.*``, ``privacy.*``, ``compress.*``, ``lora.*`` and ``engine.*``."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator

from sepal.config.base import Mark, Settings, marks
from sepal.config.data import Corruption
from sepal.rng import derive


class EvaluateSettings(Settings):
    """Additional evaluations in the closing round: keys ``evaluate.*``."""

    # DM-PFL, section 4.2: 0 to 100 % of a client's test set replaced from the test data of all clients.
    shift: bool = Field(False, description="also evaluate with 0 … 100 % of test data drawn from all clients")
    corruption: Corruption = Field(
        "none", description="also evaluate on test images with this corruption", json_schema_extra=marks(Mark.WHOLE)
    )
    severity: int = Field(3, ge=1, le=5, description="severity of the corruption, as in CIFAR-10-C")
    validation_apart: bool = Field(
        False,
        description="show the method every other validation example of a client, and take validation figures from the "
        "others only: for searches that compare methods of which one chooses by validation data itself, as Pa3dFL does",
    )


class CapacitySettings(Settings):
    """How much of the full model clients can hold, unless their nodes set it: keys ``capacity.*``."""

    # Pa3dFL, section 5: hetero is uniform in 1-100 %.
    profile: str = Field(
        "ideal",
        description="share of the full model that a client can hold: ideal (1), hetero (uniform in 0.01-1), or numbers "
        "such as 0.25,0.5,1, one of which is drawn for each client",
        json_schema_extra=marks(Mark.WORDS),
    )

    @field_validator("profile")
    @classmethod
    def _is_possible(cls, profile: str) -> str:
        if profile not in ("ideal", "hetero") and not all(0 < number <= 1 for number in _numbers(profile)):
            raise ValueError("ideal, hetero, or numbers in (0, 1] such as 0.25,0.5,1")
        return profile

    def draw(self, seed: int, client: str) -> float:
        """Return the capacity of ``client``, in (0, 1]; it depends on seed and name only."""
        if self.profile == "ideal":
            return 1.0
        rng = derive(seed, "capacity", client)
        return float(rng.uniform(0.01, 1.0) if self.profile == "hetero" else rng.choice(_numbers(self.profile)))


class PrivacySettings(Settings):
    """Differential privacy of clients' uploads or of their mean: keys ``privacy.*``; see docs/privacy.md."""

    mode: Literal["local", "central", "distributed"] = Field(
        "local",
        description="who adds the noise: local: each client to its update; central: the server, which is trusted, to "
        "the mean of a round; distributed: all clients together, a share each, to a secure sum",
    )
    clip: float = Field(
        0.0,
        ge=0,
        description="maximum L2 norm of a client's update; 0: no clipping and no noise. With privacy.quantile, that of "
        "round 1",
    )
    noise: float = Field(
        0.0,
        ge=0,
        description="noise multiplier: standard deviation of the Gaussian noise per entry, divided by privacy.clip; "
        "central, distributed: of the noise on the sum of a round's updates",
    )
    quantile: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="central: share of a round's updates that the clip is to leave as they are, so that it follows "
        "their norms; 0: the clip stays",
    )
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="central: who is asked to train: fixed: clients-per-round, drawn from the seed; poisson: each "
        "client by itself with probability clients-per-round / clients, drawn from the server's secret, by which ε is "
        "smaller for whoever does not know who was drawn",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    budget: float = Field(
        0.0,
        ge=0,
        description="central, distributed: the run ends before the round after which ε would be larger; 0: no limit",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="δ at which ε is reported", json_schema_extra=marks(Mark.SERVER_ONLY)
    )

    @property
    def central(self) -> bool:
        """Whether the server adds noise to the mean of the clipped updates."""
        return self.mode == "central"

    @property
    def distributed(self) -> bool:
        """Whether clients add shares of noise to a secure sum of the clipped updates."""
        return self.mode == "distributed"

    @property
    def of_rounds(self) -> bool:
        """Whether the noise is that of a round's sum: a round is one release, and all clients weigh the same."""
        return self.central or self.distributed

    @property
    def of_shares(self) -> tuple[float, float]:
        """Clip and multiplier of the noise in a secure sum; zeros in a run without."""
        return (self.clip, self.noise) if self.distributed else (0.0, 0.0)

    @property
    def by_clients(self) -> bool:
        """Whether each client clips its updates, and adds the noise that is to protect it, if there is any."""
        return self.clip > 0 and not self.of_rounds


class CompressSettings(Settings):
    """Compressed exchange of methods that exchange dense models: keys ``compress.*``."""

    name: Literal["none", "stc", "topk", "randk"] = Field(
        "none",
        description="send a part of each update, both ways: stc: the largest entries, as signs with one size; topk: as "
        "values; randk: values of entries that are drawn for each round from the seed, the same for all clients",
    )
    keep: float = Field(0.1, gt=0, le=1, description="p, fraction of entries sent, in both directions")
    # Our choice. Who missed more rounds gets the current value of each entry that has changed since.
    cache: int = Field(
        20, ge=1, le=10_000, description="past rounds whose updates the server keeps for clients that missed them"
    )


class LoraSettings(Settings):
    """Low-rank adapters; the rest of the model is frozen: keys ``lora.*`` (:mod:`sepal.models.lora`)."""

    rank: int = Field(
        0, ge=0, le=4096, description="rank r of the adapters; 0: the method's (fedsa-lora and flasc: 8), else none"
    )
    alpha: float = Field(0.0, ge=0, description="an adapter is scaled by alpha / rank; 0: by 1")
    targets: str = Field(
        "",
        description="comma-separated patterns of layers that get adapters, such as encoder.*.mlp.*; empty: all linear "
        "and attention layers but the last",
        json_schema_extra=marks(Mark.WORDS),
    )


class EngineSettings(Settings):
    """How clients in process train: keys ``engine.*``."""

    batch: int = Field(
        0,
        ge=0,
        le=1024,
        description="clients of a worker in process that train at once, as one stacked model; 0: 16 on an accelerator, "
        "1 on a CPU, and with engine.capture. Where a method or model cannot, they train one by one",
        json_schema_extra=marks(Mark.MACHINE),
    )
    # Not the default: captured steps have not run on a GPU (docs/decisions/0032-captured-steps.md).
    capture: bool = Field(
        False,
        description="on CUDA, record a client's training step in process once and replay it; results change by "
        "rounding. Where a method or model cannot, and on any other device, steps are made one by one",
        json_schema_extra=marks(Mark.MACHINE),
    )


def _numbers(text: str) -> list[float]:
    """Return the numbers in a text such as ``0.25,0.5,1``; a single NaN if it cannot be parsed."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        return [math.nan]
