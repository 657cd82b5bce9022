"""Bounded memories: the bound holds, and what is to be kept is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from sepal.errors import StateError
from sepal.storage.bounded import BoundedCache, Spill


def test_what_fits_is_kept_and_nothing_makes_room_for_it():
    cached = BoundedCache(10)
    for key, size in (("a", 4), ("b", 6), ("c", 1)):
        cached.keep(key, key.upper(), size)
    assert (cached.get("a"), cached.get("b"), cached.get("c")) == ("A", "B", None)
    assert cached.bytes == 10
    cached.drop("a")
    cached.keep("c", "C", 4)
    assert (cached.get("a"), cached.get("c"), cached.bytes) == (None, "C", 10)
    cached.drop("nobody")


def test_a_value_kept_again_counts_once():
    cached = BoundedCache(10)
    cached.keep("a", 1, 3)
    cached.keep("a", 2, 5)
    assert (cached.get("a"), cached.bytes) == (2, 5)


def test_what_does_not_fit_goes_to_disk_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spill = Spill(limit=10)
    data = {f"client-{number}/.": bytes([number]) * 4 for number in range(5)}
    for key, value in data.items():
        spill.put(key, value)
    assert spill.bytes == 8
    assert {key: spill.get(key) for key in data} == data
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    with pytest.raises(KeyError):
        spill.get("nobody")
    spill.clear()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError):
        spill.get("client-0/.")
    spill.put("again", b"x")
    assert spill.get("again") == b"x"


def test_no_place_for_temporary_files_is_one_line(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(Path("/nonexistent")))
    with pytest.raises(StateError, match="TMPDIR: expected a directory for temporary files"):
        Spill(limit=0).put("a", b"x")
