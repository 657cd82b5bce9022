"""Damaged bytes of every kind of file that data is read from: each ends in a DataError, or is read."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from sepal.config import FolderSettings, HubReading, HubSettings, RunConfig
from sepal.data import load
from sepal.data.inspecting import inspect
from sepal.data.schema import read_schema
from sepal.data.sources import femnist, folder, har, hub, imdb, reading
from sepal.data.sources.idx import read_idx
from sepal.data.sources.images import read_example
from sepal.data.sources.inputs import read_inputs
from sepal.data.sources.table import read_table
from sepal.errors import DataError
from tests.attacks.test_foreign_data import cells_in_parquet, cells_of_femnist, cells_saved_to_disk, encoded

MUTATIONS = 60  # of a file
X = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8)
Y = np.array([0, 1, 0, 1, 0, 1])
MEMORY = 1 << 30  # bytes beyond what the process has when it begins


def picture(kind):
    def write(directory):
        path = directory / f"a.{kind}"
        Image.fromarray(X[0]).save(path)
        return path

    return write, read_example


def arrays(**content):
    def write(directory):
        np.savez_compressed(directory / "a.npz", **content)
        return directory / "a.npz"

    return write


def one_array(directory):
    np.save(directory / "a.npy", X)
    return directory / "a.npy"


def table(directory):
    path = directory / "a.csv"
    path.write_text('a,b,label,person\n1,2.5,x,p\n3,,"y",q\n-1e5,NaN,x,p\n', encoding="utf-8")
    return path


def idx(directory):
    path = directory / "a.gz"
    path.write_bytes(gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, 6, 8, 8) + X.tobytes()))
    return path


def numbers_in_parquet(directory):
    path = directory / "train-0.parquet"
    columns = {"a": [1.5, 2.0, 3.0], "b": [[1, 2], [3, 4], [5, 6]], "label": ["x", "y", "x"]}
    parquet.write_table(pa.table(columns), path)
    return path


def leaf(directory):
    (directory / "femnist" / "train").mkdir(parents=True)
    (directory / "femnist" / "test").mkdir()
    data = {"users": ["w"], "user_data": {"w": {"x": [[0.5] * 784], "y": [3]}}}
    for part in ("test", "train"):
        path = directory / "femnist" / part / "a.json"
        path.write_text(json.dumps(data))
    return path


def cells(write, file):
    def write_cells(directory):
        return write(directory, [{"bytes": encoded("PNG", (28, 28)), "path": None}] * 3) / file

    return write_cells


def of_directory(read, depth=1):
    return lambda path: read(path.parents[depth - 1])


def of_hub(path):
    home = path.parent if path.suffix == ".parquet" else path.parent.parent
    hub.read(home if path.name != "dataset_dict.json" else path.parent, HubReading(hf=HubSettings(test="")))


SAVED = ("train/a.arrow", "train/state.json", "dataset_dict.json")
KINDS = {
    "png": picture("png"),
    "jpg": picture("jpg"),
    "npy": (one_array, read_example),
    "npz": (arrays(x=X, y=Y), of_directory(folder.read)),
    "npz to predict": (arrays(x=X, y=Y), read_inputs),
    "har": (arrays(x=X, y=Y, subject=Y), har._packed),
    "csv": (table, lambda path: read_table(path, labelled=True, fill=True)),
    "csv of a folder": (table, lambda path: folder.read(path.parent, FolderSettings(missing="mean"))),
    "idx": (idx, read_idx),
    "leaf": (leaf, of_directory(femnist.read, 3)),
    "parquet of images": (cells(cells_in_parquet, "train-0.parquet"), of_hub),
    "parquet of numbers": (numbers_in_parquet, of_hub),
    "parquet of femnist": (cells(cells_of_femnist, "femnist/0.parquet"), of_directory(femnist.read, 2)),
    **{name: (cells(cells_saved_to_disk, name), of_hub) for name in SAVED},
}


def mutated(data, rng):
    """Bytes that are cut off, flipped, put elsewhere or repeated."""
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 9))
    match rng.integers(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + rng.bytes(length) + data[at + length :]
        case 2:
            return data[:at] + data[at // 2 : at // 2 + length] + data[at:]
        case _:
            return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :]


@pytest.fixture
def little_memory():
    """A gigabyte more than the process has: what would take more fails."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bytes_end_in_one_line(kind, tmp_path, little_memory):
    write, read = KINDS[kind]
    path = write(tmp_path)
    read(path)
    data, rng, refusals = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(MUTATIONS):
        path.write_bytes(mutated(data, rng))
        try:
            read(path)
        except DataError as error:
            refusals.append(str(error))
    assert refusals
    assert not [words for words in refusals if "\n" in words]


NAME = 1_000_000 * "x"  # NumPy would give each row of an array of texts as much room
ROWS = 5_000


