"""How long a block takes, and still takes, from the seconds of its rows, or else from measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from experiments.leaderboard.blocks import BUDGETS, Contender
from experiments.leaderboard.design import TRIALS, Design

# Without a run yet: CPU seconds of a trial, measured with FedAvg + fine-tuning on one core of an Intel Xeon (2 cores)
MEASURED: Mapping[str, float] = {}
SLOWER = {"pfedgate": 3.0, "pa3dfl": 2.2, "fedrep": 2.5, "ditto": 1.6}  # than FedAvg + fine-tuning
REPORTED = 1.25  # a reported run's seconds per trial's: it is evaluated five times, and under shift


def seconds(design: Design, contender: Contender) -> float:
    """Return the CPU seconds of a trial: the mean of those that are there, or an estimate."""
    names, method = {contender.name, contender.tuned_as}, contender.method or contender.name
    trials = (row for row in design.rows.values() if row["kind"] == "trial" and row["contender"] in names)
    found = [row["cpu_seconds"] for row in trials if "error" not in row]
    return fmean(found) if found else MEASURED.get(design.block.name, 30.0) * SLOWER.get(method, 1.0)


def hours_whole(design: Design) -> float:
    """Return the estimated core-hours of a block from nothing."""
    return sum(_runs(design, contender) * seconds(design, contender) for contender in design.block.everybody) / 3600


def hours_left(design: Design) -> float:
    """Return the estimated core-hours until a block is whole."""
    done = sum(row["cpu_seconds"] for row in design.rows.values()) / 3600
    return max(0.0, hours_whole(design) - done) if next(design.needed(), None) else 0.0


def _runs(design: Design, contender: Contender) -> float:
    """Return the runs of a contender, in trials; where what a budget buys is not known, it buys its share of rounds."""
    seeds, rounds = len(design.block.seeds), design.block.rounds
    trials, bought = (0, 0.0) if contender.tuned_as else (TRIALS, 0.0)
    for budget in () if contender.tuned_as else BUDGETS:
        known = design.bought(contender, budget)
        share = budget if known is None else known / rounds
        bought += share if share < 1 else 0.0
    return trials + seeds * REPORTED * (1 + bought)
