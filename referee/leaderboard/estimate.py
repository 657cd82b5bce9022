"""How long a block takes, and still takes, from the seconds of its rows, or else from measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from referee.leaderboard.blocks import BUDGETS, Contender
from referee.leaderboard.design import Design

# Without a trial yet: CPU seconds of a dense one, measured on one core of two that others used, too
MEASURED: Mapping[str, float] = {"a": 14.0, "b": 16.0, "c": 35.0, "d": 22.0, "e": 24.0}
FACTORS: Mapping[str, float] = {"pfedgate": 2.4, "pa3dfl": 2.1, "fedrep": 2.2, "ditto": 1.5}
NARROW = 0.5
REPORTED = 1.4  # a reported run's seconds per trial's: it is evaluated five times, and under shift


def seconds(design: Design, contender: Contender) -> float:
    """Return the CPU seconds of a trial: the mean of those that are there, or an estimate."""
    names, method = {contender.name, contender.tuned_as}, contender.method or contender.name
    trials = (row for row in design.rows.values() if row.labels["kind"] == "trial" and row.labels["contender"] in names)
    durations = [row.cpu_seconds for row in trials if not row.error]
    guess = FACTORS.get(method, 1.0) * (NARROW if "width" in contender.keys else 1.0)
    return fmean(durations) if durations else MEASURED.get(design.block.name, 30.0) * guess


def hours_whole(design: Design) -> float:
    """Return the estimated core-hours of a block from nothing."""
    return sum(_runs(design, contender) * seconds(design, contender) for contender in design.block.everybody) / 3600


def hours_left(design: Design) -> float:
    """Return the estimated core-hours until a block is whole."""
    hours_spent = sum(row.cpu_seconds for row in design.counted()) / 3600
    return max(0.0, hours_whole(design) - hours_spent) if next(design.needed(), None) else 0.0


def _runs(design: Design, contender: Contender) -> float:
    """Return the runs of a contender, in trials; where what a budget buys is not known, it buys its share of rounds."""
    seeds, rounds = len(design.block.seeds), design.block.rounds
    bought = 0.0
    for budget in () if contender.tuned_as else BUDGETS:
        rounds_bought = design.bought(contender, budget)
        share = budget if rounds_bought is None else rounds_bought / rounds
        bought += share if share < 1 else 0.0
    return design.tried(contender) + seeds * REPORTED * (1 + bought)
