"""tools/results/side-by-side.md, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {"flower": "Flower", "fluke": "fluke", "pfl": "pfl-research", "sepal": "Sepal"}
NOTES = {
    "flower": "a run starts again: its FedAvg has no file to go on from",
    "fluke": "its files have server, clients and round, and no state of the random generators",
    "pfl": "`RestoreTrainingCallback` left other weights; whether that is its fault or our use's was not established, "
    "so there is no result",
    "sepal": "the checkpoint of each round, which every run writes",
}
ABSENT = {  # why a framework has no row
    "flower": "its quickstart's FedAvg in the simulation: Ray did not start beside the machine's other work",
    "fluke": "`PEERS` names no Python that has it",
    "pfl": "`PEERS` names no Python that has it",
    "sepal": "it was left out",
}
TEMPLATE = Path(__file__).with_name("template.md")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    notes = "; ".join(f"{NAMES[row['framework']]}: {NOTES[row['framework']]}" for row in rows)
    deployed = "[what crosses the wire](../../docs/operating.md#what-crosses-the-wire)"
    here = {row["framework"] for row in rows}
    absent = "".join(f"{name} ({ABSENT[key]}); " for key, name in NAMES.items() if key not in here)
    values = {
        "absent": absent,
        "rounds": rows[0]["rounds"],
        "cut": rows[0]["killed_after"],
        "table": "".join(map(_line, rows)),
    }
    return TEMPLATE.read_text(encoding="utf-8").format(**values, notes=notes, deployed=deployed)


def _line(row: dict[str, Any]) -> str:
    reported = f"{row['reported_bytes']:,} bytes" if "reported_bytes" in row else ""
    reported = reported or (f"{row['reported_numbers']:,} numbers" if "reported_numbers" in row else "–")
    cells = [_words(row.get(key)) for key in ("again", "killed", "two workers")]
    return f"| {NAMES[row['framework']]} {row['version']} | {' | '.join(cells)} | {reported} |\n"


def _words(difference: float | None) -> str:
    return "–" if difference is None else "equal" if difference == 0 else f"differ by {difference:.1g}"
