"""What the stored rows say: figures for the claims and for the paper."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from referee.leaderboard.findings import Findings
from referee.leaderboard.measures import HOLDS, BlockResults
from referee.leaderboard.pages import PAGE, counted, measured
from sepal.study.record import RunRecord

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tools" / "results"


@lru_cache(1)
def findings() -> Findings:
    """Return what the leaderboard's rows say, of as many rows as its page was made from."""
    return Findings(measured(counted(PAGE.read_text(encoding="utf-8")))[0])


def har() -> BlockResults:
    """Return the block of README's table."""
    block = findings().har
    if block is None:
        raise ValueError("referee/results/leaderboard/a.ndjson: expected all rows of block a")
    return block


def har_row(name: str) -> RunRecord:
    """Return the stored row of a contender's first seed on HAR."""
    rows = har().runs(har().named(name))
    return rows[min(rows)]


def har_interval(name: str) -> tuple[float, float]:
    """Return the lowest and the highest mean over clients of a contender's seeds, what a client holds, in per cent."""
    values = [sum(c.values()) / len(c) for c in har().by_seed(har().named(name), HOLDS).values()]
    return 100 * min(values), 100 * max(values)


def bench(what: str) -> dict[str, Any]:
    """Return the stored row of a measurement of `make -C tools bench`."""
    rows = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if row["what"] == what)


def index_overhead() -> float:
    """Return how far index bytes are above the entropy bound at a density of 10 %, in per cent."""
    return 100 * (float(bench("encode at 0.1 of 10 M entries")["index_bytes_over_entropy_bound"]) - 1)


def side_by_side() -> list[dict[str, Any]]:
    """Return the rows of `make -C tools side-by-side`."""
    lines = (RESULTS / "side-by-side.ndjson").read_text(encoding="utf-8").splitlines()
    return list(map(json.loads, lines))
