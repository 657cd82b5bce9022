"""The cache: the same data with and without it, across processes, and whatever happens to its files."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from sepal.config import PartitionSettings
from sepal.data import DataSpec, cache, client_data, federation, pooled_test, sources
from sepal.errors import DataError

SPEC = DataSpec("digits", partition=PartitionSettings(name="iid"), clients=4)

SECOND_LOOK = """
import sys, numpy as np
from sepal.config import PartitionSettings
from sepal.data import DataSpec, client_data
data = client_data(DataSpec("digits", partition=PartitionSettings(name="iid"), clients=4), 2)
heavy = sorted({"torch", "torchvision", "flwr_datasets", "datasets", "pyarrow", "sklearn", "PIL"} & set(sys.modules))
print(float(data.train.x.sum()), int(data.test.y.sum()), heavy)
"""


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache on disk, and nothing remembered in memory before or after."""

    def forget():
        sources._remembered.cache_clear()
        federation._remembered.cache_clear()

    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def same(a, b):
    return all(
        np.array_equal(getattr(a, part).x, getattr(b, part).x)
        and np.array_equal(getattr(a, part).y, getattr(b, part).y)
        for part in ("train", "validation", "test")
    )


def look(times=1):
    runs = [subprocess.Popen([sys.executable, "-c", SECOND_LOOK], stdout=subprocess.PIPE) for _ in range(times)]
    return [run.communicate(timeout=100)[0].decode() for run in runs]


def test_from_memory_and_from_disk_are_the_same(fresh):
    first = client_data(SPEC, 2)
    sources._remembered.cache_clear()
    federation._remembered.cache_clear()
    assert same(first, client_data(SPEC, 2))


def test_a_second_process_imports_nothing_heavy(fresh):
    client_data(SPEC, 0)
    (printed,) = look()
    assert printed.strip().endswith("[]")


def test_processes_that_start_together_agree_and_leave_whole_entries(fresh):
    first, second = look(2)
    assert first.split(" [")[0] == second.split(" [")[0]
    entries = [entry for entry in fresh.iterdir() if entry.is_dir()]
    assert len(entries) == 2  # source and parts; nothing temporary
    assert all(cache.read(cache.Entry(entry)) is not None for entry in entries)


def parts(cache_directory):
    """The entries that hold who has which rows."""
    return sorted(path.parent for path in cache_directory.glob("*/rows.npy"))


def test_an_entry_is_named_by_a_hash_of_what_decides_it(fresh):
    client_data(SPEC, 0)
    (entry,) = parts(fresh)
    assert len(entry.name) == 64
    client_data(SPEC, 1)
    assert parts(fresh) == [entry]
    client_data(DataSpec("digits", partition=PartitionSettings(name="iid"), clients=5), 0)
    assert len(parts(fresh)) == 2


def test_a_place_that_cannot_be_written_changes_nothing(fresh, monkeypatch, tmp_path):
    expected = client_data(SPEC, 1)
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "file" / "below"))
    sources._remembered.cache_clear()
    federation._remembered.cache_clear()
    assert same(expected, client_data(SPEC, 1))


@pytest.mark.parametrize("damage", ["truncate", "remove", "notes", "shape"])
def test_a_damaged_entry_is_made_anew(fresh, damage):
    expected = client_data(SPEC, 3)
    (entry,) = parts(fresh)
    rows = entry / "rows.npy"
    if damage == "truncate":
        os.truncate(rows, rows.stat().st_size // 2)
    elif damage == "remove":
        rows.unlink()
    elif damage == "notes":
        (entry / "notes.json").write_text("{")
    else:
        np.save(rows, np.arange(3))
    federation._remembered.cache_clear()
    assert same(expected, client_data(SPEC, 3))


def test_entries_are_read_only_memory_maps_without_pickle(fresh, tmp_path):
    assert cache.write(cache.Entry(tmp_path / "entry"), {"a": np.arange(4)}, {"n": 1})
    arrays, notes = cache.read(cache.Entry(tmp_path / "entry"))
    assert isinstance(arrays["a"], np.memmap)
    assert not arrays["a"].flags.writeable
    assert notes == {"n": 1}
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        cache.write(cache.Entry(tmp_path / "other"), {"a": np.array([None])}, {})
    assert not (tmp_path / "other").exists()


def test_the_second_writer_leaves_the_first_ones_entry(tmp_path):
    assert cache.write(cache.Entry(tmp_path / "entry"), {"a": np.arange(4)}, {})
    assert cache.write(cache.Entry(tmp_path / "entry"), {"a": np.arange(9)}, {})
    assert len(cache.read(cache.Entry(tmp_path / "entry"))[0]["a"]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_call_order_changes_nothing(fresh):
    forwards = [client_data(SPEC, client) for client in range(4)]
    federation._remembered.cache_clear()
    (backwards := [client_data(SPEC, client) for client in reversed(range(4))]).reverse()
    assert all(same(a, b) for a, b in zip(forwards, backwards, strict=True))


def test_what_is_returned_can_be_changed_without_harm(fresh):
    first = client_data(SPEC, 0)
    first.train.x[:] = 0
    first.train.y[:] = 0
    assert client_data(SPEC, 0).train.x.any()


def test_pooled_test_is_distinct_nested_and_the_same_for_all():
    everything, small, large = pooled_test(SPEC), pooled_test(SPEC, 50, 1), pooled_test(SPEC, 100, 1)
    assert (len(everything), len(small), len(large)) == (359, 50, 100)
    assert len(np.unique(everything.x.reshape(359, -1), axis=0)) == 359
    inside = {row.tobytes() for row in large.x}
    assert all(row.tobytes() in inside for row in small.x)
    assert np.array_equal(small.x, pooled_test(SPEC, 50, 1).x)
    assert not np.array_equal(small.x, pooled_test(SPEC, 50, 2).x)
    assert len(pooled_test(SPEC, 10_000)) == 359


@pytest.mark.parametrize("client", [-1, 4])
def test_there_is_no_such_client(client):
    with pytest.raises(DataError, match=f"client: expected a number from 0 to 3, got {client}"):
        client_data(SPEC, client)
