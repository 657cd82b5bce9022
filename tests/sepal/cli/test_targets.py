"""Rounds and MB to an accuracy are said of full evaluations alone, and only where there are enough of them."""

from __future__ import annotations

import json

import pytest

from sepal.report.text_tables import basis, cost_table
from sepal.study.comparison import read_comparison
from sepal.study.frontier import close_to
from tests.sepal.cli.runs_for_tests import figures, write_run


def spread_out(run, rounds: int, every: int):
    """Let a run of :func:`write_run` have ``rounds`` rounds, a tenth better each, full every few."""
    first, *_, last = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    lines = [
        {**first, "round": n, "model_round": n - 1, "full": bool(every and n % every == 0)}
        for n in range(1, rounds + 1)
    ]
    lines.append({**last, "round": rounds + 1, "model_round": rounds})
    for line in lines:
        line["accuracy"] = {**first["accuracy"], "trained": figures([min(0.1 * line["round"], 0.1 * rounds)] * 3)}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


@pytest.mark.parametrize(
    ("every", "cells", "words"),
    [
        (1, "5.0", "the first of 9 full evaluations that reaches it."),  # round 5 itself has 50 %
        (
            2,
            "≤ 6.0",
            "the first of 5 full evaluations that reaches it; ≤: the rounds just before it were not evaluated.",
        ),
        (4, "≤ 8.0", "the first of 3 full evaluations that reaches it; ≤"),
        (5, "–", "No rounds or MB to 50 % are shown: that takes 3 full evaluations, and these runs have 2"),
        (0, "–", "No rounds or MB to 50 % are shown: that takes 3 full evaluations, and these runs have 1"),
    ],
)
def test_rounds_to_an_accuracy_are_those_of_full_evaluations_and_say_so(tmp_path, every, cells, words):
    for method in ("fedavg-ft", "fedavg"):
        spread_out(write_run(tmp_path / method, method=method, volume=int(method != "fedavg")), 8, every)
    index = {"title": "t", "view": "trained", "target": 0.5, "notes": [], "tuning": []}
    index["runs"] = [{"name": name, "label": name, "cell": ""} for name in ("fedavg-ft", "fedavg")]
    (tmp_path / "comparison.json").write_text(json.dumps(index))
    variants = read_comparison([str(tmp_path)]).variants("")
    text_table = cost_table(variants)
    assert [row[-3] for row in text_table.rows] == [cells] * 2
    assert text_table.rows[1][-2] == ("0" if cells != "–" else cells), "no bound on what is 0"
    assert words in basis(variants)
    assert (len(text_table.head) - 3 in text_table.columns(figures=True)) == (cells != "–"), "rounds to 50 %"
    assert (variants[0].rounds_to is None) == (cells == "–")
    assert (close_to(variants) is None) == (cells == "–")
