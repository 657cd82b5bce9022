"""tools/results/side-by-side.md, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = {
    "flower": "Flower, its quickstart",
    "flower-seeded": "Flower, with a seed in the client's function",
    "fluke": "fluke",
    "pfl": "pfl-research",
    "pfllib": "PFLlib",
    "sepal": "Sepal",
}
AFTER_A_KILL = {
    "flower": "Flower: a run starts again, since its FedAvg has no file to go on from",
    "fluke": "fluke: its files have server, clients and round, and no state of the random generators",
    "pfl": "pfl-research: `RestoreTrainingCallback` stores the number of the iteration that has just ended, which is "
    "then trained once more (0, 1, kill, 1, 2, 3), and no state of the random generators",
    "pfllib": "PFLlib: a run starts again, since its FedAvg writes the model once, at the end, and reads none",
    "sepal": "Sepal: the checkpoint of each round, which every run writes",
}
ABSENT = {  # why a framework has no row
    "flower": "Flower was left out",
    "flower-seeded": "Flower with a seed was left out",
    "fluke": "fluke: `PEERS` named no Python that has it",
    "pfl": "pfl-research: `PEERS` named no Python that has it",
    "pfllib": "PFLlib: `PFLLIB` named no checkout",
    "sepal": "Sepal was left out",
}
TEMPLATE = Path(__file__).with_name("template.md")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    here = [row["framework"] for row in rows]
    values = {
        "absent": "".join(f"{words}; " for key, words in ABSENT.items() if key not in here),
        "rounds": rows[0]["rounds"],
        "cut": rows[0]["killed_after"],
        "table": "".join(map(_line, rows)),
        "wire": "".join(_wire(row) for row in rows if "wire" in row),
        "better": better(rows),
        "notes": "; ".join(words for key, words in AFTER_A_KILL.items() if key in here),
        "measured": ", ".join(sorted({row["machine"]["date"] for row in rows})),
    }
    return TEMPLATE.read_text(encoding="utf-8").format(**values)


def better(rows: Sequence[dict[str, Any]]) -> str:
    """Return in which of the questions another framework did better than Sepal."""
    sepal = next((row for row in rows if row["framework"] == "sepal"), {})
    others = [row for row in rows if row is not sepal]
    advantages = []
    if any(sum(row["wire"]) < sum(sepal["wire"]) for row in others if "wire" in row and "wire" in sepal):
        advantages.append("Flower put fewer bytes on the sockets")
    for key, words in (("again", "for the same command twice"), ("killed", "after a kill")):
        equal = [NAMES[row["framework"]] for row in others if row.get(key) == 0]
        if equal and sepal.get(key) != 0:
            advantages.append(f"{words}, weights were equal in {' and '.join(equal)}")
    return "; ".join(advantages) or "in none of these questions"


def _line(row: dict[str, Any]) -> str:
    reported = f"{row['reported_bytes']:,} bytes" if "reported_bytes" in row else ""
    reported = reported or (f"{row['reported_numbers']:,} numbers" if "reported_numbers" in row else "–")
    cells = [_words(row.get(key)) for key in ("again", "killed", "two workers")]
    return f"| {NAMES[row['framework']]}: {row['version']} | {' | '.join(cells)} | {reported} |\n"


def _wire(row: dict[str, Any]) -> str:
    up, down = row["wire"]
    inbound, outbound = row["account"]
    difference = _words(row["deployed"])
    return (
        f"| {NAMES[row['framework']]} | {up:,} up, {down:,} down | {inbound:,} up, {outbound:,} down | {difference} |\n"
    )


def _words(difference: float | None) -> str:
    return "–" if difference is None else "equal" if difference == 0 else f"differ by {difference:.1g}"
