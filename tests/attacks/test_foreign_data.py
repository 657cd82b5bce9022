"""Data sets of elsewhere: nothing that one names is opened, fetched or run; one function decodes images."""

from __future__ import annotations

import ast
import io
import json
import os
import struct
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest
from PIL import EpsImagePlugin, Image
from pyarrow import parquet

from sepal.config import HubReading, HubSettings, parse
from sepal.data import load
from sepal.data.federation import federated_data
from sepal.data.schema import TableSchema, written
from sepal.data.sources import hub, images
from sepal.data.sources.images import MOST_PIXELS, ImageFormat, read_example
from sepal.data.sources.inputs import read_inputs
from sepal.data.sources.table import MOST_COLUMNS, read_table
from sepal.errors import DataError
from sepal.strategies.registry import Hypers
from tests.test_imports import PACKAGES, ROOT

CELL = pa.struct({"bytes": pa.binary(), "path": pa.string()})
READING = HubReading(resize="8", hf=HubSettings(test=""))


def encoded(kind, size=(8, 8)):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, kind)
    return file.getvalue()


def features(**kinds):
    """The metadata from which the library ``datasets`` takes what to decode."""
    columns = {"label": {"dtype": "int64", "_type": "Value"}}
    columns |= {name: {"_type": kind} for name, kind in kinds.items()}
    return {"huggingface": json.dumps({"info": {"features": columns}})}


def cells_in_parquet(directory, cells, kind="Image", name="image"):
    table = pa.table({name: pa.array(cells, CELL), "label": [n % 2 for n in range(len(cells))]})
    directory.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table.replace_schema_metadata(features(**{name: kind})), directory / "train-0.parquet")
    return directory


