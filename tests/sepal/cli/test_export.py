"""A client's model leaves its run and predicts the same; what cannot be exported says so in one line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sepal import cli
from sepal.api.results import Run
from sepal.cli.main import app
from sepal.data.sources.inputs import read_inputs
from sepal.errors import ConfigError, DataError, ModelError, StateError
from sepal.export.extraction import write_model
from sepal.export.portable import load, save
from sepal.models import build
from sepal.modules import bring_back
from sepal.runs.stored_run import read_run
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.runs import model_of


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedPSE; Sub-FedAvg, whose clients' channels are cut after the first round; DM-PFL+, which uses two networks."""
    out = tmp_path_factory.mktemp("runs")
    cut = ["model=digits-cnn-bn", "subfedavg.variant=hy", "subfedavg.accuracy=0", "subfedavg.channel-distance=0"]
    cut += ["subfedavg.distance=0", "local-epochs=2"]
    both = ["dmpfl.adaptive-inference=true", "dmpfl.readjust-every=1", "rounds=4"]
    for method, keys in (("fedpse", []), ("subfedavg", cut), ("dmpfl", both)):
        sets = [f"method={method}", "dataset=digits", "rounds=3", "clients=2", "partition.subsample=300", *keys]
        options = [part for text in sets for part in ("--set", text)]
        result = sepal("run", *options, "--name", method, "--out", out, "--workers", 1)
        assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("method", ["fedpse", "subfedavg", "dmpfl"])
def test_an_exported_model_says_what_the_clients_model_says(runs, tmp_path, method):
    file = tmp_path / "model.safetensors"
    result = sepal("export", runs / method, "client-00001", "--out", file, "--view", "trained")
    assert result.exit_code == 0, result.output
    client_model = model_of(runs / method, "client-00001", "trained")
    np.testing.assert_allclose(load(file)(client_model.inputs), client_model.logits, atol=1e-5)
    assert len(client_model.networks) == (2 if method == "dmpfl" else 1)
    other_model = model_of(runs / method, "client-00000")
    assert not np.allclose(load(file)(other_model.inputs), other_model.logits, atol=1e-5)  # it is this client's own


def test_a_client_of_one_class_is_told_so(tmp_path):
    """Its model answers that class always, and has 100 % on its own test data."""
    keys = ["dataset=digits", "rounds=1", "clients=2", "partition.subsample=100", "method=local"]
    keys += ["partition.name=pathological", "partition.classes=1"]
    sets = [part for text in keys for part in ("--set", text)]
    assert sepal("run", *sets, "--name", "one", "--out", tmp_path, "--workers", 1).exit_code == 0
    words = "client-00001 has training examples of one class alone: its own model knows no other"
    assert words in sepal("export", tmp_path / "one", "1").stderr


@pytest.mark.parametrize(
    "method", ["fedavg", "fedavg-ft", "fedpse", "dmpfl", "subfedavg", "pa3dfl", "pfedhn", "heterofl", "pfedgate"]
)
def test_an_exported_model_has_the_accuracy_that_the_run_reports(tmp_path, method):
    """The deployed model by default, in `sepal predict`, and each view; a novel client has no kept one."""
    keys = [f"method={method}", "dataset=digits", "rounds=4", "clients=3", "partition.subsample=300", "seed=1"]
    keys += ["clients-per-round=1", "novel-clients=0.34", "local-epochs=1"]
    keys += {"subfedavg": ["subfedavg.accuracy=0"], "heterofl": ["capacity.profile=hetero"]}.get(method, [])
    sets = [part for text in keys for part in ("--set", text)]
    assert sepal("run", *sets, "--name", "r", "--out", tmp_path, "--workers", 1).exit_code == 0
    stored, file = read_run(tmp_path / "r"), tmp_path / "m"
    assembly, deployed = assemble(stored.config), registry.deployed(method)
    rows = stored.lines[-1]["clients"]
    if method in ("heterofl", "pfedgate"):  # narrow channels are multiplied; a gate chooses weights
        with pytest.raises(
            ConfigError, match=r"client: expected a model (of one network|that its tensors and its mod)"
        ):
            Run(tmp_path / "r").model(rows[0]["name"])
        return
    for number, row in enumerate(rows):
        test = assembly.data.client(number, 3, row["name"]).test
        for view in ("received", "trained", "kept"):
            if row[view] is None:
                with pytest.raises(
                    ConfigError, match=f"one that has a {view} model, got {row['name']}, which has none"
                ):
                    model_of(tmp_path / "r", row["name"], view)
                continue
            predict = write_model(model_of(tmp_path / "r", row["name"], view), file)
            assert np.mean(predict(np.array(test.x)).argmax(1) == test.y) == pytest.approx(row[view]), view
    assert [row["kept"] for row in rows if row["novel"]] == [None]
    number, row = next((number, row) for number, row in enumerate(rows) if row[deployed] is not None)
    test = assembly.data.client(number, 3, row["name"]).test
    np.savez(tmp_path / "test.npz", x=test.x, y=test.y)
    result = sepal("export", tmp_path / "r", number, "--out", file)
    words = f"the {deployed} model, accuracy on the client's test data {100 * row[deployed]:.1f} %"
    assert words in result.stdout, result.output
    right = round(row[deployed] * len(test.y))
    assert sepal("predict", file, tmp_path / "test.npz").stderr.endswith(f"%: {right} of {len(test.y)}\n")


