"""The table that answers a comparison: each run's deployed models, its bytes, and how far it is behind the best."""

from __future__ import annotations

from typing import NamedTuple

from sepal.report.convergence import marked
from sepal.report.sizes import size
from sepal.report.text_tables import HOURS, NONE, TextTable, hours_text
from sepal.study.comparison import Comparison
from sepal.study.results import DIRECTIONS, Variant

BEST = "best"


class Answer(NamedTuple):
    """A table of a cell, the best run first, and which of its differences are clear.

    Attributes:
        text_table: Its last column is the difference to the best.
        clear: By row: whether the interval of the difference is over seeds and excludes 0.
        reading: How to read the table, in a sentence or two.
    """

    text_table: TextTable
    clear: list[bool]
    reading: str


def answer(comparison: Comparison, cell: str) -> Answer:
    """Return the table of a cell."""
    measure, over = comparison.measure, comparison.paired_over(cell)
    variants = comparison.variants(cell)
    ranked = sorted(variants, key=lambda variant: _rank(variant, measure.sign))
    best, rows, clear, timed = ranked[0], [], [], any(variant.profile for variant in ranked)
    for variant in ranked:
        mean, low = variant.accuracy("deployed"), variant.accuracy("deployed", "bottom_decile")
        between = variant.difference_by_seed if over == "seeds" else variant.difference
        difference = between(best, "deployed") if variant is not best else None
        behind = difference.shown(measure, "+") if difference else NONE
        sent = size(sum(map(variant.megabytes, DIRECTIONS)))
        rows.append(
            [
                marked(variant),
                mean.shown(measure) if mean else NONE,
                low.shown(measure) if low else NONE,
                sent,
                *([hours_text(variant.hours)] if timed else []),
                BEST if variant is best and mean and len(ranked) > 1 else behind,
            ]
        )
        spread = difference.spread if difference and over == "seeds" else None
        clear.append(difference is not None and spread is not None and abs(difference.mean) > spread)
    heads = (measure.axis, "deployed", "worst\n10 %", "MB", *([HOURS] if timed else []), f"difference to\n{best.label}")
    return Answer(TextTable(heads, rows), clear, _reading(over, ranked))


def _rank(variant: Variant, sign: float) -> float:
    mean = variant.accuracy("deployed")
    return -sign * mean.mean if mean else float("inf")


def _reading(over: str, ranked: list[Variant]) -> str:
    words = f"{ranked[0].measure.axis}, on test data, of the models that a user of a client predicts with"
    words += ", ± one standard deviation over seeds." if any(len(variant.results) > 1 for variant in ranked) else "."
    words += " MB: payloads of training, up and down, all clients."
    if names := dict.fromkeys(variant.profile.name for variant in ranked if variant.profile and variant.hours):
        words += f" Simulated hours: as they would be on devices of the profile {', '.join(names)}."
    if len(ranked) > 1:
        words += f" In brackets: the 95 % interval over {over}"
        words += "; bold where it excludes 0." if over == "seeds" else ", which is a guide and no test."
    return words[0].upper() + words[1:]
