"""What a partition leaves out, with counts, in lines that are shown when a run starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sepal.data.examples import Index, Source
from sepal.data.spec import DataSpec
from sepal.data.splitting import ClientRows, has_own_test

PARTS = ("training", "validation", "test")


def lines(spec: DataSpec, source: Source, clients: Sequence[ClientRows]) -> tuple[str, ...]:
    """Return a line for the examples that are with no client, and one for the clients that lack a part; none if none.

    Args:
        spec: Partition and split.
        source: The data.
        clients: Every client's rows.
    """
    dealt_rows = np.unique(np.concatenate([rows for client in clients for rows in client]))
    rest = np.setdiff1d(np.arange(len(source.y)), dealt_rows)
    notes = []
    if len(rest):
        reasons = _reasons(spec, source, rest)
        notes.append(f"partition: {len(rest):,} of {len(source.y):,} examples are with no client: {'; '.join(reasons)}")
    lacking = {
        part: sum(not len(client[index]) for client in clients)
        for index, part in enumerate(PARTS)
        if part != "validation" or spec.split.validation
    }
    words = [f"{count} without {part} examples" for part, count in lacking.items() if count]
    if words:
        notes.append(f"clients: of {len(clients)}, {', '.join(words)}: no figure counts them there")
    return tuple(notes)


def _reasons(spec: DataSpec, source: Source, rest: Index) -> list[str]:
    """Return why the examples in the rows ``rest`` are with no client, with counts."""
    reasons, others = [], len(rest)
    if spec.partition.name == "natural" and source.natural is not None:
        dealt_rows = np.setdiff1d(np.arange(len(source.y)), rest)
        dealt = source.natural[: source.train_count if has_own_test(spec, source) else len(source.y)]
        counts = dict(zip(*np.unique(dealt, return_counts=True), strict=True))
        owners, examples = np.unique(source.natural[rest], return_counts=True)
        idle = ~np.isin(owners, source.natural[dealt_rows])
        few = idle & np.array([counts.get(owner, 0) < spec.partition.min_examples for owner in owners], bool)
        for chosen, why in (
            (few, f"with fewer than {spec.partition.min_examples} (partition.min-examples)"),
            (idle & ~few, f"beyond clients = {spec.clients}"),
        ):
            if chosen.any():
                reasons.append(f"{examples[chosen].sum():,} of {chosen.sum():,} people {why}")
                others -= int(examples[chosen].sum())
    return [*reasons, *([f"{others:,} that the rules of partition.* and split.* leave over"] if others else ())]
