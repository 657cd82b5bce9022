"""Plans of papers: those of `sepal compare` (:mod:`sepal.study.plans.plan`), with published figures and scales.

A block may have, besides its keys::

    tables = ["1", "figure 3"]   # the paper's tables, for `python -m referee.paper --table`
    headline = "fedpse"          # the variant whose own figures are shown by round
    scales = ["quick", "cpu"]    # by default all
    [[block.published]]          # the paper's figures in %, and the views to compare them with
    cell = "lambda=1.0"
    views = ["received", "trained"]
    values = { fedpse = 92.43, fedavg = 80.68 }

A plan at another scale (`python -m referee.paper --scale`)::

    [scale.quick]                # or full; the default is cpu: the plan as written
    blocks = ["n5"]              # only these; otherwise all that have the scale in their ``scales``
    seeds = [0]                  # instead of the blocks' own
    keys = { dataset = "digits" }  # override the block's keys, but not those of its grid and of variants; trials
                                 # keep their seeds and rounds
    published = false            # leave out published figures, if they belong to other data
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sepal.errors import ConfigError
from sepal.study.plans import plan
from sepal.study.plans.model import Keys, Name, PlanBlock, PlanFile
from sepal.study.run_keys import flatten_tables

Scale = Literal["quick", "cpu", "full"]
SCALES: tuple[Scale, ...] = ("quick", "cpu", "full")


class Published(BaseModel):
    """Accuracies that the paper reports, in %, by variant.

    They are plain means over clients, means weighted by test examples, or that of the bottom decile of clients.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    cell: str = ""
    views: tuple[str, ...] = Field(min_length=1)
    figure: Literal["mean", "weighted", "bottom_decile"] = "mean"
    values: dict[Name, float]


class PaperBlock(PlanBlock):
    """A block with what a paper says about it."""

    published: tuple[Published, ...] = ()
    tables: tuple[str, ...] = ()
    headline: Name | None = None
    scales: tuple[Scale, ...] = SCALES


class AtScale(BaseModel):
    """What another scale changes in a plan."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    blocks: tuple[Name, ...] = ()
    seeds: tuple[int, ...] = ()
    keys: Keys = {}
    published: bool = True


class PaperPlan(PlanFile):
    """A plan file of a paper."""

    scale: dict[Literal["quick", "full"], AtScale] = Field(default_factory=dict)
    block: tuple[PaperBlock, ...] = Field(min_length=1)

    @property
    def known_scales(self) -> list[Scale]:
        """The scales that the plan supports."""
        named = {scale for block in self.block if block.scales != SCALES for scale in block.scales}
        return [scale for scale in SCALES if scale in {"cpu", *self.scale, *named}]

    def check(self, file: str) -> None:
        """Check also the blocks and cells that scales and published figures name.

        Raises:
            ConfigError: There is no such block or cell.
        """
        super().check(file)
        names = [block.name for block in self.block]
        for scale, block_name in ((scale, name) for scale, change in self.scale.items() for name in change.blocks):
            if block_name not in names:
                raise ConfigError(f"{file}: scale.{scale}.blocks", f"names of blocks: {', '.join(names)}", block_name)
        for block in self.block:
            cells = list(dict.fromkeys(run.cell for run in self.runs(block.name)))
            for published in block.published:
                if published.cell not in cells:
                    raise ConfigError(
                        f"{file}: {block.name}.published.cell", f"one of {', '.join(cells)}", published.cell
                    )

    def at(self, scale: Scale) -> PaperPlan:
        """Return the plan at a scale: the blocks that it has there, with the scale's changes.

        Raises:
            ConfigError: The plan does not support that scale.
        """
        if scale not in self.known_scales:
            raise ConfigError("--scale", f"{' or '.join(self.known_scales)}, which {self.title} has", scale)
        change = self.scale.get(scale, AtScale()) if scale != "cpu" else AtScale()
        names = {block.name for block in self.block if block.name in (change.blocks or (block.name,))}
        names |= {block.trials for block in self.block if block.name in names}
        blocks = [block for block in self.block if scale in block.scales and block.name in names]
        words = ", ".join(f"{key} = {value}" for key, value in flatten_tables(change.keys))
        remark = f"At scale {scale}, with {words}; titles are those of the paper's data. " if words else ""
        update = {"block": tuple(self._scaled(block, change) for block in blocks), "note": remark + self.note}
        return self.model_copy(update=update)

    def _scaled(self, block: PaperBlock, change: AtScale) -> PaperBlock:
        keys, seeds = dict(flatten_tables(change.keys)), change.seeds
        if block.name in self.trial_blocks:  # trials keep their rounds and seeds
            keys, seeds = {key: value for key, value in keys.items() if key != "rounds"}, ()
        update = {"keys": {**block.keys, **keys}, "seeds": seeds or block.seeds}
        return block.model_copy(update=update if change.published else {**update, "published": ()})

    def of_table(self, table: str) -> PaperPlan:
        """Return the plan with only the blocks of one table of the paper and the blocks of their trials.

        Raises:
            ConfigError: No block belongs to that table.
        """
        tables = sorted({name for block in self.block for name in block.tables})
        if table not in tables:
            expected = f"one of {', '.join(tables)}" if tables else "no such option, because the plan names no tables"
            raise ConfigError("--table", expected, table)
        needed = {block.trials for block in self.block if table in block.tables and block.trials}
        blocks = tuple(block for block in self.block if table in block.tables or block.name in needed)
        return self.model_copy(update={"block": blocks})


def read_plan(path: Path) -> PaperPlan:
    """Return the paper's plan in ``path``.

    Raises:
        ConfigError: It cannot be read, or is not a plan.
    """
    return plan.read_plan(path, kind=PaperPlan)
