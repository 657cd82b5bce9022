"""Runs on several kinds of processor in one comparison: it says so, and a plan can refuse them."""

from __future__ import annotations

import csv
import json

import pytest

from sepal.errors import ConfigError
from sepal.report.files import by_variant, write_csv
from sepal.runs.claims import CLAIMS, take_claim
from sepal.study.comparison import read_comparison, write_index
from sepal.study.plans.plan import make_plan
from tests.sepal.cli.runs_for_tests import write_run

PLAN = {"methods": ["fedavg", "local"], "settings": {"dataset": "digits", "clients": 3, "rounds": 2}}


@pytest.fixture
def two(tmp_path):
    for name, kind in (("fedavg", "One CPU"), ("local", "One CPU")):
        run = write_run(tmp_path / f"{name}-seed0", method=name)
        set_kind(run, kind)
    return tmp_path


def set_kind(run, kind):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "versions": {"cpu": kind}}))


def index(out, **keys):
    plan = make_plan(out / "p.toml", {**PLAN, **keys})
    write_index(plan, list(plan.runs()), out)
    return read_comparison([str(out)])


def test_one_kind_is_not_worth_a_word_and_stands_in_each_row(two):
    comparison = index(two, **{"one-processor": True})
    assert comparison.notes == ()
    rows = list(csv.DictReader(write_csv(list(by_variant(comparison)), two / "c.csv").open()))
    assert [row["processors"] for row in rows] == ["One CPU", "One CPU"]


def test_two_kinds_are_named_with_their_runs(two):
    set_kind(two / "local-seed0", "Another CPU")
    (note,) = index(two).notes
    assert note.endswith("may differ by rounding: Another CPU (1 run), One CPU (1 run).")


def test_a_run_that_moved_is_of_both_kinds(two):
    """Its summary names the last one alone, its claims all."""
    run = two / "local-seed0"
    for _ in range(2):
        take_claim(run, "slurm 1")
    for number, kind in ((1, "Another CPU"), (2, "One CPU")):
        file = run / CLAIMS / f"{number:08d}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "processor": kind}))
    (note,) = index(two).notes
    assert note.endswith("Another CPU (1 run), One CPU (2 runs).")


def test_a_plan_that_demands_one_kind_refuses_two(two):
    set_kind(two / "local-seed0", "Another CPU")
    with pytest.raises(ConfigError, match=r"^one-processor: (expected|needed) runs on one kind of processor; delete"):
        index(two, **{"one-processor": True})