def test_before_the_closing_evaluation_there_is_only_what_the_client_keeps(runs, tmp_path):
    import shutil

    shutil.copytree(runs / "fedpse", tmp_path / "r")
    for path in [*tmp_path.glob("r/clients/*/*/4-*"), *tmp_path.glob("r/checkpoints/round-000004*")]:
        path.unlink()
    for view in ("received", "trained"):
        result = sepal("export", tmp_path / "r", 1, "--view", view)
        assert f"a run whose closing evaluation has tested this client's {view} model, or --view kept" in result.stderr
    assert "the kept model" in sepal("export", tmp_path / "r", 1, "--out", tmp_path / "m").stdout
    assert (
        "view: expected received or trained or kept, got own"
        in sepal("export", runs / "fedpse", 1, "--view", "own").stderr
    )


def test_channels_that_were_cut_are_not_in_the_file(runs):
    from sepal import models

    client_model = model_of(runs / "subfedavg", "client-00000")
    whole = models.build("digits-cnn-bn", client_model.origin.shape, client_model.origin.classes)
    sizes = {name: tuple(tensor.shape) for name, tensor in whole.state_dict().items()}
    assert any(tensor.shape < sizes[name] for name, tensor in client_model.networks[0].items())


def test_predict_labels_images_and_arrays_alike(runs, tmp_path):
    file = tmp_path / "model.safetensors"
    assert sepal("export", runs / "fedpse", "client-00000", "--out", file).exit_code == 0
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8)).astype(np.uint8)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    np.savez(tmp_path / "x.npz", x=images)
    outputs = [sepal("predict", file, tmp_path / name).stdout for name in ("images", "x.npz")]
    tables = [[row[1:] for row in csv.reader(text.splitlines())] for text in outputs]
    assert tables[0] == tables[1]
    assert tables[0][0] == ["label", "name", "probability"]
    assert [row[1] for row in tables[0][1:]] == [row[0] for row in tables[0][1:]], "digits have no other names"
    assert len(tables[0]) == 4
    single = list(csv.reader(sepal("predict", file, tmp_path / "images" / "1.png").stdout.splitlines()))
    assert single[1:] == [["1.png", *tables[0][2]]], "a single image"
    bytes_scaled = (images[:, None] / 255.0).astype(np.float32)
    prepared = load(file).prepare(images)
    origin = load(file).origin
    np.testing.assert_allclose(prepared, (bytes_scaled - origin.mean[0]) / origin.std[0], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["export", "fedpse", "client-7"],
            "client: expected a client of fedpse: client-00000 … client-00001, got client-7",
        ),
        (["export", "none", "client-00000"], "run: expected a run directory"),
        (["predict", "model", "none.npz"], "none.npz: expected an .npz with x, got"),
        (
            ["predict", "model", "empty"],
            "data: expected an .npz with x, a .csv, or .png, .jpg or .npy files",
        ),
        (["predict", "model", "wide.npz"], "data: expected examples of shape (1, 8, 8), got (1, 9, 9)"),
        (["predict", "wide.npz", "wide.npz"], "wide.npz: expected a model that `sepal export` wrote"),
        (["export", "fedpse", "0", "--out", "empty"], "--out: expected a file, got the directory empty"),
        (["predict", "model", "wide.npz", "--out", "empty"], "--out: expected a file, got the directory empty"),
    ],
)
def test_bad_input_is_one_line(runs, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    np.savez("wide.npz", x=np.zeros((2, 9, 9), np.uint8))
    client_model = model_of(runs / "fedpse", "client-00000")
    save(tmp_path / "model", client_model.origin, client_model.networks)
    command = [runs / text if (runs / text).exists() else text for text in arguments]
    result = sepal(*command)
    assert result.exit_code == 2
    assert words.replace("'", "") in result.stderr.replace("'", "")
    assert result.stderr.count("\n") == 1


def test_a_client_without_a_state_has_no_model(runs, tmp_path):
    import shutil

    shutil.copytree(runs / "fedpse", tmp_path / "bare", ignore=shutil.ignore_patterns("*-*.safetensors"))
    result = sepal("export", tmp_path / "bare", "client-00000")
    assert result.exit_code == 2
    assert "client: expected one with states in" in result.stderr


def test_onnx_gives_the_same_logits(runs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = sepal("export", runs / "fedpse", "client-00000", "--out", tmp_path / "model.safetensors", "--onnx")
    assert result.exit_code == 0, result.output
    client_model = model_of(runs / "fedpse", "client-00000")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(None, {"x": client_model.inputs[:5]})
    np.testing.assert_allclose(logits, client_model.logits[:5], atol=1e-4)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == list(client_model.origin.class_names)
    assert json.loads(about["std"]) == list(client_model.origin.std)


def test_no_exported_file_names_a_path_of_this_machine(runs, tmp_path):
    """torch's exporter notes for each node of an ONNX file where its source is."""
    pytest.importorskip("onnxscript")
    result = sepal("export", runs / "fedpse", "client-00000", "--out", tmp_path / "model.safetensors", "--onnx")
    assert result.exit_code == 0, result.output
    homes = {Path.home(), Path.cwd(), tmp_path, runs, Path(cli.__file__).parent, Path(torch.__file__).parent}
    for file in ("model.safetensors", "model.onnx"):
        content = (tmp_path / file).read_bytes()
        assert [home for home in homes if len(home.parts) > 1 and str(home).encode() in content] == [], file
        assert b".py" not in content, file


def test_predict_prints_the_names_of_classes(runs, tmp_path):
    client_model = model_of(runs / "fedpse", "client-00000")
    names = tuple(f"digit {number}" for number in range(10))
    save(tmp_path / "named", replace(client_model.origin, class_names=names), client_model.networks)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    rows = list(csv.DictReader(sepal("predict", tmp_path / "named", tmp_path / "x.npz").stdout.splitlines()))
    assert [row["name"] for row in rows] == [f"digit {row['label']}" for row in rows]


@pytest.mark.parametrize("names", [("one",), ("\x1b[2J", *"123456789")])
def test_a_model_file_with_other_class_names_is_refused(runs, tmp_path, names):
    client_model = model_of(runs / "fedpse", "client-00000")
    save(tmp_path / "named", replace(client_model.origin, class_names=names), client_model.networks)
    with pytest.raises(StateError, match="class_names without a printable name for each of 10 classes"):
        load(tmp_path / "named")


@pytest.mark.parametrize(("method", "readable"), [("dmpfl", True), ("fedavg", False), ("unknown", False)])
def test_several_networks_are_combined_as_the_record_of_their_method_says(runs, tmp_path, method, readable):
    """A file's own word for the rule does not count: older versions wrote ``dmpfl-adaptive``."""
    client_model = model_of(runs / "dmpfl", "client-00000", "trained")
    save(tmp_path / "two", replace(client_model.origin, method=method, rule="dmpfl-adaptive"), client_model.networks)
    if readable:
        np.testing.assert_allclose(load(tmp_path / "two")(client_model.inputs), client_model.logits, atol=1e-5)
    else:
        with pytest.raises(ModelError, match="expected networks that its method says how to combine"):
            load(tmp_path / "two")


@pytest.mark.parametrize("method", ["fedem", "pfedgate"])
def test_a_model_that_is_not_of_networks_alone_is_not_exported(tmp_path, method):
    sets = [f"method={method}", "dataset=digits", "rounds=1", "clients=2", "partition.subsample=60", "local-epochs=1"]
    options = [part for text in sets for part in ("--set", text)]
    assert sepal("run", *options, "--name", method, "--out", tmp_path, "--workers", 1).exit_code == 0
    with pytest.raises(ConfigError, match=f"a model of one network, got {method}, whose predictions are not those of"):
        model_of(tmp_path / method, "client-00000")


def test_a_torn_model_file_is_refused(tmp_path):
    (tmp_path / "torn").write_bytes(b"\x00" * 20)
    with pytest.raises(StateError, match="expected a model that `sepal export` wrote"):
        load(tmp_path / "torn")


def test_a_file_that_fills_without_means_is_refused(runs, tmp_path):
    client_model = model_of(runs / "fedpse", "client-00000")
    save(tmp_path / "m", replace(client_model.origin, fill=True), client_model.networks)
    with pytest.raises(StateError, match=r"origin\.fill without means"):
        load(tmp_path / "m")


@pytest.mark.parametrize("model", ["frozen", "tied", "pretrained"])
def test_an_exported_own_model_is_complete(tmp_path, model):
    """A frozen layer is in the file, and frozen again when loaded; shared weights are shared again. ONNX agrees."""
    name = f"tests.strategies.own_models:{model}"
    sets = ["method=fedavg", "dataset=digits", "rounds=1", "clients=2", "partition.subsample=100", f"model={name}"]
    options = [part for text in sets for part in ("--set", text)]
    result = sepal("run", *options, "--name", model, "--out", tmp_path, "--workers", 1)
    assert result.exit_code == 0, result.output
    file = tmp_path / "model.safetensors"
    assert sepal("export", tmp_path / model, "client-00001", "--out", file, "--allow", name).exit_code == 0
    client_model, module = model_of(tmp_path / model, "client-00001", allow={name}), load(file, {name}).module
    np.testing.assert_allclose(load(file, {name})(client_model.inputs), client_model.logits, atol=1e-5)
    parameters = dict(module.named_parameters())
    assert len(list(module.parameters())) == (7 if model == "tied" else 8)
    assert parameters["embed.weight"].requires_grad == (model != "frozen")
    assert ("embed.weight" in client_model.networks[0], "fc2.weight" in client_model.networks[0]) == (
        True,
        model != "tied",
    )
    if model != "tied":
        assert ("1 of 8 tensors start as" in result.stderr) == (model == "pretrained")
        assert ("2 frozen tensors stay as" in result.stderr) == (model == "frozen")
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert sepal("export", tmp_path / model, "1", "--out", file, "--onnx", "--allow", name).exit_code == 0
    session = onnxruntime.InferenceSession(file.with_suffix(".onnx"))
    (logits,) = session.run(None, {session.get_inputs()[0].name: client_model.inputs[:5]})
    np.testing.assert_allclose(logits, client_model.logits[:5], atol=1e-4)


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("frozen_and_tied", []),
        ("frozen_and_tied", ["trainable=head.*"]),
        ("tied", ["trainable=head.*"]),
        ("tied", ["lora.rank=2"]),
        ("tied", ["lora.rank=2", "trainable=head.*"]),
        ("frozen_and_tied", ["lora.rank=2", "trainable=head.*"]),
    ],
)
def test_ties_hold_through_freezing_adapters_and_export(tmp_path, model, keys):
    name = f"tests.strategies.own_models:{model}"
    sets = ["method=fedavg", "dataset=digits", "rounds=1", "clients=2", "partition.subsample=100", f"model={name}"]
    options = [part for text in (*sets, *keys) for part in ("--set", text)]
    result = sepal("run", *options, "--name", "run", "--out", tmp_path, "--workers", 1)
    assert result.exit_code == 0, result.output
    file = tmp_path / "model.safetensors"
    assert sepal("export", tmp_path / "run", "client-00001", "--out", file, "--allow", name).exit_code == 0
    client_model, loaded = model_of(tmp_path / "run", "client-00001", allow={name}), load(file, {name})
    assert loaded.module.fc1.weight is loaded.module.fc2.weight
    assert (loaded.module.fc1.bias is loaded.module.fc2.bias) == (model == "frozen_and_tied")
    assert loaded.module.state_dict().keys() == bring_back(build(name, (1, 8, 8), 10)).state_dict().keys()
    np.testing.assert_allclose(loaded(client_model.inputs), client_model.logits, atol=1e-5)


