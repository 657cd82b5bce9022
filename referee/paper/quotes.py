"""What a page's template may quote from the stored runs: ``{{ on("har").ahead("dmpfl", "fedavg") }}``.

A template says ``ahead`` or ``even``, and the page is only made if the data say so, too: a sentence cannot outlive the
figures that it was written for. All differences are paired over clients, with the 95 % interval of Student's t; with
``seeds=True`` over seeds. Accuracies are in %, differences in points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from referee.paper.differences import Group, by_seed
from referee.paper.plan import PaperPlan
from sepal.errors import ConfigError
from sepal.study.record import MEGA, RunRecord
from sepal.study.statistics import Difference, Estimate, over_seeds, paired, paired_by_seed

Results = Mapping[str, RunRecord]


@dataclass(frozen=True)
class Quotes:
    """The runs of one cell of a block.

    Views are kept, received, trained, pooled, or deployed: the one that the user of a variant's method predicts with.

    Attributes:
        location: Block and cell, for errors.
        groups: Variant → its runs.
        views: Variant → its deployed view.
    """

    location: str
    groups: Mapping[str, Group]
    views: Mapping[str, str]

    def runs(self, variant: str) -> Group:
        """Return a variant's runs."""
        if variant not in self.groups:
            raise ConfigError("page", f"one of {', '.join(self.groups)} in {self.location}", variant)
        return self.groups[variant]

    def acc(self, variant: str, view: str = "deployed", shift: bool = False, figure: str = "mean") -> str:
        """Return an accuracy, mean over seeds: ``97.1``."""
        return f"{100 * self._accuracy(variant, view, shift, figure).mean:.1f}"

    def seeds(self, variant: str, view: str = "deployed") -> str:
        """Return an accuracy of each seed: ``97.1, 96.8``."""
        name = self._view(variant, view, shift=False)
        return ", ".join(f"{100 * record.accuracy[name]['mean']:.1f}" for record in self.runs(variant))

    def held_out(self, variant: str, view: str = "trained") -> str:
        """Return the accuracy on validation data, mean over seeds."""
        return f"{100 * np.mean([record.validation[view] for record in self.runs(variant)]):.1f}"

    def diff(self, variant: str, rival: str, view: str = "deployed", **options: Any) -> str:
        """Return a difference with its sign, whatever it is: ``+3.1 [+1.3, +4.9]``."""
        return _signed(self._difference(variant, rival, view, **options))

    def ahead(self, variant: str, rival: str, view: str = "deployed", digits: int = 1, **options: Any) -> str:
        """Return by how much ``variant`` is ahead of ``rival``; the interval must exclude 0: ``3.1 [1.3, 4.9]``."""
        difference = self._difference(variant, rival, view, **options)
        if difference.spread is None or difference.mean <= difference.spread:
            raise ConfigError(
                f"page: {self.location}", f"{variant} ahead of {rival} ({view})", difference.text(2, sign="+")
            )
        return difference.text(digits)

    def even(self, variant: str, rival: str, view: str = "deployed", **options: Any) -> str:
        """Return a difference whose interval must include 0, with its sign: ``+0.1 [−0.9, +1.1]``."""
        difference = self._difference(variant, rival, view, **options)
        if difference.spread is None or abs(difference.mean) > difference.spread:
            raise ConfigError(
                f"page: {self.location}", f"{variant} even with {rival} ({view})", difference.text(2, sign="+")
            )
        return _signed(difference)

    def mb(self, variant: str, ways: tuple[str, ...] = ("up", "down")) -> str:
        """Return the MB of all clients and rounds, mean over seeds: ``9.8``, from a thousand on ``4,091``."""
        mean = float(np.mean([sum(record.bytes[way] / MEGA for way in ways) for record in self.runs(variant)]))
        return f"{mean:,.0f}" if mean >= 1000 else f"{mean:.1f}"

    def dense(self, variant: str, ways: tuple[str, ...] = ("up", "down")) -> str:
        """Return those MB in % of the same messages with the whole model as float32."""
        sizes = [record.bytes for record in self.runs(variant)]
        part, whole = (sum(s[f"{way}{end}"] for s in sizes for way in ways) for end in ("", "_dense"))
        return f"{100 * part / whole:.1f}"

    def work(self, variant: str, rival: str) -> str:
        """Return the multiply-adds of training in % of another variant's."""
        operations, rival_operations = (
            np.mean([record.figures["multiply_adds"] for record in self.runs(name)]) for name in (variant, rival)
        )
        return f"{100 * operations / rival_operations:.0f}"

    def of_clients(self, variant: str, figure: str, digits: int = 1, factor: float = 100.0, how: str = "mean") -> str:
        """Return a figure that clients report of themselves at the end, in %: its ``mean``, ``min`` or ``max``."""
        values = [
            value for record in self.runs(variant) for value in record.figures["own"][figure] if value is not None
        ]
        return f"{factor * float(getattr(np, how)(values)):.{digits}f}"

    def method(self, variant: str, figure: str, digits: int = 2, at: int | None = None) -> str:
        """Return a figure of the method itself: its mean over rounds and seeds, or of the ``at``-th such round."""
        columns = [record.figures["method"][figure] for record in self.runs(variant)]
        values = [column[at] for column in columns] if at is not None else [v for c in columns for v in c]
        return f"{np.mean([value for value in values if value is not None]):.{digits}f}"

    def novel(self, variant: str, view: str) -> str:
        """Return the novel clients' accuracy."""
        return (
            f"{100 * np.mean([record.figures['novel']['accuracy'][view]['mean'] for record in self.runs(variant)]):.1f}"
        )

    def quarter(self, variant: str, number: int) -> str:
        """Return the deployed accuracy of a quarter of the capacities: 0 is the lowest."""
        view, name = self.views[variant], sorted(self.runs(variant)[0].figures["by_capacity"])[number]
        return f"{100 * np.mean([r.figures['by_capacity'][name][view]['mean'] for r in self.runs(variant)]):.1f}"

    def epsilon(self, variant: str, kind: str = "epsilon") -> str:
        """Return the ε that a variant ends with (``epsilon_zero_out``: against no update)."""
        largest = max(record.figures["privacy"][kind] for record in self.runs(variant))
        return f"{float(f'{largest:.3g}'):,g}"

    def _view(self, variant: str, view: str, shift: bool) -> str:
        self.runs(variant)
        return (self.views[variant] if view == "deployed" else view) + "-shift-100" * shift

    def _accuracy(self, variant: str, view: str, shift: bool, figure: str) -> Estimate:
        name = self._view(variant, view, shift)
        estimate = over_seeds(
            [record.accuracy[name][figure] for record in self.runs(variant) if record.accuracy.get(name)]
        )
        if estimate is None:
            raise ConfigError(f"page: {self.location}", f"a view that {variant} has", name)
        return estimate

    def _difference(
        self, variant: str, rival: str, view: str, *, rival_view: str = "", shift: bool = False, seeds: bool = False
    ) -> Difference:
        sides = [self._view(variant, view, shift), self._view(rival, rival_view or view, shift)]
        compare = paired_by_seed if seeds else paired
        difference = compare(*(by_seed(self.runs(v), s) for v, s in zip((variant, rival), sides, strict=True)))
        if difference is None:
            raise ConfigError(
                f"page: {self.location}", "clients that both have", f"none for {variant} and {rival} ({view})"
            )
        return difference


def _signed(difference: Difference) -> str:
    return re.sub(r"^[+-](?=0\.0\b)", "", difference.text(sign="+")).replace("-", "−")


def quotes(plan: PaperPlan, results: Results) -> Callable[..., Quotes]:
    """Return ``on(block, cell)``, which gives the runs of a block; without a cell, of its only one."""
    views = {(run.block, run.variant): run.deployed for run in plan.runs()}

    def on(block: str, cell: str = "") -> Quotes:
        groups: dict[str, list[RunRecord]] = {}
        for row in results.values():
            if (row.labels["block"], row.labels["cell"]) == (block, cell):
                groups.setdefault(row.labels["variant"], []).append(row)
        location = " ".join(filter(None, (block, cell)))
        if not groups:
            raise ConfigError("page", "a block and a cell that have runs", location)
        return Quotes(location, groups, {name: views[block, name] for name in groups})

    return on
