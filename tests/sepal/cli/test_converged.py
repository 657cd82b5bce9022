"""``rounds = "converged"`` in a plan: what it stands for, what is refused, and what tables say of such runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from referee.paper.figures import figures
from sepal.cli.main import app
from sepal.report.files import by_variant
from sepal.report.page import write_html
from sepal.report.tables import print_comparison
from sepal.study.comparison import read_comparison
from sepal.study.plans.plan import read_plan
from tests.sepal.cli.runs_for_tests import write_run

PLAN = """
methods = ["fedavg", "local", "ditto", "fedprox"]
[settings]
dataset = "digits"
rounds = "converged"
[settings.local]
rounds = 20
[settings.ditto]
limit = 250
[settings.fedprox]
limit = 50
stop-after = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The plan."""
    path = tmp_path / "converged.toml"
    path.write_text(PLAN)
    return path


def rounds(file: Path) -> dict[str, tuple[object, object, object]]:
    """Method → rounds, stop-after and what is left of ``limit``."""
    return {r.name: (r.keys["rounds"], r.keys.get("stop-after"), r.keys.get("limit")) for r in read_plan(file).runs()}


def test_it_stands_for_a_limit_and_a_tenth_of_it(file: Path) -> None:
    """Digits: 30 rounds by default, 90 at most; a tenth is 9, but at least 10. 250 at most: 25."""
    assert rounds(file) == {
        "fedavg-seed0": (90, 10, None),
        "local-seed0": (20, None, None),
        "ditto-seed0": (250, 25, None),
        "fedprox-seed0": (50, 4, None),
    }


def test_a_method_alone_or_a_block_may_have_it_and_so_may_trials(file: Path) -> None:
    file.write_text('methods = ["fedavg", "local"]\n[settings]\nrounds = 7\n[settings.local]\nrounds = "converged"\n')
    assert rounds(file) == {"fedavg-seed0": (7, None, None), "local-seed0": (90, 10, None)}
    file.write_text('methods = ["fedavg"]\ntune = true\n[settings]\nrounds = "converged"\nlimit = 40\n')
    assert set(rounds(file).values()) == {(40, 10, None)}
    block = '[keys]\ndataset = "har"\n[[block]]\nname = "a"\nvariants = ["fedavg"]\nkeys = { rounds = "converged" }\n'
    file.write_text(block)
    assert rounds(file) == {"a-fedavg-seed0": (900, 90, None)}  # HAR: 300 rounds by default


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("limit = 250", "limit = 0", 'limit: expected the most rounds with rounds = "converged", at least 1, got 0'),
        (
            "limit = 250",
            "limit = 2.5",
            'the most rounds with rounds = "converged", at least 1, got 2.5',
        ),
        ('rounds = "converged"', "rounds = 20", "limit: expected a known key, got an unknown one"),
        ('rounds = "converged"', 'rounds = "convergd"', "rounds: expected a valid integer"),
        (
            'rounds = "converged"',
            'rounds = "converged"\nsplit.validation = 0.0',
            "converged.toml: fedavg: stop-after: expected 0 with split.validation = 0: it needs validation data",
        ),
        ('dataset = "digits"', 'dataset = "digits"\nlrr = 1', "lrr: expected a known key, got an unknown one"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(file: Path, old: str, new: str, words: str) -> None:
    file.write_text(PLAN.replace(old, new))
    result = CliRunner().invoke(app, ["compare", str(file), "--out", str(file.parent / "out")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert words in result.stderr
    assert not (file.parent / "out").exists()


def test_tables_and_report_say_how_many_rounds_were_run(tmp_path: Path) -> None:
    """FedAvg ended after 30 and 41 of 90 rounds; Local had all of its 50."""
    for method, seed, rounds_over, limit in (("fedavg", 0, 30, 90), ("fedavg", 1, 41, 90), ("local", 0, 50, 50)):
        path = write_run(tmp_path / f"{method}-seed{seed}", method=method, seed=seed, rounds=limit)
        summary = json.loads((path / "summary.json").read_text())
        summary["rounds"] = rounds_over
        summary["stopped"] = {"by": "stop-after", "reason": "it stood still"} if rounds_over < limit else None
        (path / "summary.json").write_text(json.dumps(summary))
    comparison = read_comparison([str(tmp_path)])
    console = Console(file=io.StringIO(), width=200)
    print_comparison(console, comparison)
    words = "rounds that were run, mean over seeds: fedavg 35.5 of at most 90, local 50 of at most 50"
    assert words in console.file.getvalue()  # type: ignore[attr-defined]
    assert words in write_html([str(tmp_path)], tmp_path / "report.html").read_text()
    assert [row["rounds"] for row in by_variant(comparison)] == [35.5, 50]
    (tmp_path / "one.toml").write_text('methods = ["fedavg"]\n[settings]\nrounds = 90\nclients = 3\n')
    (run,) = read_plan(tmp_path / "one.toml").runs()
    run_figures = figures(run, tmp_path)
    assert run_figures
    assert (run_figures.rounds, run_figures.figures["stopped"]) == (30, "stop-after")


def test_a_comparison_runs_until_it_has_converged_and_again_runs_nothing(
    tmp_path: Path, runs_in_this_process: None
) -> None:
    """At this rate nothing is learnt: five rounds for the first mean, and two without a rise."""
    file, out = tmp_path / "flat.toml", tmp_path / "out"
    file.write_text(
        'methods = ["fedavg"]\n[settings]\nrounds = "converged"\nlimit = 9\nstop-after = 2\nclients = 3\nlr = 1e-6\n'
        '"partition.subsample" = 300\n"evaluate-every" = 0\n'
    )
    result = CliRunner().invoke(app, ["compare", str(file), "--out", str(out), "--no-report"])
    assert result.exit_code == 0, result.output
    assert "fedavg 7 of at most 9" in result.output
    assert "fedavg 7 of at most 9" in (out / "tables.md").read_text()
    before = (out / "fedavg-seed0" / "summary.json").read_bytes()
    assert "1 of 1 runs are there already" in CliRunner().invoke(app, ["compare", str(file), "--out", str(out)]).output
    assert (out / "fedavg-seed0" / "summary.json").read_bytes() == before
