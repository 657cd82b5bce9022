"""Ranks of variants over blocks, seeds and clients, at equal rounds and at equal bytes, from a results file.

The ranked table has a line for each client of each cell and seed, and a column for each variant: the accuracy of the
model that the client's user would have predicted with. A client that has not taken part yet uses what the server sends.
The accuracies of a line are ranked: 1 is the best, and ties get their mean rank. Friedman's test asks whether the
variants differ at all; two variants differ if their mean ranks are further apart than Nemenyi's critical difference
(Demsar, JMLR 2006, section 3.2.2). Both tests assume independent lines. Clients of one federation are not independent,
so the difference is a guide, not a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.paper.differences import of_clients
from experiments.paper.plan import PaperPlan, Ranks
from sepal.cli.markdown import table
from sepal.study.statistics import over_seeds, paired

NAME = "ranks"  # of the page's part with the ranks
LEVEL = 0.05
Found = Mapping[str, Any]
Line = tuple[str, int, str]  # block and cell, seed, client
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """A setting in which variants are compared.

    Attributes:
        title: What is the same for all variants.
        shift: Whether all test data is replaced by other clients'.
        within: Whether only models within a limit of bytes count.
    """

    title: str
    shift: bool = False
    within: bool = False

    def clients(self, row: Found, view: str) -> dict[str, float]:
        """Return client → accuracy of the model that the client's user predicts with, in one run."""
        part = row.get("within") if self.within else row
        if part is None:
            return {}
        columns, suffix = part["clients"], "-shift-100" if self.shift else ""
        wanted = view if f"{view}{suffix}" in columns else "trained"
        served = of_clients(columns, f"received{suffix}") if wanted == "kept" else {}
        return {**served, **of_clients(columns, f"{wanted}{suffix}")}


