"""Ten more bug reports of other projects about their users' data: what is read, said, or refused in one line."""

from __future__ import annotations

import time
import types

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from sepal.data import ClientData, load
from sepal.data.own import own_data
from sepal.errors import DataError, SepalError
from sepal.strategies.assembly import assemble
from sepal.study.run import execute, prepare

MODULE = "tests_more_reports"
ROWS = 40


def table(directory, cells, head="label,a"):
    (directory / "all.csv").write_bytes(
        (f"{head}\n" + "".join(f"{cells[n % len(cells)]}\n" for n in range(ROWS))).encode()
    )
    return load("folder", directory)


def arrays(directory, **members):
    np.savez(directory / "all.npz", **members)
    return load("folder", directory)


@pytest.fixture
def returns(monkeypatch):
    """Give own_data a function that returns a value."""

    def give(value):
        module = types.ModuleType(MODULE)
        module.load = lambda: value
        monkeypatch.setitem(__import__("sys").modules, MODULE, module)
        return f"{MODULE}:load"

    return give


def parts(x=None, y=None):
    rng = np.random.default_rng(0)
    given_x, given_y = rng.normal(size=(ROWS, 3)), rng.integers(0, 2, ROWS)
    return (given_x if x is None else x, given_y if y is None else y, given_x, given_y)


def test_a_mask_is_not_lost(returns):
    """Of a masked array, torch and NumPy read what is under the mask, such as -999."""
    x = np.ma.masked_less(np.random.default_rng(0).normal(size=(ROWS, 3)), 0)
    with pytest.raises(
        DataError, match=r"without a mask, which would be lost \(fill in what is masked\), got \d+ mask"
    ):
        own_data(returns(parts(x)))
    assert own_data(returns(parts(np.ma.masked_less(np.ones((ROWS, 3)), 0)))).train.x.all()


@pytest.mark.parametrize("numbers", ["Float64", object])
def test_numbers_that_pandas_stores_as_objects_are_numbers(returns, numbers):
    """With torch: "can't convert np.ndarray of type numpy.object_" for a frame of numbers."""
    plain = own_data(returns(parts()))
    x, y = parts()[:2]
    source = own_data(returns(parts(pd.DataFrame(x).astype(numbers), pd.Series(y).astype("Int64").astype(object))))
    assert (source.train.x == plain.train.x).all()
    assert (source.train.y == plain.train.y).all()


@pytest.mark.parametrize(
    ("odd", "got"),
    [("ill", "objects such as 'ill'"), (pd.NA, "objects such as <NA>"), ([1, 2], "rows of different lengths")],
)
def test_what_an_array_of_objects_holds_is_said(returns, odd, got):
    x = pd.DataFrame(parts()[0]).astype(object)
    x.iat[3, 1] = odd
    with pytest.raises(DataError, match=f"x: expected an array of numbers, got {got}"):
        own_data(returns(parts(x)))


def test_big_endian_and_turned_arrays_are_the_same_numbers(returns, tmp_path):
    """pytorch/pytorch#3671 (">f4" gave 1e-41), #33254 (negative strides), Fortran's order."""
    x, y = (np.asarray(part) for part in parts()[:2])
    plain = own_data(returns(parts(x, y)))
    for odd in (x.astype(">f8"), np.asfortranarray(x), x[::-1][::-1]):
        assert (own_data(returns(parts(odd, y.astype(">i8")))).train.x == plain.train.x).all()
    assert (arrays(tmp_path, x=x.astype(">f4"), y=y.astype(">i2")).x == x.astype(np.float32)).all()


def test_a_tensor_with_a_gradient_is_its_numbers(returns):
    """ "Can't call numpy() on Tensor that requires grad" was an error of a node, for which a run waited ten minutes."""
    x = torch.tensor(parts()[0], requires_grad=True)
    assert (own_data(returns(parts(x))).train.x == own_data(returns(parts())).train.x).all()


