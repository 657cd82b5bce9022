"""``make defaults``: which methods count as behind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.defaults import __main__ as command
from sepal.study.statistics import Estimate


def group(method, mean, deployed="kept"):
    accuracies = {deployed: Estimate(mean, 0.0, 3)}
    return SimpleNamespace(method=method, label=method, deployed=deployed, accuracy=accuracies.get)


@pytest.mark.parametrize(
    ("mean", "words"),
    [(0.95, ""), (0.9001, ""), (0.8999, "behind")],
)
def test_more_than_five_points_is_behind(mean, words):
    assert command.verdict("digits", group("fedpse", mean), group("fedavg-ft", 0.95, "trained")) == words


def test_a_method_whose_notes_say_why_is_explained(monkeypatch):
    monkeypatch.setattr(command, "BEHIND", {"digits": {"fedpse": "fedpse/NOTES.md"}})
    assert command.verdict("digits", group("fedpse", 0.5), group("fedavg-ft", 0.95, "trained")) == "explained"


def test_explanations_exist():
    root = command.HERE.parents[1] / "strategies"
    for dataset, method, place in ((d, m, p) for d, found in command.BEHIND.items() for m, p in found.items()):
        text = (root / place).read_text()
        assert dataset in text.lower(), (method, place)
        assert "one change at a time" in text.lower(), (method, place)
        assert method in text.lower() or place.startswith(method), (method, place)
