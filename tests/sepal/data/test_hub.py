"""``dataset = "hf"``: local copies of Hugging Face data sets, and what is said of one that cannot be reached."""

from __future__ import annotations

import hashlib
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.config import HubReading, HubSettings, RunConfig, former_values
from sepal.data.federation import federated_data
from sepal.data.sources import hub
from sepal.data.sources.folder import read as read_folder
from sepal.errors import DataError, ProtocolError

datasets = pytest.importorskip("datasets")
ROWS = 24


def photographs(rows=ROWS, low=0):
    """Rows with images of several sizes, a class label and an owner."""
    random = np.random.default_rng(low)
    images = [Image.fromarray(random.integers(0, 255, (10 + n % 3, 12, 3)).astype(np.uint8)) for n in range(rows)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    features["owner"] = datasets.Value("string")
    cells = {"image": images, "label": [n % 2 for n in range(rows)], "owner": [f"p{n % 3}" for n in range(rows)]}
    return datasets.Dataset.from_dict(cells, datasets.Features(features))


def table(rows=ROWS, first=0):
    x = np.arange(first, first + rows)
    cells = {"height": x * 1.5, "weight": x, "label": [("ill", "well")[n % 2] for n in x], "note": ["text"] * rows}
    return datasets.Dataset.from_dict(cells)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    parts = {"train": photographs(), "test": photographs(9, 1)}
    datasets.DatasetDict(parts).save_to_disk(directory)
    return directory


def reading(resize="", **keys):
    """The keys for the tables and images of this module."""
    return HubReading.model_validate({"resize": resize, "hf": HubSettings.model_validate(keys)})


def test_a_saved_data_set_has_its_parts_classes_and_images_of_one_size(saved):
    source = hub.read(saved, reading("8x8"))
    assert (source.x.shape, source.x.dtype) == ((ROWS + 9, 8, 8, 3), np.uint8)
    assert source.train_count == ROWS
    assert source.info.class_names == ("cat", "dog")
    assert source.y[:4].tolist() == [0, 1, 0, 1]
    assert source.info.input_shape == (3, 8, 8)


def test_images_are_those_of_a_folder(saved, tmp_path):
    """Pixel by pixel: scaled and cut in the same way."""
    for number, image in enumerate(photographs()["image"]):
        where = tmp_path / f"{number:02d}"
        where.mkdir()
        image.save(where / "a.png")
    keys = reading("8x8")
    from_hub = hub.read(saved, keys)
    np.testing.assert_array_equal(from_hub.x[: from_hub.train_count], read_folder(tmp_path, keys).x)


def test_parquet_files_belong_to_the_part_that_they_are_named_after(tmp_path):
    (tmp_path / "data").mkdir()
    table(20).to_parquet(tmp_path / "data" / "train-00000-of-00002.parquet")
    table(10).to_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    table(6).to_parquet(tmp_path / "data" / "test-0.parquet")
    source = hub.read(tmp_path, reading())
    assert (source.train_count, len(source.y)) == (30, 36)
    assert source.info.columns == ("height", "weight"), "columns of texts are no inputs"
    assert source.info.table, "standardised by each client, as a CSV file's"
    assert source.info.class_names == ("ill", "well")
    assert source.x[2].tolist() == [3.0, 2.0]


@pytest.mark.parametrize("name", ["validation-00000-of-00001", "val", "valid", "dev"])
def test_a_validation_part_is_used_as_one(tmp_path, name):
    for part, rows, first in (("train", 40, 0), (name, 10, 40), ("test", 12, 50)):
        table(rows, first).to_parquet(tmp_path / f"{part}.parquet")
    source = hub.read(tmp_path, reading())
    assert (source.train_count, source.validation_count, len(source.y)) == (40, 10, 62)
    assert source.info.notes == (
        "hf.inputs: columns without numbers are not read: note",
        "split.validation: the part validation is the validation part; none of train is held out",
    )
    config = {"dataset": "hf", "data_dir": str(tmp_path), "partition": {"name": "iid"}, "clients": 2}
    config["hf"] = reading().hf
    data = federated_data(RunConfig.model_validate(config))
    sizes = [
        tuple(map(len, (part.train, part.validation, part.test))) for part in (data.client(n, 2, "") for n in (0, 1))
    ]
    assert sizes == [(20, 5, 6), (20, 5, 6)]
    assert hub.read(tmp_path, reading(validation="")).validation_count == 0, "a run that was begun before has none"
    assert former_values(RunConfig)["hf.validation"] == ""


@pytest.mark.parametrize("key", ["validation", "test"])
def test_a_part_that_a_key_names_and_the_copy_lacks_is_refused(tmp_path, key):
    table(20).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match=f"hf.{key}: expected one of train, or nothing, got tset"):
        hub.read(tmp_path, reading(**{key: "tset"}))


