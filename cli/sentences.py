"""What a run or a comparison shows, in a sentence or two, each with the caveat that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sepal.cli.sizes import size
from sepal.protocol.tasks.scoring import ACCURACY, Measure
from sepal.study.comparison import SEEDS, Comparison
from sepal.study.frontier import Place, entries, frontier
from sepal.study.results import DIRECTIONS, Variant


def headline(comparison: Comparison, cell: str) -> str:
    """Return what a cell's runs show: the one run's accuracy and cost, or which has the highest mean; "" if nothing."""
    variants = comparison.variants(cell)
    ranked = sorted(
        ((found.mean, variant) for variant in variants if (found := variant.accuracy("deployed"))),
        key=lambda each: -comparison.measure.sign * each[0],
    )
    if not ranked:
        return first_point(variants[0].first.stored.config) if variants else ""
    words = list(_one(ranked[0][1]) if len(variants) == 1 else _several([variant for _, variant in ranked]))
    return " ".join([*words, *_caveats(variants)])


def first_point(config: Mapping[str, Any]) -> str:
    """Return when a run that has none yet gets its first point of all clients."""
    every, rounds = int(config.get("evaluate-every", 0)), int(config["rounds"])
    when = f"in round {every}" if 0 < every <= rounds else f"after the last round, {rounds}"
    return f"Not all clients have been evaluated yet: the first point comes {when} (evaluate-every = {every})."


def _one(variant: Variant) -> Iterator[str]:
    mean, low = variant.accuracy("deployed"), variant.accuracy("deployed", "bottom_decile")
    if mean and low:
        measure = variant.measure
        worst = "lowest" if measure.higher else "worst"
        words = f"{variant.label}: {mean.told(measure)} mean {measure.name} over clients, {low.told(measure)}"
        yield f"{words} for the {worst} tenth,"
        yield f"with {_sent(variant)} MB (deployed models: {variant.deployed})."


def _several(ranked: list[Variant]) -> Iterator[str]:
    first, *others = ranked
    top = first.accuracy("deployed")
    if top is None:
        return
    measure = first.measure
    best = f"{'Highest' if measure.higher else 'Lowest'} mean {measure.name} of {len(ranked)}"
    if level := list(_level_with(first, others)):
        *most, last = [f"{variant.label} ({told} with {_sent(variant)} MB)" for variant, told in level]
        yield f"{best}: {', '.join(most)} and {last} are level (deployed models)."
        found = first.difference_by_seed(others[0], "deployed")
        if len(level) == 2 and found and found.spread is not None and found.count >= SEEDS:
            points = f"{found.shown(measure, '+')} {measure.points}"
            yield f"Their difference is {points}, 95 % interval over {found.count} seeds."
        return
    yield f"{best}: {first.label}, {top.told(measure)} with {_sent(first)} MB"
    if others and (second := others[0].accuracy("deployed")):
        yield f"(deployed models); next {others[0].label}, {second.told(measure)} with {_sent(others[0])} MB."
        found = first.difference_by_seed(others[0], "deployed")
        if found and found.spread is not None and found.count >= SEEDS:
            clear = "a clear difference" if abs(found.mean) > found.spread else "no clear difference"
            points = f"{found.shown(measure, '+')} {measure.points}"
            yield f"That is {clear}: {points}, 95 % interval over {found.count} seeds."
    else:
        yield "(deployed models)."


def _level_with(first: Variant, others: list[Variant]) -> Iterator[tuple[Variant, str]]:
    """Yield ``first`` and those of ``others`` whose mean is shown as the same number, with it; nothing if none."""
    measure = first.measure
    means = [(variant, mean) for variant in (first, *others) if (mean := variant.accuracy("deployed"))]
    same = [
        (v, mean.told(measure)) for v, mean in means if measure.number(mean.mean) == measure.number(means[0][1].mean)
    ]
    yield from same if len(same) > 1 else ()


def _caveats(variants: list[Variant]) -> Iterator[str]:
    seeds = min(len(variant.results) for variant in variants)
    if seeds < SEEDS:
        what = "the order may be chance" if len(variants) > 1 else "another seed may give another figure"
        yield f"{'One seed' if seeds == 1 else f'{seeds} seeds'} only: {what}."
    going = sum(result.stored.summary is None for variant in variants for result in variant.results)
    if going:
        count = sum(len(variant.results) for variant in variants)
        yield "The run has not ended." if count == 1 else f"{going} of {count} runs have not ended."
    rising = [variant.label for variant in variants if variant.rising]
    if rising:
        yield f"Not converged: {', '.join(rising)}."


def frontier_sentence(comparison: Comparison, cell: str) -> str:
    """Return which variants are on the frontier, and which within the noise; "" for a single one."""
    variants = comparison.variants(cell)
    return on_frontier(frontier(entries(variants), comparison.measure), comparison.measure) if len(variants) > 1 else ""


def on_frontier(places: Sequence[Place], measure: Measure = ACCURACY, models: str = "deployed models") -> str:
    """Return which places are on the frontier: ``On the frontier …: local (86.1 %, 0 MB), fedpse (…)``; "" for one.

    Args:
        places: Of :func:`~sepal.study.frontier.frontier`.
        measure: The metric.
        models: Whose metric it is.
    """
    if len(places) < 2:
        return ""
    on = (
        f"{place.entry.label} ({place.entry.value.told(measure)}, {size(place.entry.megabytes)} MB"
        + (f"; within the noise of {place.rival})" if place.rival else ")")
        for place in places
        if place.frontier
    )
    seeds = min(len(place.entry.by_seed) for place in places)
    few = "" if seeds >= SEEDS else f"; {'one seed' if seeds == 1 else f'{seeds} seeds'}: too few to tell from noise"
    good = "high" if measure.higher else "low"
    return f"On the frontier, where no other has as {good} a mean with fewer MB: {', '.join(on)} ({models}{few})."


def _sent(variant: Variant) -> str:
    return size(sum(variant.megabytes(way) for way in DIRECTIONS))
