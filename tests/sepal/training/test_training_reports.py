"""What a client reports of its training: time, steps, and a method's own figures."""

from __future__ import annotations

import pytest

from sepal.errors import ProtocolError
from tests.sepal.training.small_trainer import trained, work


def test_spent_counts_since_it_was_last_asked():
    subject = work()
    trained(subject)
    figures = subject.spent()
    assert figures["steps"] == 6.0
    assert figures["seconds"] > 0
    assert subject.spent() == dict.fromkeys(figures, 0.0)


def test_reports_are_spent_with_the_other_figures():
    subject = work()
    subject.report("pruned", 0.25)
    subject.report("pruned", 0.5)
    subject.report("mean-loss", float("nan"))
    figures = subject.spent()
    assert figures == {"seconds": 0.0, "steps": 0.0, "multiply-adds": 0.0, "pruned": 0.5}
    assert "pruned" not in subject.spent()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fc1.density", 1, "report: expected a name"),
        ("", 1, "report: expected a name"),
        ("a b", 1, "report: expected a name"),
        ("x" * 65, 1, "report: expected a name"),
        ("seconds", 1, "report: expected another name"),
        ("multiply-adds", 1, "report: expected another name"),
        ("unseen-test-labels", 1, "report: expected another name"),
        ("capacity", 1, "report: expected another name"),
        ("trained", 1, "report: expected another name"),
        ("received-loss", 1, "report: expected another name"),
        ("loss", -1, r"report loss: expected a number from 0 to 1e\+18, got -1"),
        ("loss", 2e18, "report loss: expected a number"),
    ],
)
def test_a_report_that_cannot_be_is_refused(name, value, words):
    with pytest.raises(ProtocolError, match=words):
        work().report(name, value)


def test_reports_are_few():
    subject = work()
    for number in range(12):
        subject.report(f"r{number}", number)
    subject.report("r0", 1)
    with pytest.raises(ProtocolError, match="at most 12 names"):
        subject.report("r12", 1)