def test_tensors_without_axes_and_what_stays_with_a_client_are_exported(tmp_path):
    name = "tests.strategies.own_models:sharpened"
    sets = ["method=fedavg", "dataset=digits", "rounds=2", "clients=2", "partition.subsample=100", f"model={name}"]
    options = [part for text in sets for part in ("--set", text)]
    result = sepal("run", *options, "--name", "run", "--out", tmp_path, "--workers", 1)
    assert result.exit_code == 0, result.output
    module = model_of(tmp_path / "run", "client-00001", allow={name}).networks[0]
    assert module["temperature"].shape == module["batches"].shape == ()
    assert module["batches"] > 0
    file = tmp_path / "model.safetensors"
    assert sepal("export", tmp_path / "run", "client-00001", "--out", file, "--allow", name).exit_code == 0
    loaded = load(file, {name})
    client_model = model_of(tmp_path / "run", "client-00001", allow={name})
    np.testing.assert_allclose(loaded(client_model.inputs), client_model.logits, atol=1e-5)
    state = loaded.module.state_dict()
    assert state["temperature"].shape == ()
    assert state["batches"] == module["batches"]


def test_a_pruned_layers_mask_is_neither_sent_nor_lost(tmp_path):
    """It never changes, so both sides derive it; before, it was sent and counted in each round."""
    name = "tests.strategies.own_models:pruned"
    sets = ["method=fedavg", "dataset=digits", "rounds=1", "clients=2", "partition.subsample=100"]
    sizes = {}
    for model in (name, "tests.strategies.own_models:other_net"):
        options = [part for text in (*sets, f"model={model}") for part in ("--set", text)]
        assert sepal("run", *options, "--name", model[-5:], "--out", tmp_path, "--workers", 1).exit_code == 0
        summary = json.loads((tmp_path / model[-5:] / "summary.json").read_text())
        sizes[model] = summary["bytes"]["up"]
    pruned, dense = sizes.values()
    assert pruned == pytest.approx(dense, rel=0.02)
    file = tmp_path / "model.safetensors"
    assert sepal("export", tmp_path / name[-5:], "client-00001", "--out", file, "--allow", name).exit_code == 0
    client_model = model_of(tmp_path / name[-5:], "client-00001", allow={name})
    np.testing.assert_allclose(load(file, {name})(client_model.inputs), client_model.logits, atol=1e-5)
    mask = client_model.networks[0]["fc1.weight_mask"]
    assert mask.mean() == 0.5
    np.testing.assert_array_equal(load(file, {name}).module.fc1.weight_mask, mask)


