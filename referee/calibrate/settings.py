"""The federations on which rates are calibrated, by data set.

Model, batch size, local epochs and optimizer are the data set's defaults. Where the default number of rounds or images
is more than two cores carry, the run is shorter, and ``shortened`` says so. A fifth of each client's training data is
held out for validation, twice the default, because the choice rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from referee.calibrate.search import ADAM, GROWTH, OWN, SGD, SHORT

EVERYWHERE = {"split.validation": 0.2, "evaluate-every": 0, "evaluate-sampled": False, "pooled-samples": 1}
# Methods that choose by validation data themselves: their trials are judged by validation examples they do not see.
CHOOSING = ("pa3dfl",)
PAPERS = ("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl")
# The five papers' methods and eight baselines, where all 29 do not fit.
MAIN = (
    *PAPERS,
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
        longer: Methods whose runs are longer, because the best rate of a short run was bad in a long one.
        longer_keys: Their keys beyond ``keys``.
        longer_words: What is less than the data set's defaults in their runs.
        own: Method → its own keys with other values than those of ``OWN``.
        margin: The methods that are searched with a margin; empty for all.
    """

    keys: Mapping[str, int | float | str]
    grid: tuple[float, ...] = SGD
    shortened: str = ""
    methods: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()
    longer_keys: Mapping[str, int | float | str] = field(default_factory=dict)
    longer_words: str = ""
    own: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    margin: tuple[str, ...] = PAPERS

    def has_margin(self, method: str) -> bool:
        """Return whether a method is searched with a margin, and with gradients clipped."""
        return not self.margin or method in self.margin

    @property
    def growth(self) -> int:
        """How often the grid of an own key may grow: where runs are shortened, not at all."""
        return 0 if self.shortened else GROWTH

    def run_keys(self, method: str) -> Mapping[str, int | float | str]:
        """Return the run-config keys of a method's trials."""
        longer = self.longer_keys if method in self.longer else {}
        apart = {"evaluate.validation-apart": True} if method in CHOOSING and self.has_margin(method) else {}
        return {**EVERYWHERE, **self.keys, **longer, **apart}

    def own_keys(self, method: str) -> Mapping[str, tuple[float, ...]]:
        """Return a method's own keys and their values; the first is used while the rate is searched."""
        return self.own.get(method, OWN.get(method, {}))


SETTINGS: Mapping[str, Setting] = {
    "digits": Setting({"clients": 10}, margin=()),
    "har": Setting(
        {"clients": 30, "rounds": 10, "partition.subsample": 2400},
        grid=SHORT,
        shortened="10 of 300 rounds, about 80 windows of each of the 30 people",
        longer=("fedavgm", "flasc", "lg-fedavg", "tailorfl", "pfedhn"),
        longer_keys={"rounds": 30, "partition.subsample": 0},
        longer_words="30 of 300 rounds, all windows",
        margin=(),
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
        own={"fedadagrad": {"rate": (0.03, 0.01, 0.1)}},  # with .1 first, no learning rate has more than 22 %
    ),
    "cifar-10": Setting(
        {"clients": 10, "rounds": 10, "partition.subsample": 2000},
        grid=SHORT,
        shortened="10 of 500 rounds, 2,000 training images",
        methods=MAIN,
    ),
    "imdb": Setting(
        {"clients": 10, "rounds": 40, "partition.subsample": 2000},
        grid=ADAM,
        shortened="40 of 100 rounds, 2,000 reviews; pFedGate and Pa3dFL refuse the embedding",
        methods=tuple(method for method in MAIN if method not in ("pfedgate", "pa3dfl")),
    ),
}
