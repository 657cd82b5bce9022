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
    "rounds": 60,
    "partition.subsample": 240,
    "lr": 0.2,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "seed": 0,
}


class EachWay:
    """Adds up the bytes of accepted messages of training: their number, and what a whole model would take.

    It keeps the lowest density of a layer of the last round, where a method's server says it.
    """

    def __init__(self) -> None:
        self.messages = {"up": 0, "down": 0}
        self.payload = {"up": 0, "down": 0}
        self.dense = 0
        self.last: dict[str, float] = {}

    def opened(self, progress: Any, total: int) -> None:
        """Do nothing."""

    def round(self, progress: Any, record: Any, line: Any) -> None:
        """Add the messages of a round; not the empty downloads of the first."""
        lowest = line["method"].get("lowest-density")
        self.last = self.last if lowest is None else {"lowest-density": round(lowest, 6)}
        for entry in record.ledger:
            if entry.purpose == "training" and entry.status == "accepted" and entry.payload:
                self.messages[entry.direction] += 1
                self.payload[entry.direction] += entry.payload
                self.dense = max(self.dense, entry.dense)

    def closed(self, progress: Any, report: Any) -> None:
        """Do nothing."""

    def figures(self) -> dict[str, float]:
        """Return the mean bytes of a message each way, those of a whole model, and what a server says of layers."""
        means = {way: round(self.payload[way] / self.messages[way], 1) for way in self.payload}
        return {**means, "dense": float(self.dense), **self.last}


def claims() -> dict[str, dict[str, Any]]:
    """Return what claims.toml says, by method."""
    return tomllib.loads(CLAIMS.read_text(encoding="utf-8"))


def configs_of(method: str, claim: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the keys of a method's measured runs, by what they are called."""
    return {run["about"]: {**KEYS, "method": method, **run["keys"]} for run in claim.get("runs", ())}


def execute(config: Mapping[str, Any], commit: str) -> RunRecord:
    """Run a method, and return its record."""
    bytes_each_way = EachWay()
    record = recorded(config, {}, commit, (), observers=[bytes_each_way])
    return record.model_copy(update={"figures": bytes_each_way.figures()})


def lines(rows: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Return the cells of each method's line."""
    table = []
    for method, claim in claims().items():
        where = f"{claim['repository']} @ {claim['commit']}: {', '.join(f'`{place}`' for place in claim['at'])}"
        if not claim["release"]:
            where = f"not the authors' release; {where}"
        measured = [f"{about}: {measure(row_of(rows, config))}" for about, config in configs_of(method, claim).items()]
        ours = f"{claim['ours']}. Measured, {'; '.join(measured)}" if measured else "not in Sepal"
        table.append({"method": method, "claim": claim["claim"], "code": claim["code"], "where": where, "ours": ours})
    return table


def row_of(rows: Sequence[RunRecord], config: Mapping[str, Any]) -> RunRecord:
    """Return the row of a run."""
    return next(row for row in rows if row.config == config)


def measure(row: RunRecord) -> str:
    """Return a run's bytes each way, its validation accuracy, and the density of its emptiest layer, if it is known."""
    figures, accuracy = row.figures, row.validation[row.deployed]
    up, down = (f"{figures[way]:,.0f} ({100 * figures[way] / figures['dense']:.1f} %)" for way in ("up", "down"))
    lowest = f", emptiest layer {100 * figures['lowest-density']:.1f} %" if "lowest-density" in figures else ""
    return f"up {up}, down {down}, validation accuracy {accuracy:.2f} (*{row.deployed}*){lowest}"


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
        for about, config in configs_of(method, claim).items():
            if config not in stored:
                record = execute(config, commit_now())
                append(ROWS, record)
                print(method, about, record.figures, record.validation, flush=True)


if __name__ == "__main__":
    main()
