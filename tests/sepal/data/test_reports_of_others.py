"""Bug reports of other projects about their users' data: what is read, or refused in one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sepal.config import FolderSettings, HubReading
from sepal.data import load
from sepal.data.schema import Column, TableSchema
from sepal.data.sources import hub
from sepal.data.sources.inputs import read_inputs
from sepal.data.sources.kinds import encoded
from sepal.data.sources.table import Roles, read_table
from sepal.errors import DataError
from sepal.export.preparing import prepared, read
from sepal.strategies.assembly import assemble
from tests.sepal.data.origins import origin_of


def csv(directory, text):
    (directory / "all.csv").write_text(text)
    return load("folder", directory)


def images(directory, names, size=(12, 12)):
    for name in names:
        (directory / name).mkdir(parents=True)
        Image.new("L", size).save(directory / name / "0.png")


def test_directories_called_by_numbers_are_in_the_order_of_texts_and_it_is_said(tmp_path):
    """pytorch/vision#714, facebookresearch/deit#130: directories 1 … 100, and class 2 is 10."""
    images(tmp_path, map(str, range(12)))
    source = load("folder", tmp_path)
    assert source.info.class_names[2] == "10"
    assert "classes are in the order of texts: class 2 is 10 (folder.classes)" in source.info.notes[0]
    ordered = load("folder", tmp_path, FolderSettings(classes=",".join(map(str, range(12)))))
    assert ordered.info.notes == ()
    images(tmp_path / "few", ["0", "1", "2"])
    assert load("folder", tmp_path / "few").info.notes == ()


def test_a_table_beside_images_does_not_hide_them_in_silence(tmp_path):
    """huggingface/datasets#4681: a CSV file in a directory of images."""
    images(tmp_path, ["cat", "dog"])
    source = csv(tmp_path, "a,label\n1,0\n2,1\n")
    assert source.info.notes == ("data-dir: only all.csv is read, and not 2 images in directories",)
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2), np.float32), y=[0, 1, 0, 1])
    notes = load("folder", tmp_path).info.notes
    assert notes == ("data-dir: only a.npz is read, and not all.csv, 2 images in directories",)
    assert load("folder", tmp_path / "a.npz").info.notes == ()


def test_cells_that_lack_only_where_a_model_is_used_are_filled_or_refused(tmp_path):
    """fastai/fastai#74, #2911: a column with missing cells in the test table alone gave another number of inputs."""
    info = csv(tmp_path, "a,b,label\n1,x,0\n2,y,1\n3,x,0\n").info
    (tmp_path / "new.csv").write_text("a,b\n,\n2,y\n")
    facts = {"offset": (2.0, 0.0, 0.0), "factor": (1.0, 1.0, 1.0), "schema": info.schema}
    rows = prepared(
        origin_of(info, **facts, fill=True), read(origin_of(info, **facts, fill=True), tmp_path / "new.csv").x
    )
    np.testing.assert_array_equal(rows, [[np.nan] * 3, [2, 0, 1]])
    with pytest.raises(DataError, match="2 without one: 1 in a, 1 in b"):
        read(origin_of(info, **facts), tmp_path / "new.csv")


def test_a_category_may_be_called_as_a_missing_cell_is(tmp_path):
    """autogluon/autogluon#844: what is missing is no value, unless the schema has a value of that name."""
    (tmp_path / "a.csv").write_text("country,label\nNA,0\nDE,1\n,0\n")
    column = Column(name="country", kind="category", values=("DE", "NA"))
    table = read_table(tmp_path / "a.csv", Roles(columns=(column,)), fill=True)
    np.testing.assert_array_equal(table.x, [[0, 1], [1, 0], [np.nan, np.nan]])


