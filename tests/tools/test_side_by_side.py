"""Frameworks side by side: what is not here is named, equal is every bit, and the page has no row that was not run."""

from __future__ import annotations

import numpy as np
import pytest

from tools.side_by_side import __main__ as side_by_side
from tools.side_by_side.page import ABSENT, page

ROW = {"version": "1", "again": 0.0, "rounds": 4, "killed_after": 2, "machine": {"date": "2026-11-29"}}


def test_what_is_not_here_is_skipped_by_name(tmp_path, monkeypatch, capsys):
    for name in ("PEERS", "PFLLIB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(side_by_side, "STORED", tmp_path / "rows.ndjson")
    monkeypatch.setattr("sys.argv", ["side-by-side", "fluke", "pfl", "pfllib"])
    side_by_side.main()
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["fluke", "pfl", "pfllib"]
    assert not (tmp_path / "rows.ndjson").exists()


def test_pfllib_needs_its_checkout_also_where_the_others_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PEERS", "/nowhere/python")
    monkeypatch.delenv("PFLLIB", raising=False)
    monkeypatch.setattr("sys.argv", ["side-by-side", "pfllib"])
    side_by_side.main()
    assert capsys.readouterr().err == "pfllib is skipped: PFLLIB names no checkout; it has no package\n"


@pytest.mark.parametrize(("other", "expected"), [(1.0, 0.0), (1.5, 0.5), (np.nextafter(np.float32(1), 2), 2**-23)])
def test_a_difference_is_0_for_equal_bits_alone(other, expected, tmp_path):
    places = [tmp_path / "one", tmp_path / "other"]
    for place, value in zip(places, (1.0, other), strict=True):
        place.mkdir()
        np.save(place / "weights.npy", np.array([value], np.float32))
    assert side_by_side.difference(*places) == expected


def test_the_page_names_what_was_not_run_and_has_bytes_of_deployments_alone():
    text = page([{**ROW, "framework": "pfl", "killed": 0.25}, {**ROW, "framework": "sepal", "reported_bytes": 1234}])
    assert "| pfl-research: 1 | equal | differ by 0.2 | – | – |" in text
    assert "| Sepal: 1 | equal | – | – | 1,234 bytes |" in text
    for key, words in ABSENT.items():
        assert (words in text) == (key not in ("pfl", "sepal"))
    assert "up," not in text
    row = {**ROW, "framework": "sepal", "wire": [3000, 40], "account": [20, 10], "deployed": 0.0}
    assert "| Sepal | 3,000 up, 40 down | 20 up, 10 down | equal |" in page([row])


def test_what_another_does_better_is_said():
    sepal = {**ROW, "framework": "sepal", "again": 0.5, "wire": [5, 5], "account": [0, 0], "deployed": 0.0}
    other = {**sepal, "framework": "flower", "again": 0.0}
    assert "none of these questions" in page([other, {**sepal, "again": 0.0}])
    text = page([{**other, "wire": [4, 5]}, sepal])
    assert "Flower put fewer bytes on the sockets; for the same command twice, weights were equal in Flower" in text
