"""The points of the frontier: what a client holds, or deploys, against the MB sent, for all runs of a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from referee.leaderboard.blocks import BUDGETS, Contender
from referee.leaderboard.measures import HOLDS, AccuracyMeasure, BlockResults
from sepal.report.markdown import table
from sepal.study.frontier import POINT, FrontierEntry, frontier
from sepal.study.statistics import interval

ALIKE = 0.05  # of MB: those that differ by no more are about the same


class FrontierPoint(NamedTuple):
    """An entry of a contender.

    Attributes:
        budget: Share of dense FedAvg's bytes that its rounds fit into; 0 for the block's number of rounds.
        rounds: The rounds that it ran.
    """

    contender: Contender
    budget: float
    rounds: int
    entry: FrontierEntry


def points_of(results: BlockResults, measure: AccuracyMeasure = HOLDS) -> Iterator[FrontierPoint]:
    """Yield all points of a block that are there, a run once; MB are those of all clients together."""
    fingerprints: set[str] = (
        set()
    )  # contenders whose trials chose what another has, and budgets that buy as many rounds
    for contender in results.block.everybody:
        for budget in (0.0, *(() if contender.tuned_as else BUDGETS)):
            rounds = results.design.bought(contender, budget) if budget else results.block.rounds
            values = results.values(contender, measure, budget) if rounds else np.empty(0)
            if rounds and values.size:
                fingerprint = str([(row.clients, row.spent) for row in results.runs(contender, budget).values()])
                if fingerprint not in fingerprints:
                    fingerprints.add(fingerprint)
                    yield FrontierPoint(contender, budget, rounds, _entry(results, contender, budget, rounds, measure))


def _entry(
    results: BlockResults, contender: Contender, budget: float, rounds: int, measure: AccuracyMeasure
) -> FrontierEntry:
    values, clients = results.values(contender, measure, budget), results.by_seed(contender, measure, budget)
    means = {seed: float(np.mean(list(by_client.values()))) for seed, by_client in clients.items()}
    label = contender.name + (f", {rounds} round{'s' * (rounds > 1)}" if budget else "")
    bar = interval(values, results.block.over) if len(values) > 1 else None
    ends = (max(bar.low, 0.0), min(bar.high, 1.0)) if bar else None
    figure = results.figure(contender, measure, budget)
    if figure and figure.rest:  # a bar would cross the whole picture
        label, ends = f"{label} ({len(figure.collapsed)} fell)", (figure.mean, figure.mean)
    return FrontierEntry(label, results.megabytes(contender, budget) or 0.0, means, interval=ends)


def frontier_table(results: BlockResults) -> Iterator[str]:
    """Yield the lines of a table of who is on the frontier, and of the least MB to within a point of the yardstick."""
    lines = []
    for position in frontier([point.entry for point in points_of(results)]):
        if position.frontier:
            entry = position.entry
            rival = f"within the noise of {position.rival}" if position.rival else "–"
            lines.append([entry.label, f"{entry.megabytes:.4g}", entry.value.text(), rival])
    if not lines:
        return
    yield from table(["on the frontier of what a client holds", "MB", "%", ""], lines)
    yield from _near(results)


def nearest(
    results: BlockResults, method: str = "", measure: AccuracyMeasure = HOLDS
) -> tuple[FrontierPoint, FrontierPoint] | None:
    """Return the cheapest point within a percentage point of the yardstick's accuracy, and the yardstick's own.

    The yardstick's own is that of all rounds. A contender with trials of its own is preferred to those without that
    send up to 5 % less.

    Args:
        results: A block.
        method: Only points of this method; by default of all that send something.
        measure: What is compared: what a client holds, or what is deployed.

    Returns:
        None without such a point.
    """
    points = [point for point in points_of(results, measure) if point.entry.megabytes]
    best = next((p for p in points if p.contender.name == results.block.yardstick and not p.budget), None)
    if best is None:
        return None
    candidates = [p for p in points if method in ("", p.contender.method or p.contender.name)]
    near = [p for p in candidates if p.entry.value.mean >= best.entry.value.mean - POINT - 1e-9]
    if not near:
        return None
    most = (1 + ALIKE) * min(p.entry.megabytes for p in near)
    least = (p for p in near if p.entry.megabytes <= most)
    return min(least, key=lambda p: (bool(p.contender.tuned_as), p.entry.megabytes)), best


def _near(results: BlockResults) -> Iterator[str]:
    pair = nearest(results)
    if pair is None:
        return
    least, best = (point.entry for point in pair)
    words = f"The least MB to within one point of {best.label} ({best.value.text()} %, {best.megabytes:.4g} MB)"
    yield from (f"{words}: {least.label}, {least.megabytes:.4g} MB ({least.value.text()} %).", "")