def test_an_error_of_a_client_in_process_ends_the_run_at_once(tmp_path, monkeypatch):
    def failing(*arguments):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("sepal.client_app.build.data_digest", failing)
    begun = time.monotonic()
    with pytest.raises(SepalError, match="clients: expected answers, got error 2: RuntimeError: a fault of ours"):
        execute(prepare({"dataset": "digits", "clients": 2, "rounds": 1, "out": str(tmp_path)}, tmp_path), 1)
    assert time.monotonic() - begun < 300, "the run's timeout is 600 s"


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.eye(2)[np.zeros(ROWS, int)], r"one-hot labels: y.argmax\(1\)"),
        (np.zeros(ROWS), r"whole numbers \(y.astype\(int\)\), got float64"),
        (np.zeros(ROWS, bool), r"whole numbers \(y.astype\(int\)\), got bool"),
        (np.array(["a", "b"] * (ROWS // 2)), r"whole numbers \(texts: np.unique\(y, return_inverse=True\)"),
    ],
)
def test_labels_of_other_forms_are_refused_with_the_way_to_numbers(tmp_path, y, words):
    """EricFillion/happy-transformer#248, milesial/Pytorch-UNet#291: "Target … is out of bounds", or a wrong shape."""
    with pytest.raises(DataError, match=words):
        arrays(tmp_path, x=parts()[0], y=y)


def test_a_data_loader_is_refused_by_name(returns):
    """flwrlabs/flower's examples keep DataLoaders; a batch is no example."""
    part = DataLoader(TensorDataset(torch.zeros(ROWS, 3), torch.zeros(ROWS, dtype=int)), 8)
    with pytest.raises(DataError, match="got a DataLoader, which gives batches: return its dataset"):
        own_data(returns((part, part)))


@pytest.mark.parametrize(
    ("cell", "way"),
    [
        ('"1,5"', "a decimal point, and nothing between thousands: 1234.5"),  # pandas-dev/pandas#59299
        ('"1,234"', "a decimal point, and nothing between thousands: 1234.5"),  # pandas-dev/pandas#25218: 53,2 was 532
        ("1 234", "a decimal point, and nothing between thousands: 1234.5"),
        ("1.234.567", "a decimal point, and nothing between thousands: 1234.5"),
        ("31/1/2026", "a time is written as 2026-01-31"),
        ("#N/A", "a missing one is an empty cell, NA or NaN"),
        ("null", "a missing one is an empty cell, NA or NaN"),
    ],
)
def test_a_cell_that_is_no_number_is_refused_with_a_way_out(tmp_path, cell, way):
    with pytest.raises(DataError, match=rf"column a: expected a finite number \({way}\), got '"):
        table(tmp_path, ["0,1", f"1,{cell}"])


@pytest.mark.parametrize("code", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_name_and_utf_16_is_called_so(tmp_path, code):
    """pandas-dev/pandas#13497, duckdb/duckdb#2908: the first column was called \\ufefflabel."""
    (tmp_path / "all.csv").write_bytes("label,a\r\n0,1\r\n1,2\r\n".encode(code))
    if code == "utf-8-sig":
        assert load("folder", tmp_path).info.columns == ("a",)
        return
    with pytest.raises(DataError, match="iconv -f UTF-16 -t UTF-8"):
        load("folder", tmp_path)


def test_classes_and_categories_that_differ_in_case_alone_are_named(tmp_path):
    """pandas reads TRUE, True and true as one; here they are three, and a line says so."""
    source = table(tmp_path, ["yes,a,True", "Yes,b,TRUE", "no,c,true"], head="label,a,smoker")
    assert "column smoker: TRUE and True and true differ in case alone, and are read as different" in source.info.notes
    assert any(
        note.endswith("classes: Yes and yes differ in case alone, and are read as different")
        for note in source.info.notes
    )
    assert not any("differ in case" in note for note in table(tmp_path, ["yes,a", "no,b"]).info.notes)


def test_a_column_that_numbers_the_rows_is_named(tmp_path):
    """An id from 1 on is sorted as the file is, often by class: a model learns it. pandas' index is left out."""
    source = table(tmp_path, [f"{n},{n % 2},{n % 7}" for n in range(1, ROWS + 1)], head="id,label,a")
    assert any(
        "id numbers the rows; folder.leave-out leaves it out if it is an id" in note for note in source.info.notes
    )
    assert not any("numbers the rows" in note for note in table(tmp_path, ["0,1", "1,2"]).info.notes)


def test_what_a_mac_or_a_notebook_adds_to_a_directory_is_no_class_and_no_image(tmp_path):
    """pytorch/vision#2831, open-mmlab/mmpretrain#507: .ipynb_checkpoints was a class."""
    for name in ("cat", "dog", ".ipynb_checkpoints", "__MACOSX"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "0.png")
    (tmp_path / "cat" / "._0.png").write_bytes(b"\x00\x05\x16\x07")
    source = load("folder", tmp_path)
    assert (source.info.class_names, len(source.y)) == (("cat", "dog"), 2)


@pytest.mark.parametrize(("content", "got"), [(b"", "an empty file"), (b"RIFF1234", "8 bytes that are none")])
def test_a_file_that_is_no_image_is_said_without_an_address_in_memory(tmp_path, content, got):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(content)
    with pytest.raises(DataError, match=f"expected a PNG or JPEG image.*, got {got}$"):
        load("folder", tmp_path)


def test_images_whose_colours_come_last_and_pixels_that_were_not_scaled_are_named(tmp_path):
    """keras' (n, H, W, C) in torch's place, and 0 … 255: both train, and badly."""
    rng = np.random.default_rng(0)
    x, y = rng.random((ROWS, 16, 16, 4), np.float32), rng.integers(0, 2, ROWS)
    np.savez(tmp_path / "all.npz", x=x, y=y)
    keys = {"dataset": "folder", "data-dir": str(tmp_path), "clients": 2}
    line = "data: images of 16 x 4 pixels in 16 channels; if their colours come last, x.transpose(0, 3, 1, 2) puts them"
    assert any(note.startswith(line) for note in assemble(keys).notes)
    (tmp_path / "pixels").mkdir()
    np.savez(tmp_path / "pixels" / "all.npz", x=255 * x.transpose(0, 3, 1, 2), y=y)
    notes = assemble({**keys, "data-dir": str(tmp_path / "pixels")}).notes
    assert not any("their colours" in note for note in notes)
    assert any("floats up to 25" in note and "x / 127.5 - 1 is usual" in note for note in notes)


@pytest.mark.parametrize("keys", [{"batch-size": 8}, {"batch-size": 1}])
def test_a_last_batch_of_one_example_trains_with_batch_norm(tmp_path, monkeypatch, keys):
    """scverse/scvi-tools#2314: "Expected more than 1 value per channel"; alibaba/FederatedScope#123."""
    module = types.ModuleType(MODULE)

    def build(shape, classes):
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, classes))

    def load_one(client):
        x, y = parts()[:2]
        count = 33 if client else 1
        return ClientData(*(own_data_part(x[:n], y[:n]) for n in (count, 0, 20)))

    module.load, module.build = load_one, build
    monkeypatch.setitem(__import__("sys").modules, MODULE, module)
    data = {"dataset": "own", "own.data": f"{MODULE}:load", "own.shape": "3", "own.classes": 2, "lr": 0.1}
    flat = {**data, "model": f"{MODULE}:build", "clients": 2, "rounds": 1, "method": "fedavg", **keys}
    assert execute(prepare({**flat, "out": str(tmp_path), "name": "r"}, tmp_path), 1)


def own_data_part(x, y):
    from sepal.data import Examples

    return Examples(np.asarray(x, np.float32), y)
