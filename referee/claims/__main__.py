"""``python -m referee.claims``: bytes of methods whose papers claim a sparse exchange, in a short run on digits.

What papers claim and what their public code does is in claims.toml. Each run's record is appended to
``referee/results/claims.ndjson``; runs that are there are not repeated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from referee.checkout import RESULTS, ROOT, commit_now, options, render
from sepal.study.record import RunRecord, append, read, recorded

ROWS, CLAIMS = RESULTS / "claims.ndjson", ROOT / "referee/claims/claims.toml"
KEYS: Mapping[str, Any] = {
    "dataset": "digits",
    "clients": 4,
    "rounds": 10,
    "partition.subsample": 240,
    "lr": 0.05,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "seed": 0,
}


class EachWay:
    """Adds up the bytes of accepted messages of training: their number, and what a whole model would take."""

    def __init__(self) -> None:
        self.messages = {"up": 0, "down": 0}
        self.payload = {"up": 0, "down": 0}
        self.dense = 0

    def opened(self, progress: Any, total: int) -> None:
        """Do nothing."""

    def round(self, progress: Any, record: Any, line: Any) -> None:
        """Add the messages of a round; not the empty downloads of the first."""
        for entry in record.ledger:
            if entry.purpose == "training" and entry.status == "accepted" and entry.payload:
                self.messages[entry.direction] += 1
                self.payload[entry.direction] += entry.payload
                self.dense = max(self.dense, entry.dense)

    def closed(self, progress: Any, report: Any) -> None:
        """Do nothing."""

    def figures(self) -> dict[str, float]:
        """Return the mean bytes of a message each way, and those of a whole model."""
        means = {way: round(self.payload[way] / self.messages[way], 1) for way in self.payload}
        return {**means, "dense": float(self.dense)}


def claims() -> dict[str, dict[str, Any]]:
    """Return what claims.toml says, by method."""
    return tomllib.loads(CLAIMS.read_text(encoding="utf-8"))


def config_of(method: str, claim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a method's measured run."""
    return {**KEYS, "method": method, **claim["keys"]}


def execute(method: str, claim: Mapping[str, Any], commit: str) -> RunRecord:
    """Run a method, and return its record."""
    bytes_each_way = EachWay()
    record = recorded(config_of(method, claim), {}, commit, (), observers=[bytes_each_way])
    return record.model_copy(update={"figures": bytes_each_way.figures()})


def lines(rows: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Return the cells of each method's line."""
    by_method = {row.method: row.figures for row in rows}
    table = []
    for method, claim in claims().items():
        where = f"{claim['repository']} @ {claim['commit']}: {', '.join(f'`{place}`' for place in claim['at'])}"
        if not claim["release"]:
            where = f"not the authors' release; {where}"
        ours = "not in Sepal"
        if claim["ours"]:
            figures = by_method[method]
            up, down = (
                f"{figures[way]:,.0f} ({100 * figures[way] / figures['dense']:.1f} %)" for way in ("up", "down")
            )
            ours = f"{claim['ours']}. Measured, {claim['about']}: up {up}, down {down}"
        table.append({"method": method, "claim": claim["claim"], "code": claim["code"], "where": where, "ours": ours})
    return table


def pages() -> dict[Path, str]:
    """Return path → text of the page."""
    rows = read(ROWS)
    tests = {method: claim["test"] for method, claim in claims().items() if claim["ours"]}
    dense = max(row.figures["dense"] for row in rows)
    return {
        ROWS.with_suffix(".md"): render("claims.md", lines=lines(rows), tests=tests, keys=KEYS, dense=f"{dense:,.0f}")
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    options("python -m referee.claims", __doc__, hours=1.0).parse_args(arguments)
    stored = [row.config for row in read(ROWS)]
    for method, claim in claims().items():
        if claim["ours"] and config_of(method, claim) not in stored:
            record = execute(method, claim, commit_now())
            append(ROWS, record)
            print(method, record.figures, flush=True)


if __name__ == "__main__":
    main()
