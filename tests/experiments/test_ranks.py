"""Ranks over blocks, seeds and clients: what a user predicts with, what bytes buy, Friedman's and Nemenyi's tests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments.paper.figures import figures
from experiments.paper.plan import read_plan
from experiments.paper.ranks import SETTINGS, collect, complete, mean_ranks, rank, rank_tables
from sepal.study.plans.model import PlannedRun
from tests.cli.runs_for_tests import write_run

ROUNDS, SHIFT, BYTES = SETTINGS
PLAN = """
title = "Ranked"
[ranks]
blocks = ["a", "b"]
megabytes = { a = 1.0 }
against = ["local"]
[[block]]
name = "a"
variants = ["ditto", "fedavg", "local"]
[[block]]
name = "b"
variants = ["ditto", "fedavg", "local"]
"""


def plan(path: Path) -> Any:
    """Read the plan."""
    (path / "ranked.toml").write_text(PLAN)
    return read_plan(path / "ranked.toml")


def row(name: str, clients: dict[str, list[float | None]], within: Any = None) -> dict[str, Any]:
    """Make a line of results."""
    columns = {"name": [f"c{n}" for n in range(len(next(iter(clients.values()))))], **clients}
    return {"name": name, "clients": columns, "within": within, "versions": {}}


def test_ranks_and_tests_by_hand() -> None:
    """Four lines in one order: ranks 1, 2, 3; χ² = 12·4/(3·4)·((1 + 4 + 9) - 3·16/4) = 8; p = exp(-8/2) of χ²(2).

    Nemenyi: q(.05, 3 groups, ∞) = 2.343 (Demsar, table 5a), times √(3·4/(6·4)) = 1.657.
    """
    found = rank(["x", "y", "z"], np.array([[0.9, 0.8, 0.7]] * 4))
    assert found.means == {"x": 1.0, "y": 2.0, "z": 3.0}
    assert found.statistic == pytest.approx(8.0)
    assert found.p == pytest.approx(math.exp(-4))
    assert found.difference == pytest.approx(2.343 * math.sqrt(0.5), abs=1e-3)
    assert found.alike() == ["x", "y"]
    assert stats.studentized_range.ppf(0.95, 10, np.inf) / math.sqrt(2) == pytest.approx(3.164, abs=1e-3)


def test_equal_accuracies_share_their_ranks() -> None:
    """.5, .5, .1: 1.5, 1.5, 3; and .1, .5, .5: 3, 1.5, 1.5."""
    found = rank(["x", "y", "z"], np.array([[0.5, 0.5, 0.1], [0.1, 0.5, 0.5]]))
    assert found.ranks.tolist() == [[1.5, 1.5, 3.0], [3.0, 1.5, 1.5]]
    assert list(found.means) == ["y", "x", "z"]


def test_a_client_is_ranked_by_what_its_user_predicts_with(tmp_path: Path) -> None:
    """Kept, or what arrives where nothing is kept yet; the view of the method; under shift trained if need be."""
    found = plan(tmp_path)
    ditto = {"kept": [0.9, None], "received": [0.1, 0.2], "trained": [0.5, 0.6], "trained-shift-100": [0.3, 0.4]}
    fedavg = {"kept": [0.8, 0.8], "received": [0.7, 0.6], "trained": [0.9, 0.9], "received-shift-100": [0.5, 0.5]}
    results = {"a-ditto-seed0": row("", ditto), "a-fedavg-seed0": row("", fedavg)}
    plain = collect(found, found.ranks, results, ROUNDS)
    assert list(plain["ditto"].values()) == [0.9, 0.2]
    assert list(plain["fedavg"].values()) == [0.7, 0.6]
    shifted = collect(found, found.ranks, results, SHIFT)
    assert list(shifted["ditto"].values()) == [0.3, 0.4]
    assert list(shifted["fedavg"].values()) == [0.5, 0.5]
    assert collect(found, found.ranks, results, BYTES) == {}


def test_a_variant_without_a_block_is_left_out_and_not_the_block() -> None:
    lines = {"x": {("a", 0, "c0"): 1.0, ("b", 0, "c0"): 1.0}, "y": {("a", 0, "c0"): 1.0}}
    lines["z"] = {("a", 0, "c0"): 0.5, ("b", 0, "c0"): 0.5, ("b", 0, "c1"): 0.5}
    assert complete(lines) == ([("a", 0, "c0"), ("b", 0, "c0")], ["x", "z"])


def test_the_tables_name_ranks_differences_and_what_bytes_buy(tmp_path: Path) -> None:
    """Three clients, all in one order: ditto before local before fedavg. At equal bytes fedavg stands at round 4."""
    found, results = plan(tmp_path), {}
    for block in ("a", "b"):
        for name, value in (("ditto", 0.8), ("fedavg", 0.4), ("local", 0.6)):
            clients: dict[str, list[float | None]] = {view: [value] * 3 for view in ("kept", "received", "trained")}
            part = {"round": 4, "megabytes": 1.5, "clients": {"name": ["c0", "c1", "c2"], **clients}}
            results[f"{block}-{name}-seed0"] = row("", clients, part if block == "a" else None)
    text = "\n".join(rank_tables(found, results))
    assert "| ditto | 1.00 | 1.00 | 1.00 | 80.0 | 80.0 |" in text
    assert "| fedavg | 3.00 | 3.00 | 3.00 | 40.0 | 40.0 |" in text
    assert "over 6 clients, of all seeds." in text
    assert "| ditto | +20.0 ± 0.0 |" in text
    assert "| fedavg | 4 (0.50 MB) |" in text
    assert mean_ranks(found, results, ROUNDS) == {"ditto": 1.0, "local": 2.0, "fedavg": 3.0}
    assert mean_ranks(found, results, SHIFT) == {}
    few = {name: one for name, one in results.items() if "ditto" not in name}
    assert next(iter(rank_tables(found, few))).startswith("Nothing to rank")


@pytest.mark.parametrize(("each", "number"), [(299, 1), (300, 2), (150, 1), (149, None)])
def test_bytes_buy_the_last_full_evaluation_of_a_model_that_they_made(
    tmp_path: Path, each: int, number: int | None
) -> None:
    """Three clients, 100 bytes up and 50 down each a round: the model of round 1 costs 150 a client, of round 2 300."""
    write_run(tmp_path / "run", full=[0.2, 0.5], closing=[0.9, 0.9, 0.6])
    run = PlannedRun("a", "", "fedavg", 0, {"name": "run"})
    found = figures(run, tmp_path, each / 1e6)
    assert found is not None
    if number is None:
        assert found["within"] is None
        return
    assert found["within"]["round"] == number
    assert found["within"]["megabytes"] == pytest.approx(450 * number / 1e6)
    assert found["within"]["clients"]["trained"] == ([0.5] * 3, [0.9, 0.9, 0.6])[number - 1]
    assert json.dumps(found)
    assert "within" not in (figures(run, tmp_path) or {})
