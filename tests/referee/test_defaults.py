"""``make -C referee defaults``: which methods count as behind."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from referee.defaults import __main__ as command


def group(method, mean, deployed="kept"):
    """A method's runs of two seeds: one has half a point more than FedAvg + fine-tuning's .95, and one ``mean``."""
    results = [
        SimpleNamespace(seed=seed, accuracy={deployed: {"mean": value}}.get)
        for seed, value in enumerate((mean if method == "fedavg-ft" else 0.955, mean))
    ]
    return SimpleNamespace(method=method, label=method, deployed=deployed, results=results)


@pytest.mark.parametrize(
    ("mean", "words"),
    [(0.95, ""), (0.9001, ""), (0.8999, "behind")],
)
def test_more_than_five_points_with_one_seed_is_behind(mean, words):
    assert command.verdict("digits", group("fedpse", mean), group("fedavg-ft", 0.95, "trained")) == words


@pytest.mark.parametrize(("mean", "words"), [(0.84, "explained"), (0.811, "explained"), (0.809, "behind")])
def test_what_the_notes_explain_is_no_excuse_for_more(monkeypatch, mean, words):
    monkeypatch.setattr(command, "BEHIND", {"digits": {"fedpse": 11.0}})  # and 3 points of noise: .95 - .14 = .81
    assert command.verdict("digits", group("fedpse", mean), group("fedavg-ft", 0.95, "trained")) == words


def test_explanations_exist():
    parts = [part for part in re.split(r"^## ", command.NOTES.read_text().lower(), flags=re.M) if "|---|" in part]
    for dataset, method in ((dataset, method) for dataset, found in command.BEHIND.items() for method in found):
        told = [part for part in parts if part.startswith(method) or re.search(rf"\b{dataset}\b", part)]
        assert any(re.search(rf"(?<![\w-]){method}(?![\w-])", part) for part in told), (dataset, method)


def test_a_seed_without_a_result_is_behind():
    one = group("fedpse", 0.95)
    one.results[1].accuracy = {}.get
    assert command.verdict("digits", one, group("fedavg-ft", 0.95, "trained")) == "behind"
    one.results.pop()
    assert command.verdict("digits", one, group("fedavg-ft", 0.95, "trained")) == "behind"
