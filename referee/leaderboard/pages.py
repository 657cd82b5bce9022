"""Makes ``referee/results/leaderboard.md``, its tables and pictures, and README's parts from the stored rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from referee.checkout import RESULTS, render
from referee.leaderboard import density, forest, overview
from referee.leaderboard.blocks import LAST_RATE, NAMES, TUNING, read_block, text
from referee.leaderboard.design import TRIALS, Design
from referee.leaderboard.estimate import hours_left, hours_whole
from referee.leaderboard.findings import NAMES as METHODS
from referee.leaderboard.findings import SPARSITY, Findings
from referee.leaderboard.measures import (
    HOLDS,
    LEAST_CLIENTS,
    LEAST_SEEDS,
    NEWCOMER,
    AccuracyMeasure,
    BlockResults,
    Key,
    corrected,
)
from referee.leaderboard.runs import RERUNS, read
from referee.leaderboard.tables import block_tables
from referee.marked_parts import README, rewritten
from sepal.report.markdown import table
from sepal.report.text_tables import NONE
from sepal.storage.files import write_atomically
from sepal.study.record import RunRecord
from sepal.study.statistics import LEVEL, Interval

PAGE, TABLES = RESULTS / "leaderboard.md", RESULTS / "tables" / "leaderboard.md"
OVERVIEW, BLOCKS, CAPACITY, DENSITY = (
    PAGE.with_name(f"leaderboard{name}.svg") for name in ("", "-blocks", "-capacity", "-density")
)
UNEQUAL_BLOCK = "e"
READING = ("What a client holds: points from fine-tuning, 95 % intervals.", "Bytes: in per cent of FedAvg's.")
READING_UNEQUAL = (
    "Points from FedAvg + fine-tuning of the smallest width.",
    "95 % intervals. Bytes: in per cent of FedAvg's.",
)
Family: TypeAlias = Mapping[Key, tuple[Interval, float | None]]


def write_pages() -> list[Path]:
    """Write the page, its pictures and tables, and README's parts; return their paths."""
    counts = {name: len(read(name)) for name in (*NAMES, RERUNS)}
    all_results, reruns = measured(counts)
    texts = {**texts_of(counts, all_results, reruns), **pictures(all_results)}
    for path, whole in texts.items():
        write_atomically(path, whole.encode())
    return list(texts)


def pictures(all_results: Sequence[BlockResults]) -> dict[Path, str]:
    """Return path → SVG of the pictures whose blocks are whole; that needs the extra ``report``."""
    findings = Findings(all_results)
    if not findings.compared:
        return {}
    unequal = [results for results in all_results if results.finished and results.block.name == UNEQUAL_BLOCK]
    drawings = {
        OVERVIEW: overview.picture(all_results),
        BLOCKS: forest.picture(findings.compared, findings.ahead, READING),
        CAPACITY: forest.picture(unequal, "Clients of unequal capacity, by what a client holds", READING_UNEQUAL),
        DENSITY: density.picture(findings.compared),
    }
    return {path: drawn for path, drawn in drawings.items() if drawn}


def counted(page: str) -> dict[str, int]:
    """Return how many rows of each file a page was made from."""
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", page.splitlines()[1])}


def pages() -> dict[Path, str]:
    """Return path → text of the page, its tables, and README once its parts can be made, of as many rows as it had.

    Files grow while runs go on, and rows are only ever added.
    """
    counts = counted(PAGE.read_text(encoding="utf-8"))
    return texts_of(counts, *measured(counts))


def measured(counts: Mapping[str, int]) -> tuple[list[BlockResults], list[RunRecord]]:
    """Return the blocks' figures from the rows that count, and the records of reruns."""
    rows = {name: read(name)[: counts[name]] for name in counts}
    return [BlockResults(Design(read_block(name), rows[name])) for name in NAMES], list(rows[RERUNS])


def texts_of(
    counts: Mapping[str, int], all_results: Sequence[BlockResults], reruns: Sequence[RunRecord]
) -> dict[Path, str]:
    """Return path → text of the page, its tables and README, of figures.

    Args:
        counts: File → how many of its rows count.
        all_results: The blocks' figures.
        reruns: The records of second runs.
    """
    findings = Findings(all_results)
    some = [
        results for results in all_results if any(results.runs(contender) for contender in results.block.contenders)
    ]
    family, to_dense = corrected(all_results), corrected(all_results, to_dense=True)
    words = {"f": findings, "names": METHODS, "sparsity": SPARSITY, "counts": counts}
    page = render(
        "leaderboard.md",
        **words,
        held="\n".join(_headline(some, HOLDS, family, to_dense)) if some else "",
        newcomers="\n".join(_headline(some, NEWCOMER, family)) if some else "",
        papers="\n".join(density.papers_table(findings.compared)) if findings.compared else "",
        missing="\n".join(_missing(all_results)),
        spent=sum(row.cpu_seconds for results in all_results for row in results.design.counted()) / 3600,
        whole={results.block.name: hours_whole(results.design) for results in all_results},
        reruns=_reruns(reruns),
        for_all=_keys_for_all(all_results),
        widened=_widened(all_results),
        **{"trials": TRIALS, "tuning": TUNING, "last_rate": LAST_RATE},
        **{"least_seeds": LEAST_SEEDS, "least_clients": LEAST_CLIENTS},
    )
    tables = [line for results in all_results for line in block_tables(results)]
    texts = {PAGE: page, TABLES: render("leaderboard-tables.md", counts=counts, tables="\n".join(tables))}
    if findings.har:
        lines = {name: render(f"readme-{name}.md", **words).rstrip("\n").split("\n") for name in ("table", "which")}
        texts[README] = rewritten(README.read_text(encoding="utf-8"), lines)
    return texts


