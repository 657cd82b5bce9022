"""Photographs of several sizes, as a telephone makes them: brought to one size that the run stores, or refused."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict
from PIL import Image
from typer.testing import CliRunner

import sepal
from sepal.cli.main import app
from sepal.client_app.app import handle
from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.config.agreement import disagreement
from sepal.data.sources import _remembered, images
from sepal.errors import DataError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, write_order
from sepal.protocol.types import Kind, Plan
from sepal.report import learned_rows
from sepal.runs.stored_run import Allowed, stored_config
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import defaults
from sepal.study.run_keys import gather_to_serve

WIDE, TALL = (90, 66), (66, 90)  # width and height
NOTE = "folder.resize = 64: images have several sizes, 66x90 and 90x66 ({}); all become 64x64; this key sets another"


def photograph(size, number, mode="RGB"):
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def write(path, size, number, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    photograph(size, number, mode).save(path)


def folder(directory, homes, sizes=(WIDE, TALL), count=12, mode="RGB"):
    """Photographs in directories of classes, of which every third has the second size."""
    for home in homes:
        for number in range(count):
            write(directory / home / f"{number}.png", sizes[number % 3 == 1], number, mode)
    return {"dataset": "folder", "data-dir": str(directory)}


def by_class(directory):
    return folder(directory, ("cat", "dog")), "cat/1.png"


def by_owner(directory):
    homes = [f"{owner}/{label}" for owner in ("anna", "ben") for label in ("cat", "dog")]
    return folder(directory, homes), "anna/cat/1.png"


def by_part(directory):
    """Each part has one size."""
    folder(directory, ("train/cat", "train/dog"), (TALL, TALL))
    return folder(directory, ("test/cat", "test/dog"), (WIDE, WIDE)), "train/cat/0.png"


def parquet(directory, parts):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    directory.mkdir(exist_ok=True)
    for name, sizes in parts.items():
        pixels = [photograph(sizes[number % 3 == 1], number) for number in range(24)]
        cells = {"image": pixels, "label": [number % 2 for number in range(24)]}
        datasets.Dataset.from_dict(cells, features).to_parquet(directory / f"{name}.parquet")
    return {"dataset": "hf", "data-dir": str(directory)}


def of_the_hub(directory):
    return parquet(directory, {"train": (WIDE, TALL)}), "train, row 1"


def of_the_hub_by_part(directory):
    return parquet(directory, {"train": (WIDE, WIDE), "test": (TALL, TALL)}), "test, row 0"


SOURCES = [by_class, by_owner, by_part, of_the_hub, of_the_hub_by_part]
RUN = {"method": "fedavg", "rounds": 1, "clients": 2}


@pytest.mark.parametrize("source", SOURCES)
def test_all_become_squares_of_one_side_a_line_says_so_and_the_run_stores_it(source, tmp_path):
    keys, second = source(tmp_path)
    assembly = assemble({**keys, **RUN})
    assert assembly.info.input_shape == (3, 64, 64)
    assert assembly.setup.config.folder.resize == "64"
    (note,) = [note for note in assembly.notes if note.startswith("folder.resize")]
    assert note == NOTE.format(second)
    named = assemble({**keys, **RUN, "folder.resize": 64})
    assert not [note for note in named.notes if "folder.resize" in note], "whoever sets the key is told nothing"
    assert named.agreed.replace("run config", "default") == assembly.agreed.replace("run config", "default")
    for number in range(2):
        chosen, explicit = (part.data.client(number, 2, "") for part in (assembly, named))
        np.testing.assert_array_equal(chosen.train.x, explicit.train.x)
        np.testing.assert_array_equal(chosen.test.x, explicit.test.x)


@pytest.mark.parametrize("source", SOURCES)
def test_a_key_that_is_set_stays_what_it_is(source, tmp_path):
    keys = {**source(tmp_path)[0], **RUN}
    assert assemble({**keys, "folder.resize": "20x30"}).info.input_shape == (3, 20, 30)
    with pytest.raises(DataError, match=r"expected images of one size \(folder.resize = 64\), got 66x90 and 90x66 \("):
        assemble({**keys, "folder.resize": ""})


def test_in_flowers_run_config_which_has_every_key_the_size_is_chosen_too(tmp_path):
    flat = {**defaults(), **by_class(tmp_path)[0], **RUN}
    assert flat["folder.resize"] == "auto"
    assert assemble(flat).setup.config.folder.resize == "64"
    assert assemble({**defaults(), "dataset": "digits"}).setup.config.folder.resize == ""


def test_images_of_one_size_stay_as_they_are(tmp_path):
    assembly = assemble({**folder(tmp_path, ("cat", "dog"), (WIDE, WIDE)), **RUN})
    assert assembly.info.input_shape == (3, 66, 90)
    assert assembly.setup.config.folder.resize == ""


@pytest.mark.parametrize(("source", "count"), [(by_class, 24), (of_the_hub, 24)])
def test_the_second_size_ends_the_first_reading(source, count, tmp_path, monkeypatch):
    sizes = []

    def decoded(key, content, image_format=images.AS_IS):
        sizes.append(image_format.size)
        return original(key, content, image_format)

    original = images.decoded
    monkeypatch.setattr(images, "decoded", decoded)
    keys = {**source(tmp_path)[0], **RUN}
    assemble(keys)
    assert sizes == [None] * 2 + [(64, 64)] * count
    _remembered.cache_clear()  # as in another process
    assemble(keys)
    assert len(sizes) == 2 + count, "that there are several sizes is remembered, as the images are"


def test_grey_and_coloured_ones_are_still_refused_with_the_key_that_mends_it(tmp_path):
    keys = folder(tmp_path, ("cat", "dog"))
    write(tmp_path / "dog" / "grey.png", (40, 40), 0, "L")
    words = r"expected 25 images of one number of channels \(folder.channels = 3\), got 24 of 3 channels, 1 of 1 chan"
    with pytest.raises(DataError, match=words):
        assemble({**keys, **RUN})
    assert assemble({**keys, **RUN, "folder.channels": 3}).info.input_shape == (3, 64, 64)


def test_arrays_of_several_shapes_are_refused_and_no_key_is_named_that_does_not_mend_it(tmp_path):
    """Arrays of .npy files are never changed."""
    for number in range(12):
        for label in ("cat", "dog"):
            (tmp_path / label).mkdir(exist_ok=True)
            np.save(tmp_path / label / f"{number}.npy", np.zeros((8 + number % 2, 8), np.uint8))
    keys = {"dataset": "folder", "data-dir": str(tmp_path), **RUN}
    for more in ({}, {"folder.resize": ""}, {"folder.resize": 16}):
        with pytest.raises(DataError, match=r"expected 24 images of one size, got 12 of 8x8, 12 of 9x8$"):
            assemble({**keys, **more})
    write(tmp_path / "cat" / "photograph.png", (8, 8), 0, "L")
    write(tmp_path / "dog" / "photograph.png", (9, 9), 0, "L")
    with pytest.raises(DataError, match=r"expected 26 images of one size, got 12 of 8x8, 12 of 9x8, 2 of 64x64$"):
        assemble(keys)


def test_signals_of_several_lengths_are_refused(tmp_path):
    for label, length in (("cat", 8), ("dog", 9)):
        (tmp_path / label).mkdir()
        np.save(tmp_path / label / "0.npy", np.zeros(length, np.float32))
    with pytest.raises(DataError, match=r"expected 2 files of one shape and type, got 1 of float32 \(8,\), 1"):
        assemble({"dataset": "folder", "data-dir": str(tmp_path), **RUN})


def test_inspect_says_what_a_run_does(tmp_path):
    keys = by_class(tmp_path)[0]
    result = CliRunner().invoke(app, ["data", "inspect", str(tmp_path), "--set=clients=2"])
    assert result.exit_code == 0, result.output
    (note,) = [note for note in assemble({**keys, **RUN}).notes if note.startswith("folder.resize")]
    assert note in " ".join(result.output.split())
    assert "image 3x64x64" in result.output
    assert "no problem" in result.output


def test_a_server_sends_the_size_of_its_images_and_a_client_does_not_choose(tmp_path):
    """The size travels like each key, so a client whose images are of one size gets the same, too."""
    keys = by_class(tmp_path / "server")[0]
    sets, lines = [f"{key}={value}" for key, value in keys.items()], []
    flat = gather_to_serve(None, sets, "run", None, lines.append)
    assert flat["folder.resize"] == "64"
    assert lines == [note for note in assemble({**keys, **RUN}).notes if note.startswith("folder.resize")]
    assert gather_to_serve(None, [*sets, "folder.resize=auto"], "run", None)["folder.resize"] == "64"
    assert gather_to_serve(None, [*sets, "folder.resize=20"], "run", None)["folder.resize"] == "20"
    client = folder(tmp_path / "client", ("cat", "dog"), (WIDE, WIDE))
    assert assemble({**flat, **client}).info.input_shape == (3, 64, 64)
    folder(tmp_path / "alike", ("cat", "dog"), (WIDE, WIDE))
    sets[1] = f"data-dir={tmp_path / 'alike'}"
    flat = gather_to_serve(None, sets, "run", None, lines.append)
    assert (flat["folder.resize"], len(lines)) == ("", 1)
    with pytest.raises(DataError, match="expected images of one size"):
        assemble(local_config({**flat, "data-dir": ""}, Node.of({"data-dir": str(tmp_path / "server")})))


def test_machines_that_chose_for_themselves_are_refused_unless_all_chose_alike(tmp_path):
    """Where nobody sends the key, as with a ServerApp of one's own."""
    mixed, alike = (
        assemble({**folder(tmp_path / name, ("cat", "dog"), sizes), **RUN}).agreed
        for name, sizes in (("a", (WIDE, TALL)), ("b", (WIDE, WIDE)))
    )
    for server, client in ((mixed, alike), (alike, mixed)):
        assert "berlin: folder.resize: expected " in str(disagreement("berlin", server, client))
    assert disagreement("berlin", mixed, mixed) is None


