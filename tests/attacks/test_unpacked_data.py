"""Small files that hold very much: each is refused in one line before it fills the memory."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from sepal.config import HubReading, HubSettings
from sepal.data.schema import Column, TableSchema, read_schema, written
from sepal.data.sources import femnist, folder, from_hub, hub, imdb, reading
from sepal.data.sources import images as images_module
from sepal.data.sources.idx import read_idx
from sepal.data.sources.inputs import read_inputs
from sepal.errors import DataError
from tests.attacks.test_damaged_data import arrays, little_memory  # noqa: F401
from tests.attacks.test_foreign_data import CELL, encoded

NUMBERS = HubReading(hf=HubSettings(test="", label="y", inputs=""))
FEW, MANY = 1 << 20, 1 << 26  # bytes


@pytest.fixture(autouse=True)
def _a_small_limit(monkeypatch):
    monkeypatch.setattr(reading, "MOST_UNPACKED", FEW)


def in_parquet(directory, columns, name="train-0.parquet", **options):
    parquet.write_table(pa.table(columns), directory / name, **options)


def zeros_in_parquet(directory):
    in_parquet(directory, {"a": np.zeros(MANY // 8), "y": np.zeros(MANY // 8, np.int64)})
    hub.read(directory, NUMBERS)


def one_text_often(directory):
    in_parquet(directory, {"a": [1.0] * 4096, "y": ["x" * (1 << 14)] * 4096})
    hub.read(directory, NUMBERS)


def one_text_often_in_a_dictionary(directory):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int8()), pa.array(["x" * (1 << 14)]))
    in_parquet(directory, {"a": [1.0] * 4096, "y": words})
    hub.read(directory, NUMBERS)


def nothing_often_in_parquet(directory):
    in_parquet(directory, {"a": pa.nulls(MANY, pa.int8()), "y": pa.nulls(MANY, pa.int8())})
    hub.read(directory, NUMBERS)


def one_image_often(directory):
    (directory / "femnist").mkdir()
    cells = pa.array([{"bytes": encoded("PNG", (28, 28)), "path": None}] * 8192, CELL)
    in_parquet(directory, {"image": cells, "character": [1] * 8192, "writer_id": ["a"] * 8192}, "femnist/0.parquet")
    femnist.read(directory)


def in_npz(directory):
    arrays(x=np.zeros((MANY // 64, 8, 8), np.uint8), y=np.zeros(MANY // 64, np.int64))(directory)
    folder.read(directory)


def in_npz_to_predict(directory):
    read_inputs(arrays(x=np.zeros((MANY // 64, 8, 8), np.uint8))(directory))


def in_gzip(directory):
    header = struct.pack(">BBBBIII", 0, 0, 8, 3, MANY // 64, 8, 8)
    (directory / "a.gz").write_bytes(gzip.compress(header + bytes(MANY)))
    read_idx(directory / "a.gz")


def images(directory):
    for name in "ab":
        (directory / name).mkdir()
        Image.new("L", (2048, 2048)).save(directory / name / "a.png")


def images_in_a_folder(directory):
    images(directory)
    folder.read(directory)


def images_to_predict(directory):
    images(directory)
    read_inputs(directory)


def images_in_parquet(directory):
    cells = pa.array([{"bytes": encoded("PNG", (2048, 2048)), "path": None}] * 4, CELL)
    in_parquet(directory, {"a": cells, "y": [0, 1, 0, 1]})
    hub.read(directory, HubReading(hf=HubSettings(test="", label="y")))


def one_cell_for_many_inputs(directory):
    """A byte of a table that becomes an input of 8 bytes for each of a category's values."""
    column = Column(name="a", kind="category", values=("x", *map(str, range(999))))
    (directory / "schema.toml").write_text(written(TableSchema(label="y", classes=("0", "1"), column=(column,))))
    (directory / "data.csv").write_text("a,y\n" + "x,0\nx,1\n" * 2048)
    return directory


def categories_in_a_table(directory):
    folder.read(one_cell_for_many_inputs(directory))


def categories_of_a_model(directory):
    one_cell_for_many_inputs(directory)
    read_inputs(directory / "data.csv", schema=read_schema(directory / "schema.toml"))


BOMBS = [
    categories_in_a_table,
    categories_of_a_model,
    zeros_in_parquet,
    one_text_often,
    one_text_often_in_a_dictionary,
    nothing_often_in_parquet,
    one_image_often,
    in_npz,
    in_npz_to_predict,
    in_gzip,
    images_in_a_folder,
    images_to_predict,
    images_in_parquet,
]


