"""Files that take no room and hold very much: holes, and one file under many names."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from rich.console import Console
from safetensors.numpy import save_file

from sepal.data.sources import arrow, femnist, reading
from sepal.data.sources.arrow import PART, PARTS
from sepal.data.sources.folder import read as read_folder
from sepal.data.sources.idx import read_idx
from sepal.data.sources.inputs import read_inputs
from sepal.data.sources.reading import load_array, load_arrays
from sepal.data.sources.table import Roles, read_table
from sepal.errors import DamagedError, SepalError, StateError
from sepal.export.portable import FORMAT, load
from sepal.report import progress
from sepal.report.progress import PlanDisplay
from sepal.runs import claims, json_lines
from sepal.runs.backup import back_up
from sepal.runs.claims import CLAIMS, ClaimRecord, read_claim, read_claims, take_claim
from sepal.runs.json_lines import keep_until, read_rows
from sepal.server.run_store import disk
from sepal.server.run_store.disk import DiskRunStore, checkpoints_of, evict
from sepal.server.summed_uploads import unpack
from sepal.storage import files, json_record, regular
from sepal.storage.files import read_plain_tensors, read_tensors, write_tensors
from sepal.storage.regular import ROWS, read_text
from sepal.study.clusters.records import read_end, read_submission
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.plan import read_table as read_table_of_plan
from sepal.study.run_keys import read_file

HOLE = 200_000_000  # bytes
FAULTS = r"200 MB, of which 0\S* MB are stored|at most 16.8 MB, got 200 MB|more than 16.8 MB"


def read_arrow(path):
    return arrow.read_parts(path.parent, [path], lambda file: "train")


def read_stream(path):
    with reading.reading(str(path), "an Arrow file"):
        return arrow._stream(path)


def tensors(path):
    """A file of safetensors with an array of zeros that take no room."""
    head = json.dumps({"a": {"dtype": "F32", "shape": [HOLE // 4], "data_offsets": [0, HOLE]}}).encode()
    lengthened(path, len(head).to_bytes(8, "little") + head)


def array(path, shape=(1, HOLE // 4)):
    with open(path, "wb") as file:
        npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * int(np.prod(shape)))


def lengthened(path, begin):
    path.write_bytes(begin)
    os.truncate(path, len(begin) + HOLE)


HOLES = {
    "model.safetensors": (tensors, load),
    "weights.safetensors": (tensors, read_plain_tensors),
    "state.safetensors": (tensors, read_tensors),
    "array.npy": (array, load_array),
    "arrays.npz": (lambda path: lengthened(path, b""), partial(load_arrays, expected="arrays")),
    "table.csv": (lambda path: lengthened(path, b"a,label\n1,0\n"), lambda path: read_table(path, Roles())),
    "table.parquet": (lambda path: lengthened(path, b"PAR1"), read_arrow),
    "stream.arrow": (lambda path: lengthened(path, b""), read_stream),
    PARTS: (lambda path: lengthened(path, b'{"splits": []}'), read_arrow),
    PART: (lambda path: lengthened(path, b'{"_data_files": []}'), read_arrow),
    "part.parquet": (lambda path: lengthened(path, b"PAR1"), lambda path: list(femnist._parquet(path))),
    "all_data.json": (lambda path: lengthened(path, b"{}"), lambda path: list(femnist._leaf(path))),
    "images.idx": (lambda path: lengthened(path, b""), read_idx),
    "plan.toml": (lambda path: lengthened(path, b""), read_table_of_plan),
    "run.toml": (lambda path: lengthened(path, b""), read_file),
    "metrics.jsonl": (lambda path: lengthened(path, b'{"round": 1}\n'), partial(keep_until, last=1)),
    "record": (lambda path: lengthened(path, b"0\n{}"), partial(read_text, most=ROWS)),
}


@pytest.mark.parametrize("name", HOLES)
def test_a_file_of_holes_is_refused_before_it_fills_the_memory(name, tmp_path):
    make, read = HOLES[name]
    path = tmp_path / name
    make(path)
    assert path.stat().st_blocks < 100, "or this file system has no holes"
    with pytest.raises(SepalError, match=FAULTS):
        read(path)


@pytest.mark.parametrize("read", [read_folder, read_inputs])
def test_holes_count_as_what_a_compressed_file_would_hold(read, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_UNPACKED", 1 << 20)
    for label in "ab":
        (tmp_path / label).mkdir()
        array(tmp_path / label / "0.npy", (1, 1 << 20))
    with pytest.raises(SepalError, match="a file that holds at most"):
        read(tmp_path)


def test_a_file_of_zeros_without_holes_is_read(tmp_path):
    write_tensors(tmp_path / "zeros.safetensors", {"a": np.zeros(HOLE // 8)}, "{}")
    assert read_tensors(tmp_path / "zeros.safetensors")[0]["a"].shape == (HOLE // 8,)


def text_of(path, text):
    write_tensors(path, {}, text)


def record_of(path, text):
    (path.parent / "records").mkdir()
    (path.parent / "records" / "000001").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def model_of(path, text):
    save_file({"a": np.zeros(1, np.float32)}, path, {"format": FORMAT, "origin": text})


# What reads JSON from elsewhere that may be longer than other files of text, and what writes such a file.
OF_PARTS = {
    "metrics.jsonl": (lambda path, text: path.write_text(f"{text}\n"), partial(keep_until, last=1)),
    "ledger.jsonl": (lambda path, text: path.write_text(f"{text}\n"), read_rows),
    "state.safetensors": (text_of, read_tensors),
    "model.safetensors": (model_of, load),
    "record": (record_of, lambda path: DiskRunStore(path.parent, dict).replay(1)),
    "sums": (lambda path, text: path.write_bytes(text.encode() + b"\n"), lambda path: unpack(path.read_bytes())),
}


@pytest.mark.parametrize("name", OF_PARTS)
def test_json_of_very_many_parts_is_refused_before_it_is_read(name, tmp_path, monkeypatch):
    """Each takes a hundred bytes of memory or more, and three on the disk, or nearly none in an archive."""
    monkeypatch.setattr(regular, "PARTS", 1000)
    monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it was read"))
    write, read = OF_PARTS[name]
    write(tmp_path / name, f'{{"round": 1, "a": [{"[], " * 1000}[]]}}')
    with pytest.raises(SepalError, match="expected at most 1,000 objects and lists, got more"):
        read(tmp_path / name)


def test_a_record_that_is_nested_deeply_is_a_damaged_one(tmp_path):
    record_of(tmp_path / "record", "[" * 100_000)
    with pytest.raises(DamagedError, match="recursion"):
        DiskRunStore(tmp_path, dict).replay(1)


def test_lines_that_no_run_writes_are_cut_off_or_refused(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round": ' + "[" * 100_000 + "\n")
    keep_until(path, 2)
    assert path.read_text() == '{"round": 1}\n'
    monkeypatch.setattr(json_lines, "LINE", 100)
    path.write_bytes(b'{"round": 1}\n' + b" " * 1000)
    with pytest.raises(SepalError, match=r"lines of at most 0\.0001 MB, got a longer one"):
        keep_until(path, 2)


def test_of_a_large_file_elsewhere_no_more_is_copied_than_stays(tmp_path, monkeypatch):
    """A run's file may be a further name of one of many gigabytes, which are cut off in the next moment."""
    sizes = []
    monkeypatch.setattr(
        files,
        "_replacing",
        lambda path, sync, size, mode, replacing=files._replacing: (
            sizes.append(size),
            replacing(path, sync, size, mode),
        )[1],
    )
    (tmp_path / "large").write_bytes(b'{"round": 1}\n' + bytes(1 << 20))
    os.link(tmp_path / "large", tmp_path / "metrics.jsonl")
    keep_until(tmp_path / "metrics.jsonl", 1)
    assert sizes == [13]
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"round": 1}\n'
    assert (tmp_path / "large").stat().st_size > 1 << 20


