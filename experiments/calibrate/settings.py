"""The federations on which rates are calibrated, by data set.

Model, batch size, local epochs and optimizer are the data set's defaults. Where the default number of rounds or images
is more than two cores carry, the run is shorter, and ``shortened`` says so. A fifth of each client's training data is
held out for validation, twice the default, because the choice rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.calibrate.search import ADAM, SGD, SHORT

EVERYWHERE = {"split.validation": 0.2, "evaluate-every": 0, "evaluate-sampled": False, "pooled-samples": 1}
# The five papers' methods and eight baselines, where all 29 do not fit.
MAIN = (
    *("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl"),
    *("fedavg", "fedavg-ft", "local", "fedstc", "ditto", "fedper", "fedrep", "feddst"),
)


@dataclass(frozen=True)
class Setting:
    """One data set's federation.

    Attributes:
        keys: Run-config keys beyond ``EVERYWHERE``.
        grid: Learning rates that are tried first.
        shortened: What is less than the data set's defaults; empty if nothing is.
        methods: The methods that are calibrated; empty for all.
    """

    keys: Mapping[str, int | float | str]
    grid: tuple[float, ...] = SGD
    shortened: str = ""
    methods: tuple[str, ...] = ()


SETTINGS: Mapping[str, Setting] = {
    "digits": Setting({"clients": 10}),
    "har": Setting(
        {"clients": 30, "rounds": 10, "partition.subsample": 2400},
        grid=SHORT,
        shortened="10 of 300 rounds, about 80 windows of each of the 30 people",
    ),
    "mnist": Setting(
        {"clients": 10, "rounds": 10, "partition.subsample": 1500},
        grid=SHORT,
        shortened="10 of 300 rounds, 1,500 training images",
    ),
    "fashion-mnist": Setting(
        {"clients": 10, "rounds": 15, "partition.subsample": 2000},
        grid=SHORT,
        shortened="15 of 100 rounds, 2,000 training images",
    ),
    "cifar-10": Setting(
        {"clients": 10, "rounds": 10, "partition.subsample": 2000},
        grid=SHORT,
        shortened="10 of 500 rounds, 2,000 training images",
        methods=MAIN,
    ),
    "imdb": Setting(
        {"clients": 10, "rounds": 8, "partition.subsample": 2000},
        grid=ADAM,
        shortened="8 of 100 rounds, 2,000 reviews",
        methods=MAIN,
    ),
}
