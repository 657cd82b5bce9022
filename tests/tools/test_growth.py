"""The sizing page shows what was measured, and what it calls bounded did not grow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.growth import superlink
from tools.growth.__main__ import RESULTS, summary, table

PAGE = Path(__file__).parents[2] / "docs" / "sizing.md"
STORED = sorted(RESULTS.glob("growth-*.json"))


def test_there_are_results():
    assert {path.name for path in STORED} >= {"growth-in-process-2.json", "growth-in-process-10.json"}


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_page_shows_the_stored_results(path):
    missing = [line for line in table(json.loads(path.read_text())) if line not in PAGE.read_text().splitlines()]
    assert missing == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_what_is_bounded_was_as_large_in_the_first_half(path):
    files = json.loads(path.read_text())["files"]
    bounded = {kind: figures for kind, figures in files.items() if "largest" in figures}
    assert "checkpoints/*.safetensors" in bounded
    for kind, figures in bounded.items():
        if not kind.endswith(".log") and ".log of" not in kind:  # of logs, a bound of 10 MB is not reached
            assert figures["largest"] <= 1.5 * figures["largest_in_first_half"], kind


def test_the_page_shows_the_stored_memory_of_a_superlink():
    assert "\n".join(superlink.table(json.loads(superlink.FILE.read_text()))) in PAGE.read_text()


def test_what_a_superlink_s_allocator_has_given_out_does_not_grow():
    """Had it grown by 1 MB in 100 rounds, the last third of the rounds would have 2 MB more than the one before."""
    rows = [row for row in json.loads(superlink.FILE.read_text())["rows"] if row["round"] >= 50]
    third = len(rows) // 3
    before, after = (max(row["allocated"] for row in part) for part in (rows[third : 2 * third], rows[2 * third :]))
    assert after < before + 1e6


def test_growth_is_counted_after_the_first_hundred_rounds():
    samples = [
        {
            "round": round,
            "bytes": {"ledger.jsonl": 7 * round, "checkpoints/uploads/": round % 7, "config.toml": 9},
            "memory": {"SuperLink 4711": 1e8 + 1e4 * max(round, 100), "SuperLink 47": 1e6},
        }
        for round in range(50, 501, 50)
    ]
    result = summary(samples)
    assert (result["from_round"], result["to_round"]) == (100, 500)
    assert result["files"] == {
        "ledger.jsonl": {"per_round": 7.0},
        "checkpoints/uploads/": {"largest_in_first_half": 5, "largest": 6},
    }
    assert result["processes"]["SuperLink"] == {"mb": 105.0, "mb_per_100_rounds": 1.0}
