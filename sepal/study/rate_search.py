"""``lr = "search"``: a short search of the learning rate on validation data before a run in process.

Trials are the run itself with fewer rounds, its seed and its split, and with rates around the one that is calibrated,
in steps of four. They are judged by the validation data of the model that the method deploys; test data is never looked
at. While the best rate is the smallest or the largest, the next one is tried, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sepal.config.run import SEARCH
from sepal.errors import ConfigError, SepalError, one_line
from sepal.operation.repeats import told_once
from sepal.study.search import choose, two_digits
from sepal.tasks.scoring import Measure

STEP, STEPS = 4.0, (1, 0, -1, 2, -2)  # rates: the calibrated one times STEP to these powers
MOST_TRIALS = 9
MOST_ROUNDS = 10
# A trial is judged by its last round, so it is evaluated there alone and its final models are that round's.
_OF_A_TRIAL: Mapping[str, Any] = {
    "stop-after": 0,
    "evaluate-every": 0,
    "final-model": "last",
    "on-divergence": "stop",
    "state-dir": "",
}


class Rate(NamedTuple):
    """A rate and how it was chosen, as a line to show."""

    lr: float
    note: str


@told_once()
def searched_rate(flat: Mapping[str, Any], workers: int = 0) -> Rate:
    """Return the rate that a search chooses for a run.

    Args:
        flat: The run's flat keys; ``lr`` is "search".
        workers: Worker processes; 0: the engine's default.

    Raises:
        ConfigError: The run has no validation data, or noise whose allowance the trials would exceed.
        SepalError: A key is invalid, or every trial failed.
    """
    from sepal.engines.in_process import check_clients
    from sepal.strategies.assembly import assemble

    assembly = assemble({**flat, "lr": 0.0})
    config, view = assembly.setup.config, assembly.method.deployed
    middle = float(config.lr)
    if not config.split.validation:
        raise ConfigError("lr", "a number with split.validation = 0: rates are chosen by validation data", SEARCH)
    if config.privacy.noise:
        raise ConfigError("lr", "a number with privacy.noise, which does not cover the trials of a search", SEARCH)
    check_clients(config)
    rounds = min(MOST_ROUNDS, config.rounds)
    trial = {**flat, **_OF_A_TRIAL, "rounds": rounds}
    measure = assembly.setup.task.scoring.measure
    values: dict[int, float | None] = {}
    failure: SepalError | None = None
    powers = list(STEPS)
    while powers:
        power = powers.pop(0)
        try:
            values[power] = _validation({**trial, "lr": _rate(middle, power)}, view, workers)
        except SepalError as reason:  # a rate at which training diverges
            values[power], failure = None, reason
        best = _best(values, measure)
        if not powers and best is not None and len(values) < MOST_TRIALS:
            edge = {min(values): best - 1, max(values): best + 1}.get(best)
            powers += [] if edge is None else [edge]
    if best is None:
        got = one_line(str(failure) if failure else "none", 200)
        raise ConfigError("lr", f"a search in which one of {len(values)} trials has a validation {measure.name}", got)
    rates = ((_rate(middle, power), values[power]) for power in sorted(values))
    words = ", ".join(f"{rate:g}: {'-' if value is None else measure.text(value)}" for rate, value in rates)
    chosen = _rate(middle, best)
    return Rate(chosen, f"lr = {chosen:g}: searched in {rounds} rounds, {measure.name} on validation data: {words}")


def _rate(middle: float, power: int) -> float:
    return two_digits(middle * STEP**power)


def _best(values: Mapping[int, float | None], measure: Measure) -> int | None:
    """Return the power with the best value, in a tie the nearest to 0; None without a value."""
    signed = {power: measure.sign * value for power, value in values.items() if value is not None}
    return choose(list(signed), signed.__getitem__, abs) if signed else None


def _validation(flat: Mapping[str, Any], view: str, workers: int) -> float | None:
    """Run a trial in a directory that is then removed, and return its value on validation data."""
    from sepal.study.run import execute, prepare
    from sepal.study.search import validation

    with tempfile.TemporaryDirectory(prefix="sepal-") as scratch:
        run = prepare({**flat, "name": "trial", "out": scratch}, Path(scratch), workers)
        execute(run, workers)
        return validation(run.path, view)
