"""``make -C tools artifact``: run what shows the claims, and print what was claimed and what came out.

``ONLY="wire killed"`` runs some of them. Rows go to tools/results/artifact.ndjson, from which ``--pages`` writes
docs/artifact.md, and with the other stored rows paper/paper.md. ``--uncovered`` lists README's numbers without a claim.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sepal.data.locations import data_directory
from sepal.storage.files import write_atomically
from tools.artifact import stored
from tools.artifact.claims import CLAIMS, LONG, Claim
from tools.artifact.paper import PAPER, paper
from tools.artifact.stored import RESULTS, ROOT
from tools.bench.__main__ import machine
from tools.side_by_side import page as side_by_side

PAGE, STORED = ROOT / "docs" / "artifact.md", RESULTS / "artifact.ndjson"
SIDES = RESULTS / "side-by-side.md"
ROUNDING = 1e-9  # of means that are added in another order
MOST = 60.0  # minutes of a claim that is run
NUMBER = re.compile(r"(?<![\w.`/-])[+−-]?\d[\d,.]*(?:[–-]\d[\d.]*)?(?: ?(?:%|±|MB|points|bytes|times)| [a-z]{4,})?")
CODE = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.M | re.S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments ask for; a claim that differs is exit code 1."""
    parser = argparse.ArgumentParser(prog="make -C tools artifact", description="from claim to command")
    parser.add_argument("only", nargs="*", metavar="NAME", help=f"of {', '.join(claim.name for claim in CLAIMS)}")
    parser.add_argument("--pages", action="store_true", help="write docs/artifact.md and paper/paper.md")
    parser.add_argument("--uncovered", action="store_true", help="list README's numbers that no claim covers")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.only) - {claim.name for claim in CLAIMS}):
        parser.error(f"expected names of claims, got {unknown[0]}")
    if options.pages:
        for path, text in written().items():
            write_atomically(path, text.encode())
            print(f"written to {path}")
    elif options.uncovered:
        print("\n".join(uncovered((ROOT / "README.md").read_text(encoding="utf-8"))))
    else:
        sys.exit(run([claim for claim in CLAIMS if not options.only or claim.name in options.only]))


def written() -> dict[Path, str]:
    """Return path → text of the pages that follow from the rows."""
    return {PAGE: page(stored_rows()), PAPER: paper(), SIDES: side_by_side.page(stored.side_by_side())}


def run(claims: Sequence[Claim]) -> int:
    """Measure the claims, print and store a row for each; return the exit code."""
    rows, table = stored_rows(), Table("claim", "claimed", "interval", "got", "s", "")
    differ = 0
    for claim in claims:
        if claim.data and not (data_directory("") / claim.data).exists():
            print(f"{claim.name} is skipped: SEPAL_DATA has no {claim.data}", file=sys.stderr)
            continue
        expected, low, high = claim.expected()
        begun = time.monotonic()
        got = claim.measure()
        seconds = round(time.monotonic() - begun, 1)
        holds = low - ROUNDING <= got <= high + ROUNDING
        differ += not holds
        facts = {"expected": expected, "low": low, "high": high, "got": got, "holds": holds, "seconds": seconds}
        rows[claim.name] = {"claim": claim.name, **facts, "load": os.getloadavg()[0], "machine": machine()}
        write_atomically(STORED, "".join(f"{json.dumps(row)}\n" for row in rows.values()).encode())
        interval = f"{shown(low)} to {shown(high)}"
        table.add_row(
            claim.words,
            f"{shown(expected)} {claim.unit}",
            interval,
            shown(got),
            f"{seconds:g}",
            "" if holds else "DIFFERS",
        )
    Console(width=160).print(table)
    return 1 if differ else 0


def shown(figure: float) -> str:
    """Return a figure as people write it."""
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def stored_rows() -> dict[str, Any]:
    """Return the rows of earlier runs by the names of their claims."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {row["claim"]: row for row in map(json.loads, lines)}


def page(rows: dict[str, Any]) -> str:
    """Return docs/artifact.md."""
    lines = [
        "# From claim to command",
        "",
        *INTRODUCTION,
        "",
        "| claim | command | on two cores | expected, interval | stored |",
    ]
    lines += ["|---|---|---|---|---|", *(_line(claim, rows.get(claim.name)) for claim in CLAIMS), "", *AFTER, ""]
    lines += ["| claim | command | stored |", "|---|---|---|"]
    lines += [f"| {words} | `{command}` | {_link(place)} |" for words, command, place in LONG]
    return "\n".join(lines) + "\n"


def _line(claim: Claim, row: dict[str, Any] | None) -> str:
    expected, low, high = claim.expected()
    figure = (
        "yes"
        if (expected, claim.unit) == (1.0, "")
        else f"{shown(expected)} {claim.unit}, {shown(low)} to {shown(high)}"
    )
    spent = (
        f"{row['seconds']:.0f} s, load {row['load']:.0f}" if row else f"about {claim.minutes:g} min, not yet measured"
    )
    return f"| {claim.words} | `{claim.command}` | {spent} | {figure} | {_link(claim.stored)} |"


def _link(place: str) -> str:
    target = f"{place}/a.ndjson" if Path(place).suffix == "" else place
    return f"[{Path(place).name}](../{target})"


def uncovered(text: str) -> Iterator[str]:
    """Yield README's numbers that neither a claim's quote nor a table made from rows has; code and links aside."""
    tables = re.sub(r"<!-- (table|which): .*?<!-- /\1 -->", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    for claim in CLAIMS:
        tables = tables.replace(claim.quote, re.sub(r"[0-9]", "", claim.quote)) if claim.quote else tables
    plain = CODE.sub(lambda match: "\n" * match[0].count("\n"), tables)
    for number, line in enumerate(plain.splitlines(), 1):
        if numbers := [match.group().strip(" ,.") for match in NUMBER.finditer(line)]:
            yield f"README.md:{number}: {', '.join(numbers)}"


INTRODUCTION = (
    "Each claim of [README](../README.md) that a command can show within an hour on two cores. "
    "`make -C tools artifact` runs them all after `make setup`, and prints what was claimed and what came out. "
    "Rows on HAR need the data set in the directory that `SEPAL_DATA` names.",
    "",
    "Accuracies are those of one stored row, run again: on the processor that made it they come out to the digit, "
    "elsewhere within the lowest and the highest of the row's five seeds. Times say how many processes were waiting "
    "for the cores (load).",
    "",
    "<!-- Made by `python -m tools.artifact --pages`, checked by a test: do not edit. -->",
)
AFTER = ("What takes longer than an hour, and is not run by that command:",)

if __name__ == "__main__":
    main()