def test_missing_numbers_are_refused_or_left_to_the_clients(tmp_path):
    """Whole numbers, too: pyarrow's null."""
    datasets.Dataset.from_dict({"a": [1, None, 3], "b": [0.5, None, None], "label": [0, 1, 1]}).save_to_disk(tmp_path)
    with pytest.raises(DataError, match=r"train, row 1, column a: .*folder.missing.*got 3 without one: 2 in b, 1 in a"):
        hub.read(tmp_path, reading())
    source = hub.read(tmp_path, HubReading(missing="mean"))
    assert np.isnan(source.x).sum(axis=0).tolist() == [1, 2]
    assert (source.info.name, source.info.table, source.info.columns) == ("hf", True, ("a", "b"))


def test_owners_are_the_natural_partition(saved):
    config = {"hf": {"person": "owner", "test": ""}, "folder": {"resize": "8"}, "partition": {"min_examples": 1}}
    data = federated_data(RunConfig.model_validate({"dataset": "hf", "data_dir": str(saved), **config}))
    assert data.info.partition == "natural"
    sizes = [
        sum(map(len, (part.train, part.validation, part.test))) for part in (data.client(n, 3, "") for n in range(3))
    ]
    assert sizes == [8, 8, 8]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"label": "class"}, "hf.inputs, hf.person: expected columns among image, label, owner, got class"),
        ({"train": "all"}, "hf.train: expected one of test, train, got all"),
        ({"person": "owner"}, "hf.person: expected no test part"),
        ({"inputs": "image,owner"}, "hf.inputs: expected one column, or several of numbers, got image, owner"),
        ({"inputs": "owner"}, "column owner: expected images, numbers, or arrays of one shape, got string"),
        ({}, "expected images of one size (folder.resize = 64), got 10x12 and 11x12 (train, row 1)"),
    ],
)
def test_what_does_not_fit_is_one_line(saved, keys, words):
    with pytest.raises(DataError) as refused:
        hub.read(saved, reading(**keys))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_directory_as_name_is_refused_with_how_a_local_copy_is_given(tmp_path, monkeypatch):
    """The library would read it as a data set of that name, and Sepal keep a copy of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf_two").mkdir()
    with pytest.raises(DataError, match=r"a local copy is data-dir = hf_two \(in Python data_dir=\) without hf.name"):
        hub.local_copy("hf_two", tmp_path / "data")


CONVERTED = "refs/convert/parquet"


class Hub(BaseHTTPRequestHandler):
    """A hub on this machine."""

    def do_GET(self):
        path = unquote(self.path)
        self.server.requests.append(path)
        content = self.server.files.get(path)
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "RevisionNotFound" if path.endswith(CONVERTED) else "RepoNotFound")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", hashlib.sha256(content or b"").hexdigest())
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *arguments):
        pass


def publish(server, name, files, revision=CONVERTED):
    """Let the hub have the files of a data set."""
    listed = {"id": name, "sha": "0" * 40, "siblings": [{"rfilename": file} for file in files]}
    address = f"/api/datasets/{name}"
    server.files[address if revision == "main" else f"{address}/revision/{revision}"] = json.dumps(listed).encode()
    server.files |= {f"/datasets/{name}/resolve/{'0' * 40}/{file}": content for file, content in files.items()}


@pytest.fixture
def server(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.files, server.requests = {}, []
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
        yield server
        server.shutdown()
        thread.join()


def parquet(rows=ROWS):
    file = io.BytesIO()
    table(rows).to_parquet(file)
    return file.getvalue()


def test_a_data_set_is_downloaded_once_as_the_hub_has_it(server, tmp_path, monkeypatch):
    """Also a part of another name than train and test. README.md is not asked for.

    The library ``datasets`` would open what it names, and render the templates of such a file: code ran.
    """
    parts = {"train/0000": 20, "train/0001": 4, "test/0000": 6, "unsupervised/0000": 50}
    files = {f"raw/{part}.parquet": parquet(rows) for part, rows in parts.items()}
    named = f"reference://*::http://127.0.0.1:{server.server_port}/templates.json"
    readme = f"---\nconfigs:\n- config_name: raw\n  data_files: '{named}'\n---\n"
    publish(server, "me/herbs", {**files, "other/train/0000.parquet": b"x", ".gitattributes": b"x"})
    publish(server, "me/herbs", {"README.md": readme.encode()}, "main")
    copy = hub.local_copy("me/herbs:raw", tmp_path)
    request_count = len(server.requests)
    unasked = ("README", "/other/", "templates")
    assert [path for path in server.requests if any(word in path for word in unasked)] == []
    assert hub.local_copy("me/herbs:raw", tmp_path) == copy
    assert len(server.requests) == request_count
    source = hub.read(copy, reading())
    assert (source.train_count, len(source.y)) == (24, 30)
    assert len(hub.read(copy, reading(train="unsupervised", test="")).y) == 50
    assert sorted(path.name for path in (tmp_path / "hf").iterdir() if path.is_dir()) == [copy.name]
    monkeypatch.setenv("SEPAL_DOWNLOAD", "0")
    with pytest.raises(DataError, match="SEPAL_DOWNLOAD=0"):
        hub.local_copy("me/other", tmp_path)


def test_a_data_set_that_the_hub_did_not_convert_is_taken_from_its_own_parquet_files(server, tmp_path):
    publish(server, "me/herbs", {"data/train-0.parquet": parquet(), "data/test-0.parquet": parquet(6)}, "main")
    source = hub.read(hub.local_copy("me/herbs", tmp_path), reading())
    assert (source.train_count, len(source.y)) == (ROWS, ROWS + 6)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("me/herbs", ["a/train/0.parquet", "b/train/0.parquet"], "me/herbs:CONFIGURATION, one of a, b, got me/herbs"),
        ("me/herbs:c", ["a/train/0.parquet"], "me/herbs:CONFIGURATION, one of a, got me/herbs:c"),
        ("me/herbs", ["a/partial-train/0.parquet"], "all rows as Parquet, got me/herbs: partial-train"),
        ("me/herbs", ["a.csv"], "a data set of which the hub has Parquet files, got me/herbs, without any"),
        ("me/weeds", ["a/train/0.parquet"], "me/weeds from the Hugging Face hub, or without hf.name a local copy"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(name, files, words, server, tmp_path):
    publish(server, "me/herbs", dict.fromkeys(files, b""))
    with pytest.raises(DataError) as refused:
        hub.local_copy(name, tmp_path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path for path in (tmp_path / "hf").iterdir() if path.is_dir()] == [], "nothing half-written"


def test_a_hub_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    def unreachable(self, *arguments, **keys):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setenv("SEPAL_DOWNLOAD", "1")
    with pytest.raises(DataError) as refused:
        hub.local_copy("me/herbs:raw", tmp_path)
    expected = "me/herbs:raw from the Hugging Face hub, or without hf.name a local copy in data-dir"
    assert str(refused.value) == f"hf.name: expected {expected}, got ConnectionError: no route to host"


def test_a_node_downloads_what_its_operator_allows_and_reads_its_own_copy_first():
    named = {"dataset": "hf", "hf.name": "me/herbs"}
    with pytest.raises(ProtocolError, match=r"hf\.name: expected a data set that this node allows"):
        local_config(named, Node(0, 1))
    assert local_config(named, Node(0, 1, allow=frozenset({"me/herbs"})))["hf.name"] == "me/herbs"
    config = local_config(named, Node(0, 1, data_dir="/copy"))
    assert (config["hf.name"], config["data-dir"]) == ("", "/copy")


def test_a_run_on_a_local_copy(saved, tmp_path):
    keys = {"dataset": "hf", "data-dir": saved, "folder.resize": 8, "clients": 2, "rounds": 2, "partition.name": "iid"}
    sets = [f"--set={key}={value}" for key, value in {**keys, "method": "fedpse", "lr": 0.01}.items()]
    result = CliRunner().invoke(app, ["run", *sets, "--name=hub", f"--out={tmp_path}", "--workers=1"])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "hub" / "summary.json").read_text())["accuracy"]["trained"]["mean"] > 0
