"""A user's own files from the run to the exported model's answers: a raw table, photographs of mixed size."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sepal.api import compare, run
from sepal.api.results import Run
from sepal.cli.main import app
from sepal.data.sources.inputs import read_inputs
from sepal.errors import DataError
from sepal.export.onnx_file import write_onnx
from sepal.export.portable import load
from sepal.study.runs import model_of

MARGIN = 0.3  # above the share of the most frequent class: raw rows gave less than that share


def sepal(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """Scikit-learn's wine data as it is, with columns from 0.1 to 1,680, and a run of FedPSE with three clients."""
    from sklearn.datasets import load_wine

    directory, bunch = tmp_path_factory.mktemp("wine"), load_wine()
    with (directory / "wine.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*bunch.feature_names, "label"])
        writer.writerows([*row, bunch.target_names[label]] for row, label in zip(bunch.data, bunch.target, strict=True))
    where = (f"--set=data-dir={directory}", f"--out={directory}", "--name=wine", "--workers=1")
    sepal("run", "--method=fedpse", "--set=dataset=folder", "--set=clients=3", *where)
    return directory


def test_a_raw_table_trains_with_default_keys(wine):
    from sklearn.datasets import load_wine

    majority = np.bincount(load_wine().target).max() / len(load_wine().target)
    accuracy = json.loads((wine / "wine" / "summary.json").read_text())["accuracy"]
    assert accuracy["received"]["mean"] > majority + MARGIN
    assert accuracy["pooled"]["mean"] > majority + MARGIN


def test_an_exported_model_takes_raw_rows(wine, tmp_path):
    """Also in Python, and not those of another client's statistics."""
    file = tmp_path / "m.safetensors"
    sepal("export", wine / "wine", "1", "--out", file)
    client_model, loaded = model_of(wine / "wine", "client-00001"), load(file)
    np.testing.assert_allclose(loaded(client_model.inputs), client_model.logits, atol=1e-4)
    assert client_model.inputs.max() > 500, "raw rows"
    result = sepal("predict", file, wine / "wine.csv")
    right = int(result.stderr.strip().rsplit(" ", 3)[-3])
    x = read_inputs(wine / "wine.csv", loaded.origin.class_names)[1]
    assert right / len(x) > 0.6
    assert sepal("predict", file, wine).stdout == result.stdout, "a directory as a run reads it"
    np.save(tmp_path / "rows.npy", x)
    assert sepal("predict", file, tmp_path / "rows.npy").stdout == result.stdout, "a batch in a .npy file"
    np.save(tmp_path / "row.npy", x[0])
    assert sepal("predict", file, tmp_path / "row.npy").stdout.splitlines()[1].startswith("row.npy,"), "one example"


def test_columns_go_by_their_names(wine, tmp_path):
    file = tmp_path / "m.safetensors"
    sepal("export", wine / "wine", "1", "--out", file)
    output = sepal("predict", file, wine / "wine.csv").stdout
    header, *rows = list(csv.reader((wine / "wine.csv").open()))
    with (tmp_path / "turned.csv").open("w", newline="") as turned:
        csv.writer(turned).writerows([row[::-1] for row in (header, *rows)])
    assert sepal("predict", file, tmp_path / "turned.csv").stdout == output
    with (tmp_path / "other.csv").open("w", newline="") as renamed_file:
        csv.writer(renamed_file).writerows([["colour", *header[1:]], *rows])
    result = CliRunner().invoke(app, ["predict", str(file), str(tmp_path / "other.csv")])
    assert result.exit_code == 2
    assert "other.csv, header: expected all columns of the model, also alcohol, got colour, malic_acid" in result.stderr


def test_other_columns_are_ignored_and_named(wine, tmp_path):
    """Also texts, which are no numbers."""
    file = tmp_path / "m.safetensors"
    sepal("export", wine / "wine", "1", "--out", file)
    result = sepal("predict", file, wine / "wine.csv")
    assert "ignored" not in result.stderr
    header, *rows = list(csv.reader((wine / "wine.csv").open()))
    with (tmp_path / "more.csv").open("w", newline="") as more:
        csv.writer(more).writerows([["id", *header, "note"], *(["w1", *row, ""] for row in rows)])
    again = sepal("predict", file, tmp_path / "more.csv")
    assert again.stdout == result.stdout
    assert again.stderr.endswith(f"columns that the model does not take are ignored: id, note\n{result.stderr}")


def test_missing_cells_are_treated_by_an_exported_model_as_in_training(wine, tmp_path):
    """In `sepal predict`, in Python and as ONNX: the client's own mean, which another model does not take."""
    header, *rows = list(csv.reader((wine / "wine.csv").open()))
    for number, row in enumerate(rows):
        row[number % 13] = ("", "NA", "nan")[number % 3]
    gaps = tmp_path / "gaps.csv"
    with gaps.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    where = (f"--set=data-dir={tmp_path}", f"--out={tmp_path}", "--name=gaps", "--workers=1")
    sepal("run", "--set=dataset=folder", "--set=folder.missing=mean", "--set=clients=3", "--set=rounds=3", *where)
    file, plain = tmp_path / "m.safetensors", tmp_path / "plain.safetensors"
    sepal("export", tmp_path / "gaps", "1", "--out", file)
    sepal("export", wine / "wine", "1", "--out", plain)
    client_model, loaded = model_of(tmp_path / "gaps", "client-00001"), load(file)
    assert np.isnan(client_model.inputs).any()
    np.testing.assert_allclose(loaded(client_model.inputs), client_model.logits, atol=1e-4)
    filled = np.where(np.isnan(client_model.inputs), np.float32(loaded.origin.offset), client_model.inputs)
    np.testing.assert_allclose(loaded(filled), client_model.logits, atol=1e-4)
    assert len(sepal("predict", file, gaps).stdout.splitlines()) == 179
    np.save(tmp_path / "rows.npy", client_model.inputs)
    assert sepal("predict", file, tmp_path / "rows.npy").exit_code == 0
    refused = CliRunner().invoke(app, ["predict", str(plain), str(gaps)])
    assert refused.exit_code == 2
    assert (
        "gaps.csv, row 2, column alcohol: expected a number in every cell (a run with folder.missing" in refused.stderr
    )
    if importlib.util.find_spec("onnxscript") and importlib.util.find_spec("onnxruntime"):
        import onnxruntime

        write_onnx(loaded.module, torch.from_numpy(client_model.inputs), tmp_path / "m.onnx", client_model.origin)
        session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
        (logits,) = session.run(None, {session.get_inputs()[0].name: client_model.inputs})
        np.testing.assert_allclose(logits, client_model.logits, atol=1e-4)


def test_onnx_takes_raw_rows(wine, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    sepal("export", wine / "wine", "1", "--out", tmp_path / "m.safetensors", "--onnx")
    x = read_inputs(wine / "wine.csv", ("class_0", "class_1", "class_2"))[1]
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(logits, load(tmp_path / "m.safetensors")(x), atol=1e-4)


def test_a_data_frame_is_taken_by_the_names_of_its_columns(wine):
    import pandas as pd

    run, frame = Run(wine / "wine"), pd.read_csv(wine / "wine.csv")
    expected = run.predict(1, wine / "wine.csv")["label"].tolist()
    assert run.predict(1, frame[frame.columns[::-1]])["label"].tolist() == expected
    with pytest.raises(DataError, match=r"data: expected the columns alcohol, .*, got none called alcohol"):
        run.predict(1, frame.drop(columns="alcohol"))
    with pytest.raises(DataError, match="data: expected an array of numbers"):
        run.predict(1, frame.assign(alcohol="much"))


def test_photographs_of_mixed_size_are_predicted_as_in_training(tmp_path):
    random = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 128)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            shape = (20 + number, 30, 3) if number % 2 else (30, 20 + number)
            pixels = random.integers(low, low + 128, shape).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    keys = {"dataset": "folder", "data-dir": tmp_path / "photos", "method": "fedavg", "clients": 2, "rounds": 3}
    keys |= {"partition.name": "iid", "folder.resize": 16, "folder.channels": 3}
    sets = [f"--set={key}={value}" for key, value in keys.items()]
    sepal("run", *sets, "--name=photos", "--out", tmp_path, "--workers=1")
    file = tmp_path / "m.safetensors"
    sepal("export", tmp_path / "photos", "0", "--out", file)
    rows = sepal("predict", file, tmp_path / "photos")
    assert "accuracy" in rows.stderr
    assert len(rows.stdout.splitlines()) == 25
    frame = Run(tmp_path / "photos").predict(0, tmp_path / "photos")
    assert frame.to_csv(index=False, float_format="%.4f") == rows.stdout
    pixels = np.array(Image.open(tmp_path / "photos" / "light" / "3.png").resize((16, 16)))
    assert Run(tmp_path / "photos").predict(0, pixels[None])["name"].tolist() == ["light"]
    broken = tmp_path / "photos" / "dark" / "broken.jpg"
    broken.write_bytes((tmp_path / "photos" / "dark" / "0.png").read_bytes()[:200])
    more = sepal("predict", file, tmp_path / "photos")
    assert more.stdout == rows.stdout
    assert f"sepal: 1 file that cannot be read is left out: {broken}\n" in more.stderr
    refused = CliRunner().invoke(app, ["predict", str(file), str(broken)])
    assert (refused.exit_code, "broken.jpg: expected a PNG or JPEG image, got" in refused.stderr) == (2, True)
    (tmp_path / "bad").mkdir()
    broken.rename(tmp_path / "bad" / "broken.jpg")
    refused = CliRunner().invoke(app, ["predict", str(file), str(tmp_path / "bad")])
    assert (refused.exit_code, "broken.jpg: expected a PNG or JPEG image, got" in refused.stderr) == (2, True)
    single = sepal("predict", file, tmp_path / "photos" / "light" / "3.png").stdout.splitlines()[1]
    assert (
        single.split(",")[1:]
        == next(row for row in rows.stdout.splitlines() if Path("light/3.png").as_posix() in row).split(",")[1:]
    )


def test_broken_photographs_are_named_once_for_a_comparison_and_in_the_log(
    runs_in_this_process, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        file = Path("photos", "ab"[number % 2], f"{number:02}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 5 * number).save(file)
    Path("photos/a/x.png").write_bytes(b"no image")
    folder = {"on-bad-file": "skip", "resize": 8}  # as a number: a comparison that has ended is read again
    keys = {"dataset": "folder", "data_dir": "photos", "folder": folder, "clients": 2, "rounds": 1}
    for _ in range(2):
        compare(["local"], seeds=range(2), out="all", **keys)
        errors = capsys.readouterr().err
        assert (
            errors.count("x.png") == errors.count("folder.on-bad-file: 1 file that cannot be read is left out: ") == 1
        )
    caplog.clear()
    with caplog.at_level("INFO", logger="sepal"):
        run("local", name="quiet", workers=1, progress=False, **keys)
        compare(["local"], seeds=range(2), out="all", progress=False, **keys)
    assert sum("x.png" in line for line in caplog.messages) == 2
    assert any(line.startswith("lr = 0.2: calibrated for ") for line in caplog.messages)
    assert "x.png" not in "".join(capsys.readouterr())
