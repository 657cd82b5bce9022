"""The table by class: its counts, its shares by hand, and where it stands."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sepal.report.by_class import class_table
from sepal.report.page import render
from sepal.study.comparison import read_comparison
from sepal.tasks.builtin import classification, multilabel, regression, segmentation
from tests.sepal.cli.runs_for_tests import write_run
from tests.tasks.settings import closing

FLAT = {"dataset": "digits", "clients": 3, "rounds": 1, "partition.subsample": 300}


def test_counts_by_class_are_those_of_the_first_metric_that_has_them():
    scoring = classification((4,), 3).scoring
    # 10 examples, loss, accuracy (right, all); then tp, fp and fn of three classes, twice
    counts = [3.0, 2.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0, 2.0]
    assert scoring.by_class([10.0, 7.5, 5.0, 10.0, *counts, *counts]) == {
        "tp": [3.0, 2.0, 0.0],
        "fp": [1.0, 2.0, 2.0],
        "fn": [1.0, 2.0, 2.0],
    }
    assert len(multilabel((4,), 5).scoring.by_class(range(multilabel((4,), 5).scoring.size))["fn"]) == 5
    assert len(segmentation((1, 8, 8), 2).scoring.by_class(range(segmentation((1, 8, 8), 2).scoring.size))["tp"]) == 2
    assert regression((4,), 1).scoring.by_class([1.0] * 20) == {}


def test_a_run_has_counts_by_class_where_its_clients_send_sums():
    report = closing(FLAT, method="fedavg", metric="macro-f1").report
    counts, together = report.classes["trained"], report.metrics["trained"]
    tp, fp, fn = (np.array(counts[name]) for name in ("tp", "fp", "fn"))
    defined = 2 * tp + fp + fn > 0
    assert np.mean(2 * tp[defined] / (2 * tp + fp + fn)[defined]) == pytest.approx(together["macro-f1"])
    assert tp.sum() / (tp + fn).sum() == pytest.approx(together["accuracy"])
    assert closing(FLAT, method="fedavg").report.classes == {}, "accuracy sends no sums"


def named(counts):
    return dict(zip(("tp", "fp", "fn"), counts, strict=True))


def with_classes(path, seed, counts, label="fedavg-ft"):
    """Write a run whose summary has counts by class."""
    write_run(path, seed=seed, method=label)
    summary = json.loads((path / "summary.json").read_text())
    summary |= {"classes": {"trained": counts}, "metric": {"name": "macro-f1", "unit": "%", "higher": True}}
    (path / "summary.json").write_text(json.dumps(summary))
    return str(path)


def test_the_report_has_the_table_of_the_deployed_models_over_all_seeds(tmp_path):
    first_seed, second_seed = ([3, 2, 0], [1, 2, 0], [1, 2, 2]), ([5, 0, 0], [1, 0, 0], [0, 1, 0])
    places = [
        with_classes(tmp_path / f"ft-{seed}", seed, named(counts))
        for seed, counts in enumerate((first_seed, second_seed))
    ]
    comparison = read_comparison(places)
    text_table = class_table(comparison.variants(""))
    assert text_table.head == ("class", "examples", "recall, %", "precision, %", "F1, %")
    # class 0: tp 8, fp 2, fn 1; class 1: tp 2, fp 2, fn 3; class 2: never predicted
    assert text_table.rows == [
        ["0", "9", "88.9", "80.0", "84.2"],
        ["1", "5", "40.0", "50.0", "44.4"],
        ["2", "2", "0.0", "–", "0.0"],
    ]
    assert "By class, deployed models" in render(comparison)


def test_the_counts_are_those_of_the_deployed_view(tmp_path):
    write_run(tmp_path / "kept", method="fedpse", kept=True)
    summary = json.loads((tmp_path / "kept" / "summary.json").read_text())
    summary["classes"] = {"trained": named(([9], [9], [9])), "kept": named(([3], [1], [1]))}
    (tmp_path / "kept" / "summary.json").write_text(json.dumps(summary))
    text_table = class_table(read_comparison([str(tmp_path / "kept")]).variants(""))
    assert text_table.rows == [["0", "4", "75.0", "75.0", "75.0"]]


@pytest.mark.parametrize(
    "counts",
    [
        {"tp": [1, 2], "fp": [1], "fn": [1, 2]},
        {"tp": [1, 2], "fn": [1, 2]},
        {"tp": "12", "fp": "12", "fn": "12"},
        {"tp": [float("nan")], "fp": [1], "fn": [1]},
        {"tp": [-1], "fp": [1], "fn": [1]},
        None,
        7,
    ],
)
def test_counts_that_sepal_has_not_written_give_no_table(tmp_path, counts):
    good = with_classes(tmp_path / "good", 0, named(([3], [1], [1])))
    bad = with_classes(tmp_path / "bad", 1, counts)
    assert class_table(read_comparison([good, bad]).variants("")) is None


def test_several_variants_stand_beside_each_other(tmp_path):
    counts = named(([3, 2], [1, 2], [1, 2]))
    places = [with_classes(tmp_path / label, 0, counts, label) for label in ("fedavg-ft", "fedbabu")]
    text_table = class_table(read_comparison(places).variants(""))
    assert text_table.head[2:] == ("fedavg-ft\nrecall", "fedavg-ft\nF1", "fedbabu\nrecall", "fedbabu\nF1")
    assert text_table.rows[1] == ["1", "4", "50.0", "50.0", "50.0", "50.0"]
