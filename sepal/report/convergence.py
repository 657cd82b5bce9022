"""Whether a comparison's runs have converged: a mark on labels, and lines about the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sepal.study.results import Variant
from sepal.study.statistics import LEAST_POINTS, rise

MARK = "*"  # of a label: not converged


def marked(variant: Variant) -> str:
    """Return a variant's label, with a mark if it has not converged."""
    return f"{variant.label} {MARK}" if variant.rising else variant.label


def convergence(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield which variants have not converged, and for which there is no verdict; nothing if all have."""
    yield from filter(None, (_rising(variants), _not_judged(variants)))


def _rising(variants: Sequence[Variant]) -> str:
    """Return a line that names the variants whose curves are still rising (:attr:`Variant.rising`), or nothing."""
    rises = [(variant.label, variant.rising) for variant in variants]
    measure = variants[0].measure
    step = "+" if measure.higher else "-"
    words = [
        f"{label} ({step}{measure.number(rise_of_label.mean)} {measure.points} in {rise_of_label.points} rounds)"
        for label, rise_of_label in rises
        if rise_of_label
    ]
    how = "rising" if measure.higher else "falling"
    compared = "the mean of a method's last rounds, compared with that of as many rounds before"
    return f"{MARK} not converged, still {how} at the last round: {', '.join(words)}; {compared}" if words else ""


def _not_judged(variants: Sequence[Variant]) -> str:
    """Return a line about the variants of which all runs that have ended have too few points, or nothing."""
    short = [variant.label for variant in variants if _too_short(variant)]
    few = f"fewer than {2 * LEAST_POINTS} evaluations to compare"
    if len(short) == len(variants):
        return f"The curves are too short to say whether they have converged: {few}."
    return f"Too short a curve to say whether it has converged, with {few}: {', '.join(short)}." if short else ""


def _too_short(variant: Variant) -> bool:
    ended = [result.stored.lines for result in variant.results if result.stored.summary is not None]
    return bool(ended) and not any(rise(lines, variant.deployed) for lines in ended)
