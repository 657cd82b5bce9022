"""Pages of claims follow from their rows, and a number of README without a claim is listed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from referee.leaderboard.blocks import text as text_of
from tools.artifact import __main__ as artifact
from tools.artifact import claims, stored
from tools.artifact.claims import CLAIMS, DEPLOYED, NAMES, Claim
from tools.artifact.paper import MOST_WORDS, PAPER


def claim(got, name="one"):
    return Claim(name, "words", "some 12 of them", lambda: (1.0, 0.9, 1.1), "README.md", 1, lambda: got)


@pytest.mark.parametrize(("got", "code"), [(1.0, 0), (1.1, 0), (1.11, 1), (float("nan"), 1)])
def test_a_figure_outside_of_its_interval_is_said_and_stored(got, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(artifact, "STORED", tmp_path / "rows.ndjson")
    assert artifact.run([claim(0.95, "other"), claim(got)]) == code
    assert ("DIFFERS" in capsys.readouterr().out) == bool(code)
    rows = [json.loads(line) for line in (tmp_path / "rows.ndjson").read_text().splitlines()]
    assert [(row["claim"], row["holds"]) for row in rows] == [("other", True), ("one", not code)]


def test_numbers_without_a_claim_are_listed_by_line(monkeypatch):
    monkeypatch.setattr(artifact, "CLAIMS", (claim(1.0),))
    text = "# A\nThere are some 12 of them, in 3.4 % of all.\n```\nrun 7\n```\nand `8`, [x](y/9.md)\n12 times\n"
    assert list(artifact.uncovered(text)) == ["README.md:2: 3.4 %", "README.md:7: 12 times"]


def test_claims_have_names_of_their_own_and_quotes_that_readme_has():
    readme = (artifact.ROOT / "README.md").read_text()
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert [claim.name for claim in CLAIMS if claim.quote not in readme] == []
    assert [claim.name for claim in CLAIMS if not (artifact.ROOT / claim.stored).exists()] == []


def test_a_row_that_is_run_again_gives_what_is_expected_of_it(monkeypatch):
    rows = {text_of(stored.har_row(name).config): stored.har_row(name) for name in NAMES}
    monkeypatch.setattr(claims, "execute", lambda planned, commit: rows[text_of(planned.config)])
    for name in NAMES:
        expected, low, high = claims.har_expected(name)
        assert claims.har_accuracy(name) == expected
        assert low - artifact.ROUNDING <= expected <= high + artifact.ROUNDING


def test_the_claim_on_deployments_runs_a_test():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", *DEPLOYED]
    result = subprocess.run(command, cwd=artifact.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, "no test is selected"


def test_pages_are_what_the_rows_give():
    for path, text in artifact.written().items():
        assert path.read_text() == text, f"python -m tools.artifact --pages writes {path.name}"
    assert len(PAPER.read_text().split("---", 2)[2].split()) <= MOST_WORDS