@pytest.mark.parametrize("content", ["hole", "link", "pipe", "deep", "words", "many"])
def test_progress_shows_of_a_planted_run_what_a_run_writes(content, tmp_path, monkeypatch):
    """`sepal compare` shows a run's lines before its own process has looked at them."""
    (tmp_path / "run").mkdir()
    (tmp_path / "private").write_text('{"round": 1}\n')
    path, printed = tmp_path / "run" / "metrics.jsonl", io.StringIO()
    if content == "link":
        path.symlink_to(tmp_path / "private")
    elif content == "pipe":
        os.mkfifo(path)
    else:
        line = {"deep": b"[" * 100_000, "words": b'{"round": "a"}', "many": b"[" + b"[]," * 1000 + b"[]]"}
        path.write_bytes(line.get(content, b'{"round": 1}') + b"\n")
    if content == "hole":
        os.truncate(path, HOLE)
    monkeypatch.setattr(progress, "LINES", 0)
    if content == "many":
        monkeypatch.setattr(regular, "PARTS", 1000)
        monkeypatch.setattr(json, "loads", lambda text: pytest.fail("it was read"))
    display = PlanDisplay(Console(file=printed))
    display.start(1, 1, tmp_path)
    display.begin(PlannedRun("", "", "", 0, {"name": "run"}))
    tracemalloc.start()
    try:
        display.look()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 25
    assert printed.getvalue().splitlines()[2:] == []