SETTINGS = (
    Setting("Equal rounds, the clients' own test data"),
    Setting("Equal rounds, full shift", shift=True),
    Setting("Equal bytes, the clients' own test data", within=True),
)


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of variants.

    Attributes:
        variants: Names, in the order of the columns.
        ranks: float64 (lines, variants).
        statistic: Friedman's χ².
        p: Its p-value, under the hypothesis that all variants are alike.
        difference: Nemenyi's critical difference between two mean ranks at the 5 % level.
    """

    variants: tuple[str, ...]
    ranks: Matrix
    statistic: float
    p: float
    difference: float

    @property
    def means(self) -> dict[str, float]:
        """Variant → mean rank, the best first."""
        means = dict(zip(self.variants, self.ranks.mean(0).tolist(), strict=True))
        return dict(sorted(means.items(), key=lambda item: item[1]))

    def alike(self) -> list[str]:
        """Return the variants within the critical difference of the best."""
        best = min(self.means.values())
        return [name for name, mean in self.means.items() if mean - best <= self.difference]


def rank(variants: Sequence[str], accuracies: Matrix) -> Ranking:
    """Rank variants by their accuracies.

    Args:
        variants: Names of at least three variants.
        accuracies: float64 (lines, variants).
    """
    ranks = stats.rankdata(-accuracies, axis=1)
    lines, count = accuracies.shape
    statistic, p = stats.friedmanchisquare(*accuracies.T)
    critical = stats.studentized_range.ppf(1 - LEVEL, count, np.inf) / np.sqrt(2)
    difference = critical * np.sqrt(count * (count + 1) / (6 * lines))
    return Ranking(tuple(variants), ranks, float(statistic), float(p), float(difference))


def collect(
    plan: PaperPlan, ranks: Ranks, results: Mapping[str, Found], setting: Setting
) -> dict[str, dict[Line, float]]:
    """Return variant → line → accuracy, for the ranked blocks."""
    found: dict[str, dict[Line, float]] = {}
    for block in [block for block in plan.block if block.name in ranks.blocks]:
        for run in plan.runs(block.name):
            row = results.get(run.name)
            clients = setting.clients(row, run.deployed) if row else {}
            place = ", ".join(filter(None, (run.block, run.cell)))
            for name, accuracy in clients.items():
                found.setdefault(run.variant, {})[place, run.seed, name] = accuracy
    return found


def complete(found: Mapping[str, Mapping[Line, float]]) -> tuple[list[Line], list[str]]:
    """Return the lines that all variants have, and the variants that take part.

    If a variant lacks a whole block, the variant is left out, not the block.
    """
    places = {line[0] for lines in found.values() for line in lines}
    there = [name for name, lines in found.items() if {line[0] for line in lines} == places]
    shared = set.intersection(*(set(found[name]) for name in there)) if there else set()
    return sorted(shared), there


def mean_ranks(plan: PaperPlan, results: Mapping[str, Found], setting: Setting) -> dict[str, float]:
    """Return variant → mean rank in a setting, the best first; empty if there are fewer than three variants."""
    found = collect(plan, plan.ranks, results, setting) if plan.ranks else {}
    lines, variants = complete(found)
    return _ranking(found, lines, variants).means if len(variants) > 2 and lines else {}


def _ranking(found: Mapping[str, Mapping[Line, float]], lines: Sequence[Line], variants: Sequence[str]) -> Ranking:
    return rank(variants, np.array([[found[name][line] for name in variants] for line in lines]))


def rank_tables(plan: PaperPlan, results: Mapping[str, Found]) -> Iterator[str]:
    """Yield the lines of all tables of ranks; without results, one line that says so."""
    if plan.ranks is None:
        return
    said = False
    for setting in SETTINGS:
        found = collect(plan, plan.ranks, results, setting)
        lines, variants = complete(found)
        if len(variants) < 3 or not lines:
            continue
        said = True
        yield from (f"### {setting.title}", "")
        yield from _ranked(found, lines, variants)
        if setting.within:
            yield from _bought(plan, plan.ranks, results)
        yield from _against(found, plan.ranks.against)
    if not said:
        yield from ("Nothing to rank: three variants with the same blocks are not there yet.", "")


def _ranked(found: Mapping[str, Mapping[Line, float]], lines: list[Line], variants: list[str]) -> Iterator[str]:
    ranking = _ranking(found, lines, variants)
    places = list(dict.fromkeys(line[0] for line in lines))
    rows = []
    for name, mean in ranking.means.items():
        column = ranking.ranks[:, variants.index(name)]
        own = [np.mean([r for r, line in zip(column, lines, strict=True) if line[0] == place]) for place in places]
        rows.append([name, f"{mean:.2f}", *(f"{each:.2f}" for each in own)])
        rows[-1] += [_over_seeds([(line[1], found[name][line]) for line in lines if line[0] == p]) for p in places]
    header = ["method", "mean rank", *(f"rank, {p}" for p in places), *(f"accuracy, {p}" for p in places)]
    yield from table(header, rows)
    alike = ranking.alike()
    words = ", ".join(alike[1:]) or "nothing"
    yield f"Friedman: χ² = {ranking.statistic:.1f}, p {_small(ranking.p)}, over {len(lines)} clients, of all seeds."
    yield f"Nemenyi's critical difference at 5 %: {ranking.difference:.2f}; within it of {alike[0]}: {words}."
    left = [name for name in found if name not in variants]
    yield from ([f"Not ranked, as a block has none of it: {', '.join(left)}."] if left else [])
    yield ""


def _small(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _over_seeds(values: Sequence[tuple[int, float]]) -> str:
    """Return the mean over clients, in %, as mean ± standard deviation over seeds."""
    seeds: dict[int, list[float]] = {}
    for seed, value in values:
        seeds.setdefault(seed, []).append(value)
    found = over_seeds([float(np.mean(each)) for each in seeds.values()])
    return found.text() if found else "–"


def _bought(plan: PaperPlan, ranks: Ranks, results: Mapping[str, Found]) -> Iterator[str]:
    """Yield a table of the rounds that a block's limit of bytes allows, and the MB per client that they take."""
    blocks = [block for block in plan.block if block.name in ranks.blocks and block.name in ranks.megabytes]
    rows: dict[str, dict[str, str]] = {}
    for block in blocks:
        for run in plan.runs(block.name):
            row = results.get(run.name)
            if row and (part := row.get("within")):
                each = part["megabytes"] / len(part["clients"]["name"])
                rows.setdefault(run.variant, {}).setdefault(block.name, f"{part['round']} ({each:.2f} MB)")
    there = [block.name for block in blocks if any(block.name in cells for cells in rows.values())]
    header = ["rounds (MB a client), first seed", *(f"{name}, at most {ranks.megabytes[name]:g} MB" for name in there)]
    yield from table(header, [[name, *(cells.get(each, "–") for each in there)] for name, cells in rows.items()])


def _against(found: Mapping[str, Mapping[Line, float]], others: Sequence[str]) -> Iterator[str]:
    """Yield a table of paired differences over the clients of all blocks."""
    others = [name for name in others if name in found]
    rows = []
    for name in found:
        cells = []
        for other in others:
            pair = paired(by_client(found[name]), by_client(found[other])) if name != other else None
            cells.append(pair.text(sign="+") if pair and pair.count > 1 else "–")
        rows.append([name, *cells])
    yield from table(["paired difference, points", *(f"− {name}" for name in others)], rows if others else [])


def by_client(lines: Mapping[Line, float]) -> dict[int, dict[str, float]]:
    """Return seed → block and client → accuracy."""
    found: dict[int, dict[str, float]] = {}
    for (place, seed, client), accuracy in lines.items():
        found.setdefault(seed, {})[f"{place}: {client}"] = accuracy
    return found
