"""Tensors in a file: safetensors that anybody reads, with a digest over everything, written without a second copy."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

from sepal.errors import DamagedError, StateError
from sepal.export.portable import load
from sepal.storage import files
from sepal.storage.files import everything_below, read_plain_tensors, read_tensors, write_tensors

KINDS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
ARRAYS = {
    "": np.array(3),
    "/empty": np.zeros((0, 4), np.float32),
    "/w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "/mask": np.array([True, False, True]),
    "/big": np.arange(5, dtype=">f8"),
    "/turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
}


def test_what_was_written_is_read_and_by_safetensors_too(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, ARRAYS, '{"a": "\\u00e9"}')
    back, text = read_tensors(path)
    assert json.loads(text) == {"a": "é"}
    for loaded in (back, load_file(path)):
        assert set(loaded) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert loaded[name].dtype == array.dtype.newbyteorder("=")
            assert loaded[name].shape == array.shape
            assert np.array_equal(loaded[name], array)


@given(
    st.dictionaries(
        st.text(max_size=9),
        hnp.arrays(st.sampled_from(KINDS), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
        max_size=5,
    ).filter(lambda metadata: "__metadata__" not in metadata),
    st.dictionaries(st.text(max_size=9), st.text(max_size=30), max_size=2).map(json.dumps),
)
def test_any_arrays_come_back(tmp_path_factory, arrays, text):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    write_tensors(path, arrays, text, sync=False)
    back, metadata = read_tensors(path)
    assert metadata == text
    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in back.items()} == {
        n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()
    }


def test_every_byte_counts(tmp_path):
    """Whichever byte of a file is another one, it is not read: head, padding, digest, tensors."""
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"w": np.arange(3, dtype=np.float32)}, '{"a": 1}')
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DamagedError):
            read_tensors(path)
    for size in (0, 7, 8, 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError):
            read_tensors(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_a_file_of_somebody_else_with_a_digest_that_fits_nothing_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"w": np.zeros(2, np.float32)}, path, {"sepal": "text", "sha256": "0" * 64})
    with pytest.raises(DamagedError):
        read_tensors(path)


def test_a_large_state_is_written_without_a_second_copy(tmp_path):
    arrays = {f"/{number}": np.ones(2**20, np.float64) for number in range(4)}  # 32 MiB in all
    tracemalloc.start()
    try:
        write_tensors(tmp_path / "x.safetensors", arrays, "{}", sync=False)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_state_above_the_limit_is_refused_in_one_line_and_the_file_stays(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, ARRAYS, "{}")
    with pytest.raises(
        StateError, match=r"x\.safetensors: expected a state of at most 2\.98e-08 GiB, got 1\.12e-07 GiB"
    ):
        write_tensors(path, {"w": np.zeros(30, np.float32)}, "{}", limit=32)
    assert len(read_tensors(path)[0]) == len(ARRAYS)


def test_a_head_that_the_format_cannot_hold_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_HEADER", 300)
    with pytest.raises(StateError, match=r"names and structure of at most 0\.0003 MB"):
        write_tensors(tmp_path / "x.safetensors", {}, "x" * 300)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read", [read_tensors, read_plain_tensors, load], ids=lambda read: read.__name__)
@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "BF16"])
def test_a_tensor_of_a_type_that_numpy_lacks_is_one_line_for_each_reader(kind, read, tmp_path, monkeypatch):
    path, header = tmp_path / "x.safetensors", files._header
    monkeypatch.setattr(files, "_header", lambda *of: _of_kind(header(*of), kind))
    write_tensors(path, {"w": np.zeros(8, np.int16 if kind == "BF16" else np.int8)}, "{}")
    with pytest.raises(StateError) as caught:
        read(path)
    assert "x.safetensors: expected" in str(caught.value)
    assert "another" not in str(caught.value), "its digest is right"


def _of_kind(header, kind):
    """The header with another type of the same size, and of the same length."""
    for plain in (b'"I16"', b'"I8"'):
        header = header.replace(plain, f'"{kind}"'.encode())
    return header.rstrip(b" ") + b" " * (-len(header.rstrip(b" ")) % 8)


def test_a_directory_that_is_deleted_during_a_walk_is_left_out(tmp_path):
    """A live run deletes the uploads of a round while `sepal clean` measures it."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "1")
    names = []
    for path in everything_below(tmp_path):
        names.append(str(path.relative_to(tmp_path)))
        if path.name == "2":
            shutil.rmtree(path)
    assert sorted(names) == [".", "1", "1/file", "2", "link"]