def owners_in_csv(directory):
    lines = "".join(f"{row},p{row % 4},{row % 2}\n" for row in range(ROWS))
    (directory / "a.csv").write_text(f"a,person,label\n1,{NAME},0\n{lines}", encoding="utf-8")
    folder.read(directory)


def owners_in_leaf(directory):
    (directory / "femnist" / "train").mkdir(parents=True)
    rows = {"x": ROWS // 10 * [784 * [0]], "y": ROWS // 10 * [0]}
    content = {"users": [NAME, "b"], "user_data": {NAME: {"x": [784 * [0]], "y": [0]}, "b": rows}}
    (directory / "femnist" / "train" / "a.json").write_text(json.dumps(content))
    femnist.read(directory)


def owners_of_femnist(directory):
    (directory / "femnist").mkdir()
    image = {"bytes": encoded("PNG", (28, 28)), "path": None}
    columns = {"image": ROWS * [image], "writer_id": [NAME, *(ROWS - 1) * ["a"]], "character": ROWS * [0]}
    parquet.write_table(pa.table(columns), directory / "femnist" / "a.parquet")
    femnist.read(directory)


def of_a_hub_column(column, cells, **keys):
    def read(directory):
        columns = {"a": ROWS * [1.0], "label": ROWS * [0.5], column: cells}
        parquet.write_table(pa.table(columns), directory / "train-0.parquet")
        hub.read(directory, HubReading(hf=HubSettings(test="", **keys), task="regression"))

    return read


LONG = {
    "csv": owners_in_csv,
    "leaf": owners_in_leaf,
    "parquet of femnist": owners_of_femnist,
    "owners of the hub": of_a_hub_column("who", [NAME, *(ROWS - 1) * ["a"]], person="who"),
    "bytes as owners": of_a_hub_column("who", [NAME.encode(), *(ROWS - 1) * [b"a"]], person="who"),
    "lists as owners": of_a_hub_column("who", [[NAME], *(ROWS - 1) * [["a"]]], person="who"),
    "targets of the hub": of_a_hub_column("label", [NAME, *(ROWS - 1) * ["a"]]),
    "inputs of the hub": of_a_hub_column("words", [NAME, *(ROWS - 1) * ["a"]], inputs="words"),
    "lists of the hub": of_a_hub_column("words", [[NAME], *(ROWS - 1) * [["a"]]], inputs="words"),
}


@pytest.mark.parametrize("name", LONG)
def test_one_long_text_of_a_small_file_fills_no_memory(name, tmp_path, little_memory):
    with pytest.raises(DataError) as caught:
        LONG[name](tmp_path)
    assert "allocate" not in str(caught.value)


def test_many_owners_beside_one_with_a_long_name_fill_no_memory(monkeypatch):
    """Each row takes the room of the longest name: 256 letters, 1 kB, for a row of one letter."""
    monkeypatch.setattr(reading, "MOST_UNPACKED", 1 << 20)
    assert len(reading.owners_of("a", ["a" * 256, *(1000 * ["b"])])) == 1001
    with pytest.raises(DataError, match=r"names of owners that take at most 0.00105 GB, each as much as the longest"):
        reading.owners_of("a", ["a" * 256, *(1100 * ["b"])])


def test_a_long_text_in_a_column_that_may_be_the_owners_fills_no_memory(tmp_path, little_memory):
    lines = "".join(f"{row},p{row % 4},{row % 2}\n" for row in range(ROWS))
    (tmp_path / "a.csv").write_text(f"a,patient_id,label\n1,{NAME},0\n{lines}", encoding="utf-8")
    found = inspect(RunConfig(dataset="folder", data_dir=str(tmp_path), clients=2))
    assert any("folder.person = patient_id" in hint for hint in found.hints)


def piped(directory, name):
    """A named pipe, which nobody writes to."""
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(directory / name)
    return directory


PIPES = {
    "a.npz": lambda directory: load("folder", directory),
    "a.csv": lambda directory: load("folder", directory),
    "x/a.png": lambda directory: read_example(directory / "x" / "a.png"),
    "x/a.npy": lambda directory: read_example(directory / "x" / "a.npy"),
    "femnist/train/a.json": lambda directory: load("femnist", directory),
    "femnist/a.parquet": lambda directory: load("femnist", directory),
    "aclImdb/train/neg/a.txt": lambda directory: imdb._review(directory / "aclImdb/train/neg/a.txt"),
    "schema.toml": lambda directory: read_schema(directory / "schema.toml"),
    "b.csv": lambda directory: read_inputs(directory / "b.csv"),
    "b.npz": lambda directory: read_inputs(directory / "b.npz"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_keeps_no_reader_of_data_waiting(name, tmp_path):
    with pytest.raises(DataError):
        PIPES[name](piped(tmp_path, name))
