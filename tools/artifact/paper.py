"""The paper: paper/template.md with figures from stored rows."""

from __future__ import annotations

import math
from typing import Any

from jinja2 import Environment, StrictUndefined

from sepal.strategies import registry
from tools.artifact import stored
from tools.artifact.stored import ROOT

PAPER, TEMPLATE = ROOT / "paper" / "paper.md", ROOT / "paper" / "template.md"
MOST_WORDS = 1000
SHOWN = {
    "flower": "Flower's quickstart",
    "flower-seeded": "the same with a seed at its clients",
    "fluke": "fluke",
    "pfl": "pfl-research",
    "pfllib": "PFLlib",
    "sepal": "Sepal",
}
NEVER_RUN = ("FL4Health", "FedML")
VERSIONED = {**SHOWN, "flower": "Flower", "flower-seeded": ""}  # one package
COUNTS = ("none", "one", "two", "three", "four", "five")


def paper() -> str:
    """Return the paper."""
    findings = stored.findings()
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # Markdown, not HTML
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    sentence = findings.few_bytes
    names = ("fedavg-ft", "fedavg-ft-stc", "fedpse", "subfedavg", "pfedgate", "pa3dfl", "dmpfl", "local")
    return template.render(
        date=citation.partition("date-released: ")[2].splitlines()[0],
        methods=len(registry.names()),
        index_10=f"{math.ceil(10 * stored.index_overhead()) / 10:.1f}",
        blocks=COUNTS[len(findings.compared)],
        tests=findings.tests,
        leads=COUNTS[findings.count(findings.leads)],
        few_bytes=sentence[0].upper() + sentence[1:],
        held={name: findings.held_figure(name) for name in names},
        **peers(),
    )


def peers() -> dict[str, Any]:
    """Return sentences about the frameworks that were run side by side."""
    rows = stored.side_by_side()
    versions = listed([f"{name} {row['version']}" for row in rows if (name := VERSIONED[row["framework"]])])
    killed = [row for row in rows if row.get("killed") == 0]
    others = [SHOWN[row["framework"]] for row in rows if row.get("killed", 0) != 0]
    no_way = [SHOWN[row["framework"]] for row in rows if "killed" not in row]
    words = [
        f"in {listed(others)} they were not" if others else "",
        f"{listed(no_way)} begin again" if no_way else "",
    ]
    here = {row["framework"] for row in rows}
    return {
        "peers_absent": listed([*(name for key, name in VERSIONED.items() if key not in here and name), *NEVER_RUN]),
        "peers_settings": f"{versions} (FedAvg, 10 clients, {rows[0]['rounds']} rounds)",
        "peers_again": listed([SHOWN[row["framework"]] for row in rows if row["again"] == 0]),
        "peers_killed": listed([SHOWN[row["framework"]] for row in killed]),
        "peers_killed_not": "; ".join(filter(None, words)) or "in none were they not",
    }


def listed(names: list[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:]))) or "none"
