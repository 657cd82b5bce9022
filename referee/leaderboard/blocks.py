"""The blocks of the leaderboard, ``blocks/NAME.toml``, and who takes part, ``contenders.toml``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from sepal.errors import ConfigError

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in (HERE / "blocks").glob("*.toml")))
TUNING = (101, 102, 103)  # seeds of the trials; no reported run has them
LAST_RATE = 0.3  # of the last round as a share of the first round's; later fine-tuning still has a rate
BUDGETS = (0.03, 0.1, 0.3, 1.0)  # of dense FedAvg's bytes
# Of every run; the choice of keys rests on the validation data, which is twice the default
EVERYWHERE: Mapping[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "split.validation": 0.2,
    "evaluate-sampled": False,
    "pooled-samples": 1,
    # The defaults of the first rows. A block may try another value for everyone (also).
    "clip-gradient": 0.0,
    "on-divergence": "keep",
    "target-scale": "none",
    "client-names": "numbers",
    "folder.precision": "float32",
    "folder.leading-zeros": "number",
    "hf.validation": "",
}

Config: TypeAlias = dict[str, Any]  # run-config keys


class Contender(BaseModel):
    """A method with its keys.

    Attributes:
        own: At most one key, and its three values; the first is used while the rate is searched.
        beyond: One more value of that key, ``low`` or ``high``, tried if the best of the three is that end.
        also: Further keys, each with values beside its default, such as what the authors' code does where it differs
            from the paper. They are tried at the chosen point in the blocks that say so (``widened``).
        tuned_as: The contender whose chosen keys it has, where its own do not differ; empty if it has trials itself.
        rate_at_value: Whether its rate is the best of that contender's trials at the value of the own key that ``keys``
            sets, instead of the rate of the chosen point.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))
    name: str
    method: str = ""
    keys: Config = Field(default_factory=dict)
    own: dict[str, tuple[Any, Any, Any]] = Field(default_factory=dict, max_length=1)
    beyond: dict[Literal["low", "high"], Any] = Field(default_factory=dict)
    also: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    tuned_as: str = ""
    rate_at_value: bool = False

    @property
    def own_key(self) -> str:
        """The own key; empty if it has none."""
        return next(iter(self.own), "")


class LeaderboardBlock(BaseModel):
    """A federation, who is compared on it, and with which seeds.

    Attributes:
        reduced: What is less than the data set's defaults.
        contenders: Those with trials and seeds, in the order in which they are tuned.
        beside: Those that have another's tuned keys, and are not compared.
        yardstick: The contender that all are compared with.
        tested: Those whose difference to it, in what a client holds, has a p-value.
        doubted: Papers' methods whose search is doubted, mostly because they were found behind: all their points are
            judged by all tuning seeds.
        widened: Contenders whose further keys (``also``) are tried, too.
        also: Further keys that are tried for everyone, each with values beside the block's; nobody gains by one alone.
        rival: The contender that those at equal bytes are compared with: the compressed baseline, where there is one.
        dense: The contender whose bytes are 100 %.
        same_people: Whether a client is the same person with every seed; intervals are then over seeds and people, and
            otherwise over seeds.
        rates: First learning rates of all, ascending.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"))
    name: str
    title: str
    reduced: str
    contenders: tuple[Contender, ...]
    beside: tuple[Contender, ...] = ()
    yardstick: str
    tested: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    also: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    rival: str
    dense: str
    same_people: bool = False
    rounds: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    keys: Config

    @property
    def over(self) -> Literal["seeds", "both"]:
        """What intervals are over: seeds, or seeds and people."""
        return "both" if self.same_people else "seeds"

    @property
    def everybody(self) -> tuple[Contender, ...]:
        """All contenders, those beside last."""
        return (*self.contenders, *self.beside)

    def further_keys(self, contender: Contender) -> dict[str, tuple[Any, ...]]:
        """Return the keys that are tried at a contender's chosen point, in order, with their values."""
        return {**self.also, **(contender.also if contender.name in self.widened else {})}

    def config(self, contender: Contender, chosen: Mapping[str, Any], seed: int, rounds: int = 0) -> Config:
        """Return the keys of a run whose schedule ends with it; a run is a function of these and of the code.

        Args:
            contender: Who runs.
            chosen: Its rate and its own key.
            seed: A seed of the trials, or one that is reported.
            rounds: By default the block's.
        """
        rounds = rounds or self.rounds
        decay = round(LAST_RATE ** (1 / (rounds - 1)), 6) if rounds > 1 else 1.0
        often = seed not in TUNING and rounds == self.rounds  # others are evaluated at their end only
        evaluated: Config = {"evaluate-every": max(1, rounds // 4) if often else 0, "evaluate.shift": often}
        schedule: Config = {"rounds": rounds, "lr-decay": decay}
        keys = {**chosen, **contender.keys} if contender.tuned_as else {**contender.keys, **chosen}
        contender_keys: Config = {"method": contender.method or contender.name, **keys, "seed": seed}
        return {**EVERYWHERE, **self.keys, **schedule, **evaluated, **contender_keys}


def read_block(name: str) -> LeaderboardBlock:
    """Return a block.

    Raises:
        ConfigError: There is no such block, or it names a contender that does not exist.
    """
    path = HERE / "blocks" / f"{name}.toml"
    if name not in NAMES:
        raise ConfigError("block", f"one of {', '.join(NAMES)}", name)
    table, contenders = tomllib.loads(path.read_text(encoding="utf-8")), read_contenders()
    for key in ("contenders", "beside"):
        table[key] = _named(table.get(key, []), contenders, f"{path.name}: {key}")
    return LeaderboardBlock(name=name, **table)


def read_contenders() -> dict[str, Contender]:
    """Return all contenders by name."""
    table = tomllib.loads((HERE / "contenders.toml").read_text(encoding="utf-8"))
    return {name: Contender(name=name, **values) for name, values in table.items()}


def _named(names: Sequence[str], contenders: Mapping[str, Contender], key: str) -> list[Contender]:
    for name in names:
        if name not in contenders:
            raise ConfigError(key, f"names from contenders.toml: {', '.join(contenders)}", name)
    return [contenders[name] for name in names]


def text(config: Mapping[str, Any]) -> str:
    """Return the keys as one text, the same for equal keys."""
    return json.dumps(dict(config), sort_keys=True)
