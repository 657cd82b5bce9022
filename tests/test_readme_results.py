"""README's tables of results are those of the result files."""

from __future__ import annotations

import json
import shutil

import pytest

from experiments.readme import OURS, PLANS, README, RESULTS, YARDSTICKS, rewritten
from sepal.cli.plans.plan import read_plan
from sepal.errors import ConfigError
from sepal.strategies import registry


def test_readmes_results_are_those_of_the_files():
    """If this fails: python -m experiments.readme."""
    assert rewritten(README.read_text()) == README.read_text()


def test_deployed_models_are_compared():
    """README says so of the first column of the headlines' methods, and of the columns of the other methods."""
    plans = [read_plan(file) for file in sorted(PLANS.glob("*.toml"))]
    ours = {
        str(plan.variants.get(block.headline, {}).get("method", block.headline))
        for plan in plans
        for block in plan.block
        if block.headline
    }
    assert ours >= {"fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl"}
    assert {registry.deployed(method) for method in ours} == {OURS[0]}
    assert dict(YARDSTICKS) == {method: registry.deployed(method) for method, _ in YARDSTICKS}


def test_a_result_file_that_is_missing_is_not_in_the_table_and_one_that_changes_is(tmp_path):
    """FedPSE's file alone; then with another accuracy in it."""
    empty = "<!-- results: x -->\n<!-- /results -->\n"
    shutil.copy(RESULTS / "fedpse.ndjson", tmp_path)
    text = rewritten(f"before\n{empty}after\n", tmp_path)
    assert text.startswith("before\n<!-- results: x -->\n| data | method |")
    assert text.endswith("<!-- /results -->\nafter\n")
    assert "docs/results/fedpse.md" in text
    assert "docs/results/dmpfl.md" not in text
    rows = [json.loads(line) for line in (tmp_path / "fedpse.ndjson").read_text().splitlines()]
    for row in rows:
        if row["variant"] == "local":
            row["accuracy"]["kept"]["mean"] = 0.01
    (tmp_path / "fedpse.ndjson").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert rewritten(empty, tmp_path) != text.removeprefix("before\n").removesuffix("after\n")
    assert rewritten(empty, tmp_path / "none") == empty
    with pytest.raises(ConfigError, match=r"README\.md: expected <!-- results"):
        rewritten("no markers", tmp_path)
