"""Tables of what only some methods or runs have: capacities, privacy, own figures, novel clients, trials.

Each function returns a header and rows; no rows if no run has such figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from referee.paper.plan import PaperPlan
from sepal.protocol.views import VIEWS
from sepal.study.plans.model import PlannedRun
from sepal.study.record import RunRecord
from sepal.study.search import mean_of_trials

Group = Sequence[RunRecord]  # the seeds of one variant in one cell
Table = tuple[list[str], list[list[str]]]


def by_capacity(groups: Mapping[str, Group], title: str, views: Mapping[str, str]) -> Table:
    """Return accuracy by quarter of the clients' capacities, mean over seeds.

    Args:
        groups: Variant → its runs.
        title: What the view is called.
        views: Variant → view.
    """
    capacities = {name: [record.figures.get("by_capacity", {}) for record in group] for name, group in groups.items()}
    quarters = sorted({quarter for runs in capacities.values() for run in runs for quarter in run})
    rows = []
    for name, runs in capacities.items():
        values = {q: [r[q][views[name]]["mean"] for r in runs if r.get(q, {}).get(views[name])] for q in quarters}
        rows.append(
            [
                name,
                *(f"{100 * mean(quarter_values):.1f}" if quarter_values else "–" for quarter_values in values.values()),
            ]
        )
    return [f"{title} by capacity", *quarters], rows if quarters else []


def privacy_table(groups: Mapping[str, Group]) -> Table:
    """Return clip, noise and ε of the variants that have them; ε is the largest over seeds and clients."""
    rows = []
    for name, group in groups.items():
        budgets = [record.figures["privacy"] for record in group if record.figures.get("privacy")]
        if budgets:
            cells = [f"{budgets[0][key]:g}" for key in ("clip", "noise", "delta")]
            for kind in ("epsilon", "epsilon_zero_out"):
                values = [budget[kind] for budget in budgets]
                cells.append("none" if None in values else f"{max(values):.3g}")
            rows.append([name, *cells, str(max(budget["uploads"] for budget in budgets))])
    return ["privacy", "clip", "noise", "δ", "ε, other data", "ε, no update", "uploads"], rows


def of_the_method(groups: Mapping[str, Group]) -> Table:
    """Return the methods' own figures, averaged over rounds and seeds; Sub-FedAvg's running total at its end, in MB."""
    series = {
        name: pd.concat(
            [pd.DataFrame(record.figures.get("method", {}), dtype=float).assign(seed=record.seed) for record in group]
        )
        for name, group in groups.items()
    }
    means = pd.DataFrame({name: frame.mean() for name, frame in series.items() if not frame.empty})
    for name, frame in series.items():
        if "paper-cost" in frame:
            means.loc["paper-cost", name] = frame.groupby("seed")["paper-cost"].max().mean() / 1e6
    means = means.rename(index={"paper-cost": "paper-cost, MB in all"}).drop(index=["round", "seed"], errors="ignore")
    means = means.dropna(axis="columns", how="all")
    rows = [[str(n), *("–" if pd.isna(v) else f"{v:.3f}" for v in column)] for n, column in means.items()]
    return ["the method's own figures, mean over rounds", *means.index], rows


def by_round(name: str, group: Group) -> Table:
    """Return one variant's own figures in the first of its rounds, and at a sixth, a third, two thirds and their end.

    They are those of the first seed; rounds without such figures do not count.
    """
    title, columns = f"{name} by round, seed {group[0].seed}", group[0].figures.get("method", {})
    if not (rounds := columns.get("round")):
        return [title], []
    indices = sorted({0, *(max(0, round(len(rounds) * share) - 1) for share in (1 / 6, 1 / 3, 2 / 3, 1))})
    rows = []
    for figure in [key for key in columns if key != "round"]:
        values = [columns[figure][index] for index in indices]
        rows.append([figure, *("–" if value is None else _short(value) for value in values)])
    return [title, *(str(rounds[index]) for index in indices)], rows


def _short(value: float) -> str:
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"


def of_the_clients(groups: Mapping[str, Group]) -> Table:
    """Return what clients report of themselves in the closing round, over the clients of all seeds."""
    reports = {
        name: [record.figures["own"] for record in group if record.figures.get("own")] for name, group in groups.items()
    }
    keys = list(dict.fromkeys(key for runs in reports.values() for report in runs for key in report if key != "name"))
    rows = []
    for name, runs in reports.items():
        values = {key: [v for report in runs for v in report.get(key, ()) if v is not None] for key in keys}
        cells = [f"{mean(v):.3g} ({min(v):.3g} to {max(v):.3g})" if v else "–" for v in values.values()]
        rows += [[name, *cells]] if runs else []
    return ["the clients' own figures at the end, mean (least to most)", *keys], rows


def of_novel_clients(groups: Mapping[str, Group]) -> Table:
    """Return the accuracy of participants and of novel clients and the gap in points, mean over seeds."""
    rows = []
    for name, group in groups.items():
        cells = []
        for view in VIEWS:
            both = [
                (record.accuracy[view]["mean"], new[view]["mean"])
                for record in group
                if (new := record.figures.get("novel", {}).get("accuracy", {})).get(view) and record.accuracy.get(view)
            ]
            participants, novel = (100 * mean(column) for column in zip(*both, strict=True)) if both else (0.0, 0.0)
            cells += [f"{participants:.1f}", f"{novel:.1f}", f"{participants - novel:+.1f}"] if both else ["–"] * 3
        rows += [[name, *cells]] if any(record.figures.get("novel") for record in group) else []
    kinds = ("participants", "novel", "gap")
    return ["novel clients", *(f"{view}, {kind}" for view in VIEWS for kind in kinds)], rows


def of_the_trials(plan: PaperPlan, runs: Sequence[PlannedRun], results: Mapping[str, RunRecord]) -> Table:
    """Return trials' validation accuracy in % by variant and cell, mean over seeds; the best in bold.

    It is in the view in which trials choose (:meth:`sepal.study.plans.model.PlanFile.judged`).
    """
    accuracies: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.name in results and (value := results[run.name].validation.get(plan.judged(run))) is not None:
            accuracies.setdefault(run.variant, {}).setdefault(run.cell, []).append(value)
    cells = list(dict.fromkeys(run.cell for run in runs))
    rows = []
    for variant, values in accuracies.items():
        percentages = {cell: f"{100 * mean(seed_values):.1f}" for cell, seed_values in values.items()}
        best = max(values, key=lambda cell: mean_of_trials(values[cell]))
        rows.append([variant, *(f"**{percentages[c]}**" if c == best else percentages.get(c, "–") for c in cells)])
    return ["validation, %", *(cell.replace("=", " = ") or "accuracy" for cell in cells)], rows


def chosen_by_trials(groups: Mapping[str, Group]) -> Table:
    """Return the values that trials have chosen for each variant."""
    chosen = {name: group[0].figures.get("chosen", {}) for name, group in groups.items()}
    keys = list(dict.fromkeys(key for values in chosen.values() for key in values))
    rows = [[name, *(str(values.get(key, "–")) for key in keys)] for name, values in chosen.items()]
    return ["chosen by trials", *keys], rows if keys else []


def mean(values: Iterable[float]) -> float:
    """Return the plain mean."""
    return float(np.mean(list(values)))
