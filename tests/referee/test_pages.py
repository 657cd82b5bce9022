"""Results pages are made from their templates and the stored runs, and a template cannot say what the runs do not."""

from __future__ import annotations

import pytest

from referee.checkout import RESULTS
from referee.pages import pages
from referee.paper.quotes import Quotes
from sepal.errors import ConfigError
from sepal.study.record import RunRecord


def test_each_page_equals_what_its_rows_and_template_give():
    """If this fails: python -m referee.pages."""
    made_pages = pages()
    assert [path.name for path, text in made_pages.items() if not path.is_file() or path.read_text() != text] == []
    assert {*RESULTS.glob("*.md"), *RESULTS.glob("tables/*.md")} <= made_pages.keys()


def runs(*rows: list[float]) -> list[RunRecord]:
    """One run a seed, with these accuracies of clients a, b, c."""
    return [
        RunRecord(
            config={"seed": seed},
            clients={"name": ["a", "b", "c"], "kept": row, "received-shift-100": row},
            accuracy={"kept": {"mean": sum(row) / 3}},
            validation={"trained": row[0]},
            bytes={"up": 1e6, "down": 2e6, "up_dense": 4e6, "down_dense": 4e6},
        )
        for seed, row in enumerate(rows)
    ]


def cell() -> Quotes:
    """Ours is ahead of theirs by .1, .2, .3 of a, b, c: 20 ± 4.303 · 10 / √3 = 24.8 points; far by .1 everywhere."""
    groups = {"ours": runs([0.5, 0.6, 0.7]), "theirs": runs([0.4, 0.4, 0.4]), "far": runs([0.3, 0.4, 0.5])}
    return Quotes("first", groups, {"ours": "kept", "theirs": "received", "far": "kept"})


def test_what_is_called_ahead_is_ahead_and_what_is_called_even_is_not():
    assert cell().even("ours", "theirs", "kept") == "+20.0 [−4.8, +44.8]"
    assert cell().ahead("ours", "far") == "20.0 [20.0, 20.0]"
    for refused in (
        lambda: cell().ahead("ours", "theirs", "kept"),
        lambda: cell().ahead("far", "ours"),
        lambda: cell().even("ours", "far"),
    ):
        with pytest.raises(ConfigError, match="page: first: expected"):
            refused()
    with pytest.raises(ConfigError, match="page: expected one of ours, theirs, far in first, got other"):
        cell().acc("other")
    with pytest.raises(ConfigError, match="expected a view that theirs has, got received"):
        cell().acc("theirs")


def test_each_seed_may_be_quoted():
    two = Quotes("first", {"ours": runs([0.5, 0.6, 0.7], [0.3, 0.4, 0.5])}, {"ours": "kept"})
    assert (two.seeds("ours"), two.acc("ours")) == ("60.0, 40.0", "50.0")
    assert two.held_out("ours") == "40.0"  # the first client's: the mean of .5 and .3


def test_a_view_is_the_deployed_one_of_each_method_and_shares_are_of_the_dense_bytes():
    assert cell().diff("ours", "theirs", "kept", rival_view="kept") == "+20.0 [−4.8, +44.8]"
    assert cell().diff("far", "theirs", "received", shift=True) == "0.0 [−24.8, +24.8]"
    assert (cell().acc("ours"), cell().mb("ours"), cell().dense("ours"), cell().dense("ours", ("up",))) == (
        "60.0",
        "3.0",
        "37.5",
        "25.0",
    )