def test_categories_go_by_their_values_whatever_a_frame_numbers_them(tmp_path):
    """autogluon/autogluon#5830, fastai/fastai#3227: codes of another Categorical, and categories that do not occur."""
    info = csv(tmp_path, "b,label\nx,0\ny,1\nz,0\n").info
    origin = origin_of(info, offset=(0.0,) * 3, factor=(1.0,) * 3, schema=info.schema)
    cells = pd.Categorical(["z", "x"], categories=["unused", "z", "y", "x"])
    np.testing.assert_array_equal(read(origin, pd.DataFrame({"b": cells})).x, [[0, 0, 1], [1, 0, 0]])


def test_whole_numbers_that_pandas_made_floats_are_the_same_categories():
    """A column 1, 2 with an empty cell is 1.0, 2.0 once pandas has read and written it."""
    column = Column(name="grade", kind="category", values=("1", "2"))
    cells = pa.array(["1.0", "2", "", "2.0"])
    np.testing.assert_array_equal(encoded("t", column, cells), [[1, 0], [0, 1], [np.nan, np.nan], [0, 1]])
    with pytest.raises(DataError, match=r"expected one of 1, 2, got '1.5'"):
        encoded("t", column, pa.array(["1.5"]))


def test_a_category_that_was_not_in_training_is_refused_by_name(tmp_path):
    """Lightning-Universe/lightning-flash#825, dreamquark-ai/tabnet#359: IndexError in the embedding, or a wrong row."""
    info = csv(tmp_path, "b,label\nx,0\ny,1\n").info
    (tmp_path / "new.csv").write_text("b\nx\nw\n")
    with pytest.raises(DataError, match="row 3, column b: expected one of x, y, got 'w'"):
        read_inputs(tmp_path / "new.csv", schema=TableSchema.model_validate_json(info.schema))


def test_names_of_columns_are_taken_without_the_space_around_them(tmp_path):
    """zhao-zilong/Tabula#18, flwrlabs/flower#3568: `age, work class, income`, as in the UCI Adult table."""
    (tmp_path / "all.csv").write_text("age, work class, income\n39, State-gov, <=50K\n50, Private, >50K\n")
    source = load("folder", tmp_path, FolderSettings(label="income"))
    assert source.info.columns == ("age", "work class=Private", "work class=State-gov")
    assert source.info.class_names == ("<=50K", ">50K")
    columns = (Column(name=" work class", kind="category", values=("Private", "State-gov")),)
    assert read_table(tmp_path / "all.csv", Roles(columns=columns)).x.shape == (2, 2), "a model of before"
    with pytest.raises(DataError, match="a different name for every column, got 'a' for the columns 1, 2"):
        csv(tmp_path, "a, a,label\n1,2,0\n")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_other_marks_between_cells_are_named(tmp_path, mark):
    """What spreadsheets of many countries write as CSV."""
    with pytest.raises(DataError, match="header: expected commas between cells, got"):
        csv(tmp_path, f"a{mark}label\n1,5{mark}0\n")


def test_files_of_one_part_with_other_columns_are_one_line(tmp_path):
    """CastError of huggingface/datasets, in pages of traceback."""
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": [0, 1]}), tmp_path / "train-0.parquet")
    pq.write_table(pa.table({"b": [1.0, 2.0], "label": [0, 1]}), tmp_path / "train-1.parquet")
    with pytest.raises(DataError, match="a directory of save_to_disk, or with Parquet files of the same columns"):
        hub.read(tmp_path, HubReading())


def test_each_client_standardises_by_its_own_training_part_alone(tmp_path):
    """flwrlabs/flower#3558: the whole table was standardised before it was dealt."""
    rows = "".join(f"{100 * (n % 2) + n % 7},{n % 3 % 2},{'ab'[n % 2]}\n" for n in range(60))
    csv(tmp_path, f"x,label,person\n{rows}")
    data = assemble({"dataset": "folder", "data-dir": str(tmp_path), "method": "fedavg"}).data
    for number in range(2):
        part = data.client(number, 2, "").train.x
        assert abs(part.mean()) < 1e-6
        assert abs(part.std() - 1) < 1e-6