def test_progress_reads_the_end_of_what_is_new_in_a_long_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"round": {number}}}\n' for number in range(1000)))
    monkeypatch.setattr(progress, "LAST", 40)
    shown = progress._ShownRun(0, path)
    assert progress._new_line(shown) == b'{"round": 999}'
    assert progress._new_line(shown) is None
    with path.open("a") as file:
        file.write('{"round": 1000}\n{"round"')
    assert progress._new_line(shown) == b'{"round": 1000}'


def planted(run, link, count=50):
    """A run with one checkpoint, record and claim, each under many names."""
    files = [run / "checkpoints" / "round-000001.safetensors", run / "checkpoints" / "records" / "000001"]
    files.append(run / CLAIMS / "00000001.json")
    for file in files:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_tensors(files[0], {}, json.dumps({"run": "0" * 32, "roster": {}}))
    files[1].write_text('0\n{"record": {"joined": []}}')
    take_claim(run)
    for file in files:
        for number in range(2, count):
            link(file, file.with_name(file.name.replace("000001", f"{number:06d}")))
    return run


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_that_a_run_has_under_many_names_is_read_once(link, tmp_path, monkeypatch):
    """A record of 15 MB costs a second each time, and the names cost nothing."""
    run, count = planted(tmp_path / "run", link), Counter()

    def counted(read):
        def call(path, *arguments, **keys):
            count[Path(path).parent.name] += 1
            return read(path, *arguments, **keys)

        return call

    for module, name in ((disk, "read_tensors"), (disk, "read_text"), (claims, "read_record")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    evict(run / "checkpoints", "client-1")
    assert len(read_claims(run)) == 1
    assert count == {"checkpoints": 1, "records": 1, CLAIMS: 1}
    assert len(checkpoints_of(run)) == 1


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_copy_of_a_run_is_no_larger_than_the_run(link, tmp_path):
    with pytest.raises(StateError, match=r"records/000002: expected a file of its own, got a further name of 000001"):
        back_up(planted(tmp_path / "run", link), tmp_path / "disk")
    assert not list((tmp_path / "disk").iterdir())


def test_no_record_is_larger_than_any_that_sepal_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(json_record.json, "loads", lambda text: pytest.fail("it was read"))
    text = json.dumps({"x": [{}] * 400_000})
    assert len(text) > json_record.LARGEST
    for file in ("jobs/r/submission.json", "jobs/r/end.json", f"r/{CLAIMS}/00000001.json"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for read in (read_submission, read_end):
        with pytest.raises(StateError, match=r"at most 1\.05 MB"):
            read(tmp_path, "r")
    assert read_claim(tmp_path / "r", 1) == ClaimRecord(1)
