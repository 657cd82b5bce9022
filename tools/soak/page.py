"""The page of a stored soak: its events, bytes a round of each file, and memory of each process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tools.growth.__main__ import SETTLED, growth_of_files

MARGIN = 1.5  # how much more a file may have than docs/sizing.md says: names, digits and figures of methods differ
LEAST = 3  # samples of a process from which growth is computed

PAGE = """# A year in one run

`make -C tools soak` on {date}: {rounds} rounds of Ditto with {clients} clients, with TLS and keys, each with data of
its own, in {seconds:,} s at a load of {load_before} at the beginning and {load_after} at the end (two cores, shared
with other work).{note}
`python -m tools.soak --store` writes this page and [soak.json](soak.json); without `--rounds`, it runs 800.

| after round | until round | seconds | event | what happened |
|---|---|---|---|---|
{events}

At the end, {verdict}: each round is recorded once, with each client; no client has ended or has lost its state; the
change of the data, the pause and the full disk stand in the records and logs; what grows by the round has the size that
[the page on sizes](../../docs/sizing.md) names, within a factor of {margin}.

## Files
From round {start} to round {end}; what is a client's is of one client.

| file | |
|---|---|
{files}

## Memory
Of each kind, the process that lived longest; the events end most of them. Growth is the slope of the line with the
least squares through all samples of that process but its first; they are {every} rounds apart.

| process | rounds | largest | growth |
|---|---|---|---|
{memory}
"""


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a result of :mod:`tools.soak`."""
    load_before, load_after = result["load"]
    settled = settled_samples(result)
    events = [
        f"| {row['after_round']} | {row['until_round']} | {row['seconds']} | {row['event']} | {row['what']} |"
        for row in result["events"]
    ]
    problems = "; ".join(result["problems"])
    return PAGE.format(
        note=f" {result['note']}" if "note" in result else "",
        date=result["date"],
        rounds=result["rounds"],
        clients=result["clients"],
        seconds=result["seconds"],
        load_before=load_before,
        load_after=load_after,
        events="\n".join(events),
        verdict=f"wrong was: {problems}" if problems else "all was as it should be",
        margin=MARGIN,
        start=settled[0]["round"],
        end=settled[-1]["round"],
        files="\n".join(file_rows(settled)),
        every=result["every"],
        memory="\n".join(memory_rows(result["samples"])),
    )


def settled_samples(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a run's samples after its first 100 rounds, or in a short run after a quarter of it."""
    after = min(SETTLED, result["rounds"] // 4)
    return [sample for sample in result["samples"] if sample["round"] >= after]


def file_rows(samples: list[dict[str, Any]]) -> list[str]:
    """Return a row for each kind of file that grows or is bounded."""
    return [
        f"| `{kind}` | {figures['per_round']:,.0f} bytes a round |"
        if "per_round" in figures
        else f"| `{kind}` | at most {figures['largest']:,} bytes |"
        for kind, figures in growth_of_files(samples).items()
    ]


def memory_rows(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a row for each kind of process: rounds and memory of the one that lived longest."""
    by_process: dict[str, list[tuple[int, int]]] = {}
    for sample in samples:
        for process, size in sample["memory"].items():
            by_process.setdefault(process, []).append((sample["round"], size))
    rows = []
    for kind, processes in groupby(sorted(by_process), key=lambda process: process.rpartition(" ")[0]):
        points = max((by_process[process] for process in processes), key=len)
        largest = f"{max(size for _, size in points) / 1e6:.0f} MB"
        grown = f"{slope(points[1:]) / 1e4:+.2f} MB per 100 rounds" if len(points) > LEAST else "too short"
        rows.append(f"| {kind} | {points[0][0]} to {points[-1][0]} | {largest} | {grown} |")
    return rows


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Return by how much the second number grows for each of the first: the line with the least squares."""
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    above = sum((x - x_mean) * (y - y_mean) for x, y in points)
    return above / sum((x - x_mean) ** 2 for x, _ in points)