def test_a_run_goes_on_exports_and_predicts_with_the_size_that_it_began_with(tmp_path, monkeypatch):
    keys = by_owner(tmp_path / "photos")[0] | {"partition": {"min-examples": 1}}
    monkeypatch.chdir(tmp_path)
    run = partial(sepal.run, workers=1, progress=False, **{key.replace("-", "_"): value for key, value in keys.items()})
    run(name="two", rounds=1)
    assert stored_config(tmp_path / "runs" / "two")["folder.resize"] == "64"
    longer, once = run(name="two", rounds=2), run(name="once", rounds=2)
    pd.testing.assert_frame_equal(longer.frame, once.frame)
    export = CliRunner().invoke(app, ["export", "two", "anna", "--out=anna.safetensors"])
    assert export.exit_code == 0, export.output
    photograph((500, 200), 1).save("new.png")
    result = CliRunner().invoke(app, ["predict", "anna.safetensors", "new.png"])
    assert result.exit_code == 0, result.output
    fitted = images.read_example(Path("new.png"), images.ImageFormat((64, 64)))
    label = longer.predict("anna", fitted[None])["label"].tolist()
    assert pd.read_csv(io.StringIO(result.stdout))["label"].tolist() == label


@pytest.mark.parametrize("other", ["-.png", "z.png"])
def test_a_run_that_has_begun_names_no_key_for_a_photograph_of_another_size(other, tmp_path, monkeypatch):
    """Its images had one size, and ``folder.resize`` can only be given to another run. The other may be read first."""
    keys = folder(tmp_path / "photos", ("anna/cat", "anna/dog", "ben/cat", "ben/dog"), (WIDE, WIDE))
    monkeypatch.chdir(tmp_path)
    chosen = {**keys, **RUN, "method": "pfedgate", "name": "r"}
    sets = [f"--set={key}={value}" for key, value in chosen.items()]

    def line(*arguments, code=2):
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == code, result.output
        return f"{result.stderr} {result.exception or ''}"

    line("run", *sets, "--rounds=1", "--workers=1", code=0)
    write(tmp_path / "photos" / "anna" / "cat" / other, (40, 50), 0)
    words = "expected images of 66x90, with which the run r was started: remove or resize the others, or give another"
    for command in (
        ["run", "--name=r", "--rounds=2"],
        ["run", *sets, "--rounds=2"],
        ["run", *sets, "--rounds=2", "--set=lr=search"],
        ["export", "runs/r", "anna"],
        ["export", "runs/r", "0"],
        ["export", "runs/r"],
        ["serve", "--name=r"],
        ["submit", "--name=r"],
    ):
        shown = line(*command)
        assert words in shown, command
        assert f"got 50x40 (anna/cat/{other})" in shown, command
        assert "folder.resize" not in shown, command
    with pytest.raises(DataError, match="images of 66x90"):
        learned_rows.read(tmp_path / "runs" / "r", "masks", Allowed(data=True))
    assert "folder.resize = 64: " in line("run", *sets, "--name=other", "--rounds=1", "--workers=1", code=0)


def test_a_node_whose_images_do_not_fit_the_servers_key_tells_no_name_of_a_file(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    enter_run()
    records = write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content())
    message = Message(records, dst_node_id=1, message_type="query")
    node = {"name": "berlin", "data-dir": by_class(tmp_path / "own")[0]["data-dir"]}
    run = {**defaults(), **RUN, "dataset": "folder", "folder.resize": ""}
    reply = handle(message, Context(1, 1, node, RecordDict(), run))
    (record,) = reply.content.config_records.values()
    assert record["word"] == "data"
    assert "cat" not in str(dict(record))
    assert "expected images of one size (folder.resize = 64)" in caplog.text
    assert 'the run config has folder.resize = ""' in caplog.text, "which its operator has not set"
