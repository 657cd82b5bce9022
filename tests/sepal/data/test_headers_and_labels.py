"""Names of columns and labels mean what they say, in every kind of table."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sepal.config import HubReading, HubSettings
from sepal.data import load
from sepal.data.schema import Column
from sepal.data.sources import hub
from sepal.data.sources.table import Roles, read_table
from sepal.errors import DataError
from sepal.export.preparing import read
from tests.sepal.data.origins import origin_of

datasets = pytest.importorskip("datasets")
X = np.arange(6.0)


def csv_of(where, text):
    (where / "all.csv").write_text(text, encoding="utf-8")
    return load("folder", where)


def labelled(where, *labels):
    return csv_of(where, "\n".join(["a,label", *(f"{n},{label}" for n, label in enumerate(labels))]))


def numbers(*names):
    return tuple(Column(name=name, kind="number") for name in names)


def frame(**columns):
    return pd.DataFrame({"a": X, "b": X[::-1], **columns, "label": [0, 1] * 3})


def test_the_index_of_pandas_is_named_and_left_out_of_a_csv_file(tmp_path):
    text = io.StringIO()
    frame().sample(frac=1, random_state=0).to_csv(text)
    source = csv_of(tmp_path, text.getvalue())
    assert source.info.columns == ("a", "b")
    assert source.info.notes == (
        f"{tmp_path / 'all.csv'}: its first column numbers the rows, as pandas does, and is left out",
    )
    table = read(origin_of(source.info), tmp_path / "all.csv")
    assert (table.x.shape, table.notes) == ((6, 2), source.info.notes)


def test_the_index_of_pandas_is_left_out_when_it_was_read_and_written_again(tmp_path):
    text = io.StringIO()
    frame().to_csv(text)
    again = io.StringIO()
    pd.read_csv(io.StringIO(text.getvalue())).to_csv(again, index=False)
    assert again.getvalue().startswith("Unnamed: 0,")
    assert csv_of(tmp_path, again.getvalue()).info.columns == ("a", "b")
    table = read_table(tmp_path / "all.csv", Roles(columns=numbers("Unnamed: 0", "a")))
    assert (table.inputs, table.notes) == (("Unnamed: 0", "a"), ()), "a model that was trained with it gets it"


def test_the_index_of_pandas_is_named_and_left_out_of_a_parquet_file(tmp_path):
    frame().sample(frac=1, random_state=0).to_parquet(tmp_path / "train.parquet")
    source = hub.read(tmp_path, HubReading())
    assert source.info.columns == ("a", "b")
    assert source.info.notes == (f"{tmp_path}: __index_level_0__ numbers the rows, as pandas does, and is left out",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b", "b", "label"], "expected a different name for every column, got 'b' for the columns 2, 3"),
        (["a", "b", "", "label"], "expected a name for every column, got none for column 3"),
    ],
)
def test_columns_of_one_name_or_of_none_are_refused_by_name(tmp_path, names, message):
    with pytest.raises(DataError, match=message):
        csv_of(tmp_path, f"{','.join(names)}\n1,2,3,0\n2,3,4,1\n")
    pq.write_table(pa.table([[1.0, 2.0]] * 3 + [[0, 1]], names=names), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        hub.read(tmp_path, HubReading())


def test_a_data_frame_with_two_columns_of_one_name_is_refused_for_a_model(tmp_path):
    source = csv_of(tmp_path, frame().to_csv(index=False))
    twice = frame()[["a", "b", "b"]]
    with pytest.raises(DataError, match="a different name for every column, got more than one column called b"):
        read(origin_of(source.info), twice)


@pytest.mark.parametrize(
    ("labels", "names", "y"),
    [
        (["1", "0", "2"], (), [1, 0, 2]),
        (["1.0", "0.", "02"], (), [1, 0, 2]),
        (["1_1", "2_4", "2_4"], ("1_1", "2_4"), [0, 1, 1]),
        (["1", "0", "x"], ("0", "1", "x"), [1, 0, 2]),
        (["-1", "1", "1"], ("-1", "1"), [0, 1, 1]),
        (["1e1", "2e1", "1e1"], ("1e1", "2e1"), [0, 1, 0]),
        (["١", "٢", "١"], ("١", "٢"), [0, 1, 0]),
    ],
)
def test_only_digits_are_class_numbers(tmp_path, labels, names, y):
    source = labelled(tmp_path, *labels)
    assert (source.info.class_names, source.y.tolist()) == (names, y)


def test_names_of_classes_are_not_known_by_other_spellings_of_their_numbers(tmp_path):
    (tmp_path / "all.csv").write_text("a,label\n1,0_1\n", encoding="utf-8")
    with pytest.raises(DataError, match="row 2, column label: expected one of ill, well, got '0_1'"):
        read_table(tmp_path / "all.csv", Roles(classes=("ill", "well")))


def test_a_missing_label_is_a_class_only_where_it_is_named_as_one(tmp_path):
    (tmp_path / "all.csv").write_text("a,label\n1,EU\n2,NA\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"row 3, column label: expected a label .*, got 'NA'"):
        read_table(tmp_path / "all.csv")
    assert read_table(tmp_path / "all.csv", Roles(classes=("EU", "NA"))).y.tolist() == [0, 1]


def test_classes_without_an_example_are_said(tmp_path):
    source = labelled(tmp_path, 401, 250, 401)
    assert source.info.classes == 402
    assert source.info.notes == (
        f"{tmp_path / 'all.csv'}: 400 of 402 classes have no example: 0, 1, 2, 3 and 396 more; are they quantities? "
        "task = regression predicts them",
    )
    assert "quantities" not in labelled(tmp_path, 1, 3, 3).info.notes[0]


@pytest.mark.parametrize("x", [np.zeros((2, 3)), np.array([[0, 5], [1, 10**6]])])
def test_more_classes_or_token_ids_than_a_model_has_are_refused_before_anything_is_built(tmp_path, x):
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1 if x.any() else 10**6])
    with pytest.raises(
        DataError, match=r"at most 1,000,000 (classes|token ids), with numbers from 0, got numbers up to"
    ):
        load("folder", tmp_path)


def parts_of(where, train, test, cells=(0, 1, 1)):
    def part(names):
        features = datasets.Features({"a": datasets.Value("float64"), "label": datasets.ClassLabel(names=names)})
        return datasets.Dataset.from_dict({"a": [1.0, 2.0, 3.0], "label": list(cells)}, features)

    datasets.DatasetDict({"train": part(train), "test": part(test)}).save_to_disk(where / "copy")
    return where / "copy"


def test_class_names_in_another_order_are_matched_by_name(tmp_path):
    source = hub.read(parts_of(tmp_path, ["cat", "dog"], ["dog", "cat"]), HubReading())
    assert source.info.class_names == ("cat", "dog")
    assert source.y.tolist() == [0, 1, 1, 1, 0, 0]


def test_class_names_that_are_given_in_another_order_are_matched_by_name(tmp_path):
    keys = HubReading.model_validate({"classes": "dog,cat"})
    source = hub.read(parts_of(tmp_path, ["cat", "dog"], ["cat", "dog"]), keys)
    assert source.y.tolist() == [1, 0, 0, 1, 0, 0]
    renamed = HubReading.model_validate({"classes": "Katze,Hund"})
    assert hub.read(tmp_path / "copy", renamed).y.tolist() == [0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("test", "cells", "message"),
    [
        (["cat", "fox"], (0, 1, 1), "expected class names among cat, dog, got cat, fox"),
        (["dog", "cat"], (0, -1, 1), "expected class numbers from 0 to 1, got -1 to 1"),
    ],
)
def test_classes_that_cannot_be_matched_are_refused(tmp_path, test, cells, message):
    with pytest.raises(DataError, match=message):
        hub.read(parts_of(tmp_path, ["cat", "dog"], test, cells), HubReading())


def test_a_test_part_with_numbers_for_names_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": ["ill", "well"]}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": [0, 1]}), tmp_path / "test.parquet")
    with pytest.raises(DataError, match="column label: expected labels of the training part's type, got int64"):
        hub.read(tmp_path, HubReading())


def test_parts_of_a_copy_that_are_not_read_are_said(tmp_path):
    for part, rows in (("train", 4), ("validation", 2), ("test", 2)):
        pq.write_table(
            pa.table({"a": [1.0, 2.0] * (rows // 2), "label": [0, 1] * (rows // 2)}), tmp_path / f"{part}.parquet"
        )
    assert hub.read(tmp_path, HubReading(hf=HubSettings(validation=""))).info.notes == (
        "hf.train, hf.validation, hf.test: parts that are not read: validation (2 rows)",
    )