@pytest.mark.parametrize("read", BOMBS)
def test_a_small_file_that_holds_very_much_is_refused(read, tmp_path):
    with pytest.raises(DataError, match="GB once it is unpacked, or 100 times its own size, got"):
        read(tmp_path)


def of_many_scans(repeated):
    """A progressive JPEG file of grey 1024 × 1024, whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("L", (1024, 1024)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    begin = content.rindex(images_module.SCAN)
    return content[:-2] + content[begin:-2] * repeated + content[-2:]


def test_a_jpeg_file_of_very_many_scans_is_refused_before_it_is_decoded(monkeypatch):
    content = of_many_scans(50)
    assert len(content) < 20_000
    decoded = images_module.decoded("x", content)
    assert decoded.shape == (1024, 1024)
    monkeypatch.setattr(images_module, "MOST_SCANNED", 2**20 * content.count(images_module.SCAN))
    np.testing.assert_array_equal(images_module.decoded("x", content), decoded)
    monkeypatch.setattr(images_module, "MOST_SCANNED", images_module.MOST_SCANNED - 1)
    monkeypatch.setattr(images_module, "as_array", None)  # nothing is decoded
    with pytest.raises(DataError, match="x: expected a JPEG image of this size with at most 55 scans, got 56"):
        images_module.decoded("x", content)


def saved(directory, table, compression=None):
    """A part as ``save_to_disk`` writes it."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    file = pa.OSFile(str(directory / "a.arrow"), "wb")
    with file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    (directory / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    return directory


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_compressed_stream_is_refused_before_it_is_unpacked(compression, dictionary, tmp_path, little_memory):  # noqa: F811
    words = pa.array(["x" * 100, "y" * 100] * 10)
    table = pa.table({"a": [1.0] * 20, "y": words.dictionary_encode() if dictionary else words})
    assert hub.read(saved(tmp_path, table), NUMBERS).train_count == 20
    with pytest.raises(DataError, match="expected batches that are not compressed"):
        hub.read(saved(tmp_path, table, compression), NUMBERS)


def views():
    return pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([1.0, 2.0]))


def runs():
    return pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([1.0]))


WITHOUT_MEMORY = {
    "null": lambda: pa.nulls(2),
    "list of null": lambda: pa.array([[None], [None]], pa.list_(pa.null())),
    "empty struct": lambda: pa.array([{}, {}], pa.struct([])),
    "list view": views,
    "string view": lambda: pa.array(["a", "b"], pa.string_view()),
    "run ends": runs,
    "list of dictionaries": lambda: pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
@pytest.mark.parametrize("column", ["label", "inputs"])
def test_a_column_whose_cells_take_no_memory_of_their_own_is_refused_by_name(kind, column, tmp_path):
    table = pa.table({"a": WITHOUT_MEMORY[kind](), "y": [0.0, 1.0]})
    keys = {"label": "a", "inputs": "y"} if column == "label" else {"label": "y", "inputs": "a"}
    with pytest.raises(DataError, match=r"column a: expected images, numbers, or arrays of one shape"):
        hub.read(saved(tmp_path, table), HubReading(hf=HubSettings(test="", **keys)))


def test_many_cells_of_nothing_are_refused(tmp_path):
    with pytest.raises(DataError, match="once it is unpacked"):
        hub.read(saved(tmp_path, pa.table({"a": pa.nulls(MANY), "y": pa.nulls(MANY)})), NUMBERS)


@pytest.mark.parametrize("name", ["ag-news", "imdb"])
def test_texts_of_very_many_words_take_the_memory_of_one_text(name, tmp_path):
    """As objects, words take twenty times their letters, and a Parquet file of 2 kB may hold 2 GB of them."""
    text, copies = "ab cd ef gh " * 5_000, 12
    if name == "ag-news":
        copy = tmp_path / "hf" / "fancyzhx%2Fag_news"
        copy.mkdir(parents=True)
        for part, rows in (("train", copies), ("test", 2)):
            labels = [row % 4 for row in range(rows)]
            parquet.write_table(pa.table({"text": [text] * rows, "label": labels}), copy / f"{part}-0.parquet")
    else:
        for folder in ("train/neg", "train/pos", "test/neg", "test/pos"):
            directory = tmp_path / "aclImdb" / folder
            directory.mkdir(parents=True)
            for number in range(copies):
                (directory / f"{number}_1.txt").write_text(text)
    read = {"ag-news": from_hub.AG_NEWS.read, "imdb": imdb.read}[name]
    read(tmp_path)  # imports
    tracemalloc.start()
    try:
        assert int(read(tmp_path).x.max()) == 5
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # words as objects: 14 MB or more
    finally:
        tracemalloc.stop()