def cells_saved_to_disk(directory, cells, kind="Image", name="image"):
    """A directory as ``save_to_disk`` writes it."""
    schema = pa.schema({name: CELL, "label": pa.int64()}, features(**{name: kind}))
    (directory / "train").mkdir(parents=True)
    with pa.OSFile(str(directory / "train" / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        labels = [n % 2 for n in range(len(cells))]
        stream.write_table(pa.table({name: pa.array(cells, CELL), "label": labels}, schema=schema))
    (directory / "dataset_dict.json").write_text('{"splits": ["train"]}')
    state = {"_data_files": [{"filename": "a.arrow"}], "_fingerprint": "0", "_format_columns": None, "_split": None}
    state |= {"_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    (directory / "train" / "state.json").write_text(json.dumps(state))
    info = json.loads(features(**{name: kind})["huggingface"])["info"]
    (directory / "train" / "dataset_info.json").write_text(json.dumps(info))
    return directory


def cells_of_femnist(directory, cells, kind="Image", name="image"):
    """The layout of ``flwrlabs/femnist``."""
    columns = {name: pa.array(cells, CELL), "character": [n % 2 for n in range(len(cells))]}
    (directory / "femnist").mkdir(parents=True)
    parquet.write_table(pa.table({**columns, "writer_id": ["a"] * len(cells)}), directory / "femnist" / "0.parquet")
    return directory


WRITERS = [cells_in_parquet, cells_saved_to_disk, cells_of_femnist]


def refusal(writer, directory, cells):
    """The line by which reading them is refused."""
    writer(directory, cells)
    with pytest.raises(DataError) as refused:
        load("femnist", directory) if writer is cells_of_femnist else hub.read(directory, READING)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def recording_server():
    """The address of a server on this machine, and what it was asked for."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("writer", WRITERS)
def test_the_path_of_an_image_runs_no_code(writer, tmp_path):
    """fsspec renders the templates of a reference file system without a sandbox."""
    code = f"{{{{ cycler.__init__.__globals__.os.mkdir('{tmp_path / 'ran'}') }}}}"
    reference = {"version": 1, "gen": [{"key": code, "url": "x", "dimensions": {"i": [0]}}]}
    (tmp_path / "x.json").write_text(json.dumps(reference))
    cell = {"bytes": None, "path": f"reference://x::{tmp_path / 'x.json'}"}
    words = refusal(writer, tmp_path / "data", [cell] * 2)
    assert not (tmp_path / "ran").exists()
    assert "image: expected the bytes of a PNG or JPEG image, got a path, which is never opened" in words


@pytest.mark.parametrize("writer", WRITERS)
def test_the_path_of_an_image_is_not_fetched_nor_opened(writer, recording_server, tmp_path):
    address, requests = recording_server
    (tmp_path / "private.png").write_bytes(encoded("PNG"))
    for number, path in enumerate((f"{address}/x.png", f"zip://a.png::{address}/x.zip", str(tmp_path / "private.png"))):
        words = refusal(writer, tmp_path / str(number), [{"bytes": None, "path": path}] * 2)
        assert requests == []
        assert "got a path, which is never opened" in words


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF", "BMP", "PPM"])
def test_bytes_of_other_formats_are_not_decoded(kind, writer, tmp_path, monkeypatch):
    """For EPS, PIL starts Ghostscript."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *arguments: started.append(1) or Image.new("L", (8, 8)))
    words = refusal(writer, tmp_path / "data", [{"bytes": encoded(kind, (28, 28)), "path": None}] * 2)
    assert not started
    assert "expected a PNG or JPEG image" in words


@pytest.mark.parametrize("writer", [cells_in_parquet, cells_saved_to_disk])
@pytest.mark.parametrize("kind", ["Audio", "Video", "Pdf", "Nifti", "Mesh"])
def test_a_column_that_a_library_would_decode_is_refused_by_name(kind, writer, tmp_path):
    writer(tmp_path / "data", [{"bytes": b"RIFF", "path": None}] * 2, kind, "cell")
    reading = HubReading(hf=HubSettings(inputs="cell", test=""))
    with pytest.raises(DataError, match=rf"column cell: expected images, numbers, or arrays of one shape, got {kind}$"):
        hub.read(tmp_path / "data", reading)


@pytest.mark.parametrize("name", ["../secret.arrow", "{tmp}/secret.arrow", "reference://x"])
def test_a_saved_data_set_names_no_file_beyond_its_directory(name, tmp_path):
    outside = cells_saved_to_disk(tmp_path / "outside", [{"bytes": encoded("PNG"), "path": None}] * 4)
    (outside / "train" / "a.arrow").rename(tmp_path / "secret.arrow")
    cells_saved_to_disk(tmp_path / "data", [{"bytes": encoded("PNG"), "path": None}] * 4)
    state = tmp_path / "data" / "train" / "state.json"
    for old, where in (("a.arrow", name.format(tmp=tmp_path)), ("../secret.arrow", "../../secret.arrow")):
        state.write_text(state.read_text().replace(old, where))
    with pytest.raises(DataError, match=r"train/state.json: expected names of \.arrow files beside it"):
        hub.read(tmp_path / "data", READING)
    (tmp_path / "data" / "dataset_dict.json").write_text('{"splits": ["../outside/train"]}')
    with pytest.raises(DataError, match=r"dataset_dict.json: expected names of directories beside it"):
        hub.read(tmp_path / "data", READING)


def huge(pixels):
    """A small PNG file that says how large its image is."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", pixels // 1024, 1024, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("writer", WRITERS)
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(writer, tmp_path):
    most = f"image of at most {MOST_PIXELS:,} pixels"
    assert most in refusal(writer, tmp_path / "data", [{"bytes": huge(MOST_PIXELS + 1024), "path": None}] * 2)
    path = tmp_path / "a.png"
    path.write_bytes(huge(MOST_PIXELS + 1024))
    with pytest.raises(DataError, match=f"{most}, got 65,537 × 1,024"):
        read_example(path)
    with pytest.raises(DataError, match=most), Image.open(path) as opened:  # as somebody gives it to a model
        images.as_array("data", opened, ImageFormat((8, 8)))
    path.write_bytes(huge(MOST_PIXELS))
    with pytest.raises(DataError, match="expected a PNG or JPEG image"):  # it holds none of them
        read_example(path)


def test_a_file_of_too_many_bytes_is_no_image(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES", 1000)
    path = tmp_path / "a.png"
    path.write_bytes(encoded("PNG").ljust(1000))
    assert read_example(path).shape == (8, 8, 3)
    path.write_bytes(encoded("PNG").ljust(1001))
    with pytest.raises(DataError, match="image of at most 1,000 bytes, got more"):
        read_example(path)


def test_a_table_of_too_many_columns_is_refused_in_one_line(tmp_path):
    for count, words in ((MOST_COLUMNS + 1, f"expected at most {MOST_COLUMNS:,} columns, got 100,001"), (20_000, "")):
        path = tmp_path / f"{count}.csv"
        path.write_text(",".join(["label", *map(str, range(count - 1))]) + "\n" + ",".join(["1"] * count) + "\n")
        if words:
            with pytest.raises(DataError, match=words):
                read_table(path)
        else:
            assert read_table(path).x.shape == (1, count - 1)


def decoders(source):
    """The lines of a module that reach a library that opens, fetches or decodes what data names."""
    libraries = {"PIL", "datasets", "fsspec", "huggingface_hub", "cv2", "imageio", "skimage", "tifffile", "soundfile"}
    libraries |= {"librosa", "torchaudio", "torchcodec", "av", "decord", "webdataset", "polars", "h5py"}
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] in libraries or name.startswith("torchvision.io"):
                yield name
        if isinstance(node, ast.Attribute):
            called = ast.unparse(node)
            opening = ("Image.open", "pq.read_table", "parquet.read_table", "pa.dataset")
            if called in opening or called.startswith("pd.read") or node.attr in LOADERS:
                yield called


LOADERS = ("load_dataset", "load_from_disk", "cast_column", "from_file", "to_pandas", "read_image", "imread")
ALLOWED = {
    # The one function, and the error that it turns into words.
    "sepal/data/sources/images.py": {"PIL.Image", "PIL.ImageOps", "PIL.UnidentifiedImageError", "Image.open"},
    "sepal/data/sources/pictures.py": {"PIL.Image"},  # an image of an array
    "sepal/data/sources/hub.py": {"huggingface_hub", "huggingface_hub.errors.RevisionNotFoundError"},  # downloads files
    # The card beside an exported model: text that we wrote, nothing is fetched
    "sepal/report/card.py": {
        "huggingface_hub.EvalResult",
        "huggingface_hub.ModelCard",
        "huggingface_hub.ModelCardData",
    },
    # Tables of row numbers, labels and persons, from our own arrays:
    "sepal/data/partition.py": {"datasets.Dataset"},
    "sepal/data/partitioners.py": {"datasets.Dataset"},
    # Our own screenshots of our own pages
    "tools/pictures.py": {"PIL.Image", "Image.open"},
}


def test_one_function_opens_images_and_no_library_reads_a_data_set():
    files = {path.relative_to(ROOT).as_posix(): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    reaching = {name: set(decoders(path.read_text())) for name, path in files.items()}
    assert {name: uses for name, uses in reaching.items() if uses} == ALLOWED
    tree = ast.parse((ROOT / "sepal/data/sources/images.py").read_text())
    opening = [
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and "Image.open" in ast.unparse(node)
    ]
    assert opening == ["decoded"]


def test_data_is_read_by_these_libraries_alone():
    """A decoder that nobody has thought of in ``decoders`` is noticed as well."""
    imported = set()
    for path in (ROOT / "sepal" / "data").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            imported |= {name.split(".")[0] for name in names}
    ours = {"numpy", "torch", "pandas", "pyarrow", "pydantic", "tomli_w", "filelock", "sklearn", "flwr_datasets"}
    assert imported - {*sys.stdlib_module_names, "sepal"} == {*ours, "PIL", "datasets", "huggingface_hub"}


LINES = ["import PIL", "from PIL import Image", "def f():\n    import datasets.load", "Image.open(x)", "x().imread(y)"]


@pytest.mark.parametrize("line", LINES)
def test_a_decoder_would_be_noticed(line):
    assert list(decoders(line))


def images_below(directory, suffix=".png"):
    """Directories of two classes with four images each."""
    for name in (f"{label}/{number}{suffix}" for label in "ab" for number in range(4)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.zeros((8, 8), np.uint8)) if suffix == ".npy" else path.write_bytes(encoded("PNG"))
    return directory


def table_at(path):
    path.write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    return path


def arrays_at(path):
    np.savez(path, x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    return path


def taken_from(directory, private):
    """Move a file or directory to a private place, and put a link to it where it was."""
    private.parent.mkdir()
    directory.rename(private)
    directory.symlink_to(private)


# What becomes a link, in data that are complete without one.
LINKED = {
    "a table": lambda home: table_at(home / "t.csv"),
    "arrays": lambda home: arrays_at(home / "t.npz"),
    "an image": lambda home: images_below(home) / "a" / "0.png",
    "an array": lambda home: images_below(home, ".npy") / "a" / "0.npy",
    "a class": lambda home: images_below(home) / "b",
    "a class of a part": lambda home: (images_below(home / "train"), images_below(home / "test") / "b")[1],
    "a part": lambda home: (images_below(home / "test"), images_below(home / "train"))[1],
    "an owner": lambda home: (images_below(home / "x"), images_below(home / "y"))[1],
    "a class of an owner": lambda home: (images_below(home / "x"), images_below(home / "y") / "a")[1],
    "a schema": lambda home: (table_at(home / "t.csv"), written_at(home / "schema.toml"))[1],
    "a Parquet file": lambda home: parquet_at(home / "train-0.parquet"),
    "a Parquet file of a part": lambda home: parquet_at(home / "train" / "0.parquet"),
    "a saved file": lambda home: cells_saved_to_disk(home, PIXELS) / "train" / "a.arrow",
    "a list of parts": lambda home: cells_saved_to_disk(home, PIXELS) / "dataset_dict.json",
}
PIXELS = [{"bytes": encoded("PNG"), "path": None}] * 20


def written_at(path):
    path.write_text(written(TableSchema(label="label")))
    return path


def parquet_at(path):
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table({"a": list(range(20)), "label": [row % 2 for row in range(20)]}), path)
    return path


def read_by_a_run(home):
    is_hub = bool(list(home.rglob("*.parquet")) or list(home.rglob("*.arrow")))
    keys = {"dataset": "hf" if is_hub else "folder", "data-dir": str(home), "hf.test": "", "clients": 2}
    config, _ = parse(keys, Hypers())
    return federated_data(config).info


@pytest.mark.parametrize("what", LINKED)
def test_no_link_in_a_data_set_takes_a_file_of_the_readers_into_it(what, tmp_path, monkeypatch):
    home = tmp_path / "data"
    home.mkdir()
    path = LINKED[what](home)
    expected = read_by_a_run(home)
    taken_from(path, tmp_path / "private" / path.name)
    with pytest.raises(DataError, match=r"expected a file or directory in .*data .*, got a link that leads out of it"):
        read_by_a_run(home)
    monkeypatch.setenv("SEPAL_FOLLOW_LINKS", "1")  # the links are the reader's own
    assert read_by_a_run(home) == expected
    monkeypatch.delenv("SEPAL_FOLLOW_LINKS")
    path.unlink()
    path.parent.joinpath(".beside").mkdir()
    (tmp_path / "private" / path.name).rename(path.parent / ".beside" / path.name)
    path.symlink_to(path.parent / ".beside" / path.name)  # a link in the data set to what it has itself
    assert read_by_a_run(home) == expected
    outside = tmp_path / "a name for it"
    outside.symlink_to(home)  # the reader's own choice
    read_by_a_run(outside)


@pytest.mark.parametrize("what", ["a table", "arrays", "an image", "an array"])
def test_no_link_in_a_directory_takes_a_file_of_the_readers_to_a_model(what, tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    path = LINKED[what](home)
    read_inputs(home, ("a", "b"))
    taken_from(path, tmp_path / "private" / path.name)
    with pytest.raises(DataError, match="a link that leads out of it"):
        read_inputs(home, ("a", "b"))


def also_called(path, other):
    """Give a file, or each file of a directory, a further name elsewhere, as an archive can make it."""
    other.mkdir()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for number, file in enumerate(files):
        os.link(file, other / str(number))


@pytest.mark.parametrize("what", LINKED)
def test_no_further_name_of_a_file_of_the_readers_takes_it_into_a_data_set(what, tmp_path, monkeypatch):
    home = tmp_path / "data"
    home.mkdir()
    path = LINKED[what](home)
    expected = read_by_a_run(home)
    also_called(path, tmp_path / "private")
    with pytest.raises(DataError, match=r"expected a file without names out of .*data .*, got 1 more, by hard links"):
        read_by_a_run(home)
    monkeypatch.setenv("SEPAL_FOLLOW_LINKS", "1")
    assert read_by_a_run(home) == expected


@pytest.mark.parametrize("what", ["a table", "arrays", "an image", "an array"])
def test_no_further_name_of_a_file_of_the_readers_takes_it_to_a_model(what, tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    also_called(LINKED[what](home), tmp_path / "private")
    with pytest.raises(DataError, match="1 more, by hard links"):
        read_inputs(home, ("a", "b"))


def test_files_of_a_data_set_that_are_one_are_read(tmp_path):
    home = tmp_path / "data"
    image = images_below(home) / "a" / "0.png"
    os.link(image, home / "b" / "the same.png")
    read_by_a_run(home)
    table = table_at(tmp_path / "t.csv")
    os.link(table, tmp_path / "private")
    read_by_a_run(table)  # the reader has named this file itself


def test_a_link_to_a_further_name_takes_nothing_into_a_data_set(tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    path = table_at(home / "t.csv")
    path.rename(home / "blob")
    path.symlink_to("blob")
    read_by_a_run(home)
    os.link(home / "blob", tmp_path / "private")
    with pytest.raises(DataError, match="more, by hard links"):
        read_by_a_run(home)


def test_a_snapshot_of_the_hubs_client_is_read_though_its_files_are_links(tmp_path):
    snapshot, blobs = tmp_path / "datasets--a--b" / "snapshots" / "0123", tmp_path / "datasets--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    path = parquet_at(snapshot / "train-0.parquet")
    path.rename(blobs / "feed")
    path.symlink_to("../../blobs/feed")
    assert read_by_a_run(snapshot).classes == 2


@pytest.mark.parametrize(
    ("snapshot", "blobs"), [("home/snapshots/x", ""), ("datasets--a--b/snapshots/0123", "../private")]
)
def test_no_directory_that_is_called_like_a_snapshot_takes_a_file_of_the_readers(snapshot, blobs, tmp_path):
    """A data set that was unpacked in the reader's home had all of it for the hub's client's directory."""
    path, repository = tmp_path / snapshot / "train-0.parquet", (tmp_path / snapshot).parents[1]
    path.parent.mkdir(parents=True)
    private = repository / "mine" if not blobs else tmp_path / "private"
    private.mkdir()
    parquet_at(path).rename(private / "feed")
    if blobs:
        (repository / "blobs").symlink_to(blobs)
    path.symlink_to(repository / ("blobs" if blobs else "mine") / "feed")
    with pytest.raises(DataError, match="a link that leads out of it"):
        read_by_a_run(tmp_path / snapshot)