def test_predict_reports_accuracy_where_labels_are_there(runs, tmp_path):
    file = tmp_path / "m.safetensors"
    assert "written" in sepal("export", runs / "fedpse", "1", "--out", file).stdout, "client 1 by its number"
    x = np.random.default_rng(0).integers(0, 256, (4, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=x)
    assert sepal("predict", file, tmp_path).stdout == sepal("predict", file, tmp_path / "x.npz").stdout != ""
    quiet = sepal("predict", file, tmp_path / "x.npz")
    assert "accuracy" not in quiet.stderr
    predicted = [int(row[1]) for row in csv.reader(quiet.stdout.splitlines()[1:])]
    np.savez(tmp_path / "xy.npz", x=x, y=[*predicted[:3], predicted[3] + 1])
    result = sepal("predict", file, tmp_path / "xy.npz")
    assert result.stderr.strip().endswith("accuracy 75.0 %: 3 of 4")
    np.savez(tmp_path / "xy.npz", x=x, y=predicted)
    result = sepal("predict", file, tmp_path / "xy.npz")
    assert result.stderr == "balanced-accuracy 1, macro-f1 1\naccuracy 100.0 %: 4 of 4\n"
    assert result.stdout == quiet.stdout


def test_inputs_of_a_table_and_of_directories_named_like_classes(tmp_path):
    (tmp_path / "t.csv").write_text("a,label,b\n1,dog,2\n3,cat,4\n")
    names, x, y, _ = read_inputs(tmp_path / "t.csv", ("cat", "dog"))
    assert (names, x.tolist(), y.tolist()) == (["0", "1"], [[1, 2], [3, 4]], [1, 0])
    with pytest.raises(DataError, match="column label: expected one of cat, cow, got 'dog'"):
        read_inputs(tmp_path / "t.csv", ("cat", "cow"))
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert read_inputs(tmp_path / "t.csv")[2] is None
    for name in ("dog", "cat"):
        (tmp_path / "d" / name).mkdir(parents=True)
        np.save(tmp_path / "d" / name / "0.npy", np.zeros(2, np.float32))
    assert read_inputs(tmp_path / "d", ("cat", "dog"))[2].tolist() == [0, 1]
    assert read_inputs(tmp_path / "d", ("cat", "cow"))[2] is None