def _keys_for_all(all_results: Sequence[BlockResults]) -> list[tuple[str, str, str]]:
    """Return the further keys that blocks try for everyone: key, values, and the blocks in words."""
    tried: dict[tuple[str, str], list[str]] = {}
    for results in all_results:
        for key, values in results.block.also.items():
            tried.setdefault((f"`{key}`", _spelled(values)), []).append(results.block.name)
    return [(*pair, _blocks(names)) for pair, names in tried.items()]


def _widened(all_results: Sequence[BlockResults]) -> list[tuple[str, str, str]]:
    """Return whose further keys are tried: the method's name, its keys with their values, and the blocks in words."""
    tried: dict[str, list[str]] = {}
    variants = {}
    for results in all_results:
        for name in results.block.widened:
            also = results.named(name).also
            variants[name] = ", ".join(f"`{key}` ({_spelled(values)})" for key, values in also.items())
            tried.setdefault(name, []).append(results.block.name)
    return [(METHODS.get(name, name), variants[name], _blocks(names)) for name, names in tried.items()]


def _spelled(values: Iterable[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _blocks(names: Sequence[str]) -> str:
    return f"in block {names[0]}" if len(names) == 1 else f"in blocks {', '.join(names[:-1])} and {names[-1]}"


def _headline(
    all_results: Sequence[BlockResults], measure: AccuracyMeasure, family: Family, to_dense: Family | None = None
) -> Iterator[str]:
    """Yield the table of a view: a row for each contender, a column for each block."""
    names = list(dict.fromkeys(contender.name for results in all_results for contender in results.block.contenders))
    lines = []
    for name in names:
        cells = []
        for results in all_results:
            contender = next((member for member in results.block.contenders if member.name == name), None)
            figure = results.figure(contender, measure) if contender else None
            words = figure.words() if figure else (results.failed(contender) if contender else "") or NONE
            if figure and figure.count < len(results.block.seeds):
                words += f" ({figure.count} of {len(results.block.seeds)} seeds)"
            families = [family] if to_dense is None else [family, to_dense]
            fell = bool(contender and results.collapsed(contender))
            differences = [
                _difference(tested_family.get((results.block.name, name, measure)), fell) for tested_family in families
            ]
            cells.append("; ".join([words, *differences]) if set(differences) != {NONE} else words)
        lines.append([name, *cells])
    yield from (f"## {measure.title.capitalize()}, equal rounds", "")
    header = "%; points from FedAvg + fine-tuning" + "; from FedAvg" * (to_dense is not None)
    yield from table([header, *(f"{results.block.name}: {results.block.title}" for results in all_results)], lines)
    tests = sum(p is not None for _, p in family.values())
    tested = any(p is not None for (_, _, key_measure), (_, p) in family.items() if key_measure is measure)
    planned = sum(len(results.block.tested) for results in all_results)
    bold = f"Bold: other than 0 at the 5 % level after Holm's correction; {tests} of {planned} planned tests have run."
    bold = bold if tested else "Intervals only: no p-values, and nothing is bold."
    if any(results.failed(contender) for results in all_results for contender in results.block.contenders):
        yield "Seeds without a figure: another seed's run ended with an error, and the rest would flatter."
        yield ""
    yield from (bold if family else "No difference yet: that needs all seeds of a contender and of FedAvg-FT.", "")


def _difference(corrected_difference: tuple[Interval, float | None] | None, fell: bool) -> str:
    star = (
        "**"
        if corrected_difference and corrected_difference[1] is not None and corrected_difference[1] < LEVEL and not fell
        else ""
    )
    return f"{star}{corrected_difference[0].text()}{star}" if corrected_difference else NONE


def _missing(all_results: Sequence[BlockResults]) -> Iterator[str]:
    lines = []
    for results in all_results:
        design, block, counted = results.design, results.block, results.design.counted()
        kinds = Counter(row.labels["kind"] for row in counted)
        failed = sum(bool(row.error) and row.labels["kind"] != "trial" for row in counted)
        configs = [text(run.config) for run in design.planned_runs() if run.kind == "rounds"]
        twice = len(configs) - len(set(configs))  # runs of one beside that are the same as another's
        trials, seeds = sum(map(design.tried, block.contenders)), len(block.everybody) * len(block.seeds) - twice
        cells = [f"{kinds['trial']} of {trials}", f"{kinds['rounds']} of {seeds}", str(kinds["bytes"]), str(failed)]
        cells.append(f"{hours_left(design):.1f} of {hours_whole(design):.1f}")
        lines.append([f"{block.name}: {block.title}", block.reduced, *cells])
    header = ["block", "less than the defaults", "trials", "runs of all rounds", "runs at equal bytes"]
    yield from table([*header, "ended by an error, not trials", "core-hours left, about"], lines)


def _reruns(lines: Sequence[RunRecord]) -> dict[str, Any]:
    """Return of how many reruns, how much later and on which machines how many gave the same weights."""
    if not lines:
        return {}
    machines = sorted({machine for line in lines for machine in (line.figures["first"]["machine"], line.machine)})
    return {
        "same": sum(line.figures["same"] for line in lines),
        "count": len(lines),
        "machines": f"one kind of CPU ({machines[0]})" if len(machines) == 1 else f"{len(machines)} kinds of CPU",
        "later": max(_hours(line.figures["first"]["written"], line.written) for line in lines),
        "blocks": sorted(Counter(line.labels["block"] for line in lines).items()),
    }


def _hours(first: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(first)).total_seconds() / 3600
