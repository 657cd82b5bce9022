"""What a run or a comparison shows, in a sentence or two, each with the caveat that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sepal.report.sizes import size
from sepal.study.comparison import SEEDS, Comparison
from sepal.study.frontier import Standing, entries, frontier, within_noise
from sepal.study.results import DIRECTIONS, Variant

_THE_DIFFERENCES = ("The difference between them is", "The differences between neighbours are")


def headline(comparison: Comparison, cell: str) -> str:
    """Return what a cell's runs show: the one run's accuracy and cost, or which has the highest mean; "" if nothing."""
    variants = comparison.variants(cell)
    ranked = sorted(
        ((estimate.mean, variant) for variant in variants if (estimate := variant.accuracy("deployed"))),
        key=lambda ranked_pair: -comparison.measure.sign * ranked_pair[0],
    )
    if not ranked:
        return first_point(variants[0].first.stored.config) if variants else ""
    words = [*_of_one_run(ranked[0][1])] if len(variants) == 1 else [_of_several([variant for _, variant in ranked])]
    return " ".join([*words, *_caveats(variants)])


def first_point(config: Mapping[str, Any]) -> str:
    """Return when a run that has none yet gets its first point of all clients."""
    every, rounds = int(config.get("evaluate-every", 0)), int(config["rounds"])
    when = f"in round {every}" if 0 < every <= rounds else f"after the last round, {rounds}"
    return f"Not all clients have been evaluated yet: the first point comes {when} (evaluate-every = {every})."


def _of_one_run(variant: Variant) -> Iterator[str]:
    mean, low = variant.accuracy("deployed"), variant.accuracy("deployed", "bottom_decile")
    if mean and low:
        measure = variant.measure
        words = f"{variant.label}: {mean.with_unit(measure)} mean {measure.name} over clients, {low.with_unit(measure)}"
        yield f"{words} for the worst 10 %,"
        yield f"with {_sent(variant)} MB (deployed models: {variant.deployed})."


def _of_several(ranked: list[Variant]) -> str:
    """Return which variant has the best mean, and whether the next one is clearly behind it."""
    first, *others = ranked
    measure = first.measure
    high = "highest" if measure.higher else "lowest"
    mean = f"the {high} mean {measure.name}"
    if not others:
        return f"{first.label} has {mean} so far: {_figures(first)}."
    level = list(_level_with(first, others))
    if level:
        *most, last = [f"{variant.label} ({_figures(variant)})" for variant in level]
        words = f"{', '.join(most)} and {last} are level with {mean} of {len(ranked)}"
        return f"{words}{_few(first, others[0])}."
    second = others[0]
    if _few(first, second):
        return (
            f"{first.label} has {mean} of {len(ranked)} ({_figures(first)}), before {second.label} "
            f"({_figures(second)}){_few(first, second)}."
        )
    if _is_clear(first, second):
        above = "above" if measure.higher else "below"
        words = f"{first.label} is best of {len(ranked)}: {_figures(first)}"
        return f"{words}, clearly {above} {second.label} ({_figures(second)})."
    return (
        f"No clear best of {len(ranked)}: {first.label} has {mean} ({_figures(first)}), and {second.label} "
        f"({_figures(second)}) is within noise of it."
    )


def _figures(variant: Variant) -> str:
    """Return a variant's metric and cost: ``93.1 % with 1.31 MB``."""
    mean = variant.accuracy("deployed")
    measure = variant.measure
    value_text = f"{measure.number(mean.mean)} {measure.unit}".rstrip() if mean else ""
    return f"{value_text} with {_sent(variant)} MB"


def _is_clear(first: Variant, second: Variant) -> bool:
    difference = first.difference_by_seed(second, "deployed")
    return difference is not None and difference.spread is not None and abs(difference.mean) > difference.spread


def _few(first: Variant, second: Variant) -> str:
    """Return that there are too few seeds to tell two variants apart; "" if there are enough."""
    difference = first.difference_by_seed(second, "deployed")
    count = difference.count if difference else 0
    if count >= SEEDS:
        return ""
    seeds = {0: "no seed that both have", 1: "one seed"}.get(count, f"{count} seeds")
    return f"; {seeds} {'is' if count == 1 or not count else 'are'} too few to tell them apart"


def _level_with(first: Variant, others: list[Variant]) -> Iterator[Variant]:
    """Yield ``first`` and those of ``others`` whose mean is shown as the same number; nothing if none."""
    number = first.measure.number
    means = [(variant, number(mean.mean)) for variant in (first, *others) if (mean := variant.accuracy("deployed"))]
    same = [variant for variant, mean in means if mean == means[0][1]]
    yield from same if len(same) > 1 else ()


def _caveats(variants: list[Variant]) -> Iterator[str]:
    seeds = min(len(variant.results) for variant in variants)
    if seeds < SEEDS and len(variants) == 1:
        yield f"{'One seed' if seeds == 1 else f'{seeds} seeds'} only: another seed may give another figure."
    going = sum(result.stored.summary is None for variant in variants for result in variant.results)
    if going:
        count = sum(len(variant.results) for variant in variants)
        yield "The run has not ended." if count == 1 else f"{going} of {count} runs have not ended."
    rising = [variant.label for variant in variants if variant.rising]
    if len(rising) == len(variants) > 1:
        yield "None of them has converged."
    elif rising:
        yield f"Not converged: {', '.join(rising)}."


def frontier_sentence(comparison: Comparison, cell: str) -> str:
    """Return which variants are the best for their bytes, and which differences are noise; "" for a single variant."""
    variants = comparison.variants(cell)
    return on_frontier(frontier(entries(variants), comparison.measure)) if len(variants) > 1 else ""


def on_frontier(standings: Sequence[Standing]) -> str:
    """Return who is on the frontier: ``Best for their bytes: local (0 MB), fedpse (1.31 MB). …``; "" for one standing.

    Neighbours are two that follow each other on the frontier.

    Args:
        standings: Of :func:`~sepal.study.frontier.frontier`.
    """
    if len(standings) < 2:
        return ""
    best = [standing.entry for standing in standings if standing.frontier]
    names = ", ".join(f"{entry.label} ({size(entry.megabytes)} MB)" for entry in best)
    words = f"Best for {'their' if len(best) > 1 else 'its'} bytes: {names}."
    seeds = min(len(standing.entry.by_seed) for standing in standings)
    if seeds < SEEDS:
        return (
            f"{words} {'One seed is' if seeds == 1 else f'{seeds} seeds are'} too few to tell differences from noise."
        )
    pairs = [(better, worse) for better, worse in pairwise(best) if within_noise(better, worse)]
    if len(best) == 1:
        return words
    if len(pairs) == len(best) - 1:
        return f"{words} {_THE_DIFFERENCES[len(pairs) > 1]} within noise."
    if not pairs:
        return f"{words} {_THE_DIFFERENCES[len(best) > 2]} clear."
    noise = ", ".join(f"{better.label} and {worse.label}" for better, worse in pairs)
    return f"{words} Within noise of each other: {noise}."


def _sent(variant: Variant) -> str:
    return size(sum(variant.megabytes(way) for way in DIRECTIONS))
