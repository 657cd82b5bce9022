"""What a comparison's figures establish, in words.

A lead is only spoken of where an interval over seeds carries it: with fewer than three seeds, nothing is said to be
ahead or behind.
"""

from __future__ import annotations

from collections.abc import Iterator

from sepal.cli.comparison import Comparison, Group
from sepal.cli.results import difference_by_seed

FEW = {1: "one seed", 2: "two seeds"}


def conclusions(comparison: Comparison, cell: str) -> Iterator[str]:
    """Yield sentences about the first group of a cell and each other, in the views that they deploy.

    Args:
        comparison: The runs.
        cell: One of its cells.
    """
    groups = comparison.groups(cell)
    if len(groups) < 2:
        return
    first, *others = groups
    leads: dict[str, list[str]] = {"is ahead of": [], "is behind": [], "is not distinguished from": []}
    few: dict[int, list[Group]] = {}
    seeds = set()
    for other in others:
        found = difference_by_seed(first.results, other.results, first.deployed, other.deployed)
        if found is None:
            continue
        if found.spread is None:
            few.setdefault(found.count, []).append(other)
            continue
        seeds.add(found.count)
        carried = abs(found.mean) > found.spread
        kind = "is not distinguished from" if not carried else "is ahead of" if found.mean > 0 else "is behind"
        leads[kind].append(f"{other.label} ({found.text(sign='+')})")
    said = [f"{kind} {', '.join(names)}" for kind, names in leads.items() if names]
    if said:
        number = " or ".join(map(str, sorted(seeds)))
        yield f"{first.label} {', '.join(said)}. Points of deployed models, 95 % interval over {number} seeds."
    for count, rest in sorted(few.items()):
        pairs = ((group.label, group.accuracy(group.deployed)) for group in (first, *rest))
        figures = (f"{label} {found.text()} %" for label, found in pairs if found)
        yield f"{FEW[count].capitalize()}, so no lead is established: {', '.join(figures)} (deployed models)."
