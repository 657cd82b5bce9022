"""A model that has left its run says which it is, and not whose; so does that of an earlier round, or of all."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

import sepal as package
from sepal.cli.main import app
from sepal.errors import StateError
from sepal.export.portable import load
from sepal.runs.summary import commit
from sepal.storage.serialize import digest_arrays
from sepal.strategies import registry

FACTS = {"run", "round", "method", "sha256", "sepal", "commit"}


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(out, name, method, rounds, *keys):
    sets = [f"method={method}", "dataset=digits", f"rounds={rounds}", "clients=2", "partition.subsample=160", "seed=3"]
    sets += ["local-epochs=1", "checkpoint-every=1", *keys]
    result = sepal("run", *[part for text in sets for part in ("--set", text)], "--name", name, "--out", out)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for name, method, rounds in (("three", "fedavg", 3), ("four", "fedavg", 4), ("sparse", "fedpse", 3)):
        run(out, name, method, rounds)
    return out


def written(*arguments):
    result = sepal("export", *arguments)
    assert result.exit_code == 0, result.output


def metadata(file):
    with safe_open(file, "np") as opened:
        return opened.metadata()


def tensors(file):
    with safe_open(file, "np") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


@pytest.mark.parametrize("name", [b"run\xff", "a\u202eb\x1bc".encode()])
def test_the_name_of_a_runs_directory_is_printable_in_the_file(name, runs, tmp_path):
    odd = tmp_path / os.fsdecode(name)
    shutil.copytree(runs / "three", odd)
    for client in (["0"], []):
        written(odd, *client, "--out", tmp_path / "m.safetensors")
        assert metadata(tmp_path / "m.safetensors")["run"].isprintable()
        assert load(tmp_path / "m.safetensors").origin.run == metadata(tmp_path / "m.safetensors")["run"]
    written(odd, "0")


def test_a_file_names_run_round_method_digest_and_version(runs, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    file = tmp_path / "m.safetensors"
    written(runs / "sparse", "client-00001", "--out", file, "--onnx")
    facts = metadata(file)
    assert {*facts} >= FACTS
    assert (facts["run"], facts["method"], facts["round"]) == ("sparse", "fedpse", "3")
    assert (facts["sepal"], facts["commit"]) == (package.__version__, commit())
    assert facts["sha256"] == digest_arrays(tensors(file))
    properties = {entry.key: entry.value for entry in onnx.load(file.with_suffix(".onnx")).metadata_props}
    assert {key: properties[key] for key in FACTS} == {key: facts[key] for key in FACTS}


def test_the_clients_name_is_in_a_file_that_was_asked_for_it_and_in_no_other(runs, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    for folder, option in (("without", ()), ("with", ("--with-client",))):
        file = tmp_path / folder / "m.safetensors"
        written(runs / "sparse", "client-00001", "--out", file, "--onnx", *option)
        assert [b"client-00001" in path.read_bytes() for path in sorted(file.parent.iterdir())] == [bool(option)] * 2
    assert metadata(file)["client"] == load(file).origin.client == "client-00001"
    properties = {entry.key: entry.value for entry in onnx.load(file.with_suffix(".onnx")).metadata_props}
    assert properties["client"] == "client-00001"


def test_the_files_own_name_says_no_client_either(runs, tmp_path):
    shutil.copytree(runs / "sparse", tmp_path / "r")
    written(tmp_path / "r", "client-00001")
    (file,) = (tmp_path / "r").glob("*.safetensors")
    assert file.name == f"r-round-3-{metadata(file)['sha256'][:8]}.safetensors"
    written(tmp_path / "r", "client-00001", "--with-client")
    assert (tmp_path / "r" / "client-00001.safetensors").is_file()


def test_a_file_whose_weights_are_not_those_it_names_is_refused(runs, tmp_path):
    file = tmp_path / "m"
    written(runs / "three", 0, "--out", file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StateError, match=r"m: expected weights with the digest \w+, got \w+"):
        load(file)


@pytest.mark.parametrize("view", ["received", "kept"])
def test_the_model_of_an_earlier_round_is_the_one_that_a_shorter_run_ends_with(runs, tmp_path, view):
    written(runs / "four", 1, "--round", 3, "--view", view, "--out", tmp_path / "early")
    written(runs / "three", 1, "--view", view, "--out", tmp_path / "short")
    written(runs / "four", 1, "--view", view, "--out", tmp_path / "late")
    digests = {name: metadata(tmp_path / name)["sha256"] for name in ("early", "short", "late")}
    assert digests["early"] == digests["short"] != digests["late"]
    assert [metadata(tmp_path / name)["round"] for name in digests] == ["3", "3", "4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["four", 0, "--round", 1], "--round: expected a round of four whose models are kept: 3, 4, got 1"),
        (["four", 0, "--round", 3, "--view", "trained"], "view: expected kept or received, which a round before"),
        (["four", "--round", 1], "--round: expected a round of four whose models are kept: 3, 4, got 1"),
        (["sparse"], "client: expected a client's name, because each has a model of its own with fedpse, got none"),
        (["four", "--view", "kept"], "view: expected received, the model that all clients have in common, got kept"),
        (["four", "--with-client"], "--with-client: expected a client's name as well, got none"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(runs, arguments, words):
    result = sepal("export", runs / arguments[0], *arguments[1:])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_best_models_are_kept_as_well_and_are_named(tmp_path):
    run(tmp_path, "r", "fedavg", 7, "evaluate-every=2", "final-model=best", "lr=3", "on-divergence=keep")
    round = json.loads((tmp_path / "r" / "summary.json").read_text())["best_round"] - 1
    assert 0 < round < 6, "neither the first weights nor one of the last checkpoints"
    written(tmp_path / "r", 0, "--out", tmp_path / "deployed")
    written(tmp_path / "r", 0, "--round", round, "--out", tmp_path / "early")
    facts = [metadata(tmp_path / name) for name in ("deployed", "early")]
    assert facts[0] == facts[1]
    assert facts[0]["round"] == str(round)
    assert f"whose models are kept: {round}, 6, 7, got 4" in sepal("export", tmp_path / "r", 0, "--round", 4).stderr


COMMON = (
    *("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"),
    *("fedscr", "fedstc", "scaffold", "moon", "fedrts", "sparsyfed", "fedpm", "fedbuff"),
)


def test_methods_with_one_model_for_all_are_those_that_say_so():
    assert {name for name in registry.names() if registry.get(name).one_model} == {*COMMON}


@pytest.mark.parametrize("method", COMMON)
def test_a_server_exports_the_model_that_each_client_deploys(tmp_path, method):
    """From its own files: those of the clients are elsewhere. The model is theirs bit for bit."""
    run(tmp_path, "r", method, 3, "clients=3", "clients-per-round=2", "values=fp16")
    for number in range(3):
        written(tmp_path / "r", number, "--out", tmp_path / f"{number}")
    shutil.copytree(tmp_path / "r", tmp_path / "server" / "r", ignore=shutil.ignore_patterns("clients"))
    written(tmp_path / "server" / "r", "--out", tmp_path / "server" / "m")
    wanted = {metadata(tmp_path / name)["sha256"] for name in ("0", "1", "2", "server/m")}
    assert len(wanted) == 1
    assert metadata(tmp_path / "server" / "m")["round"] == "3"


def test_the_common_model_of_a_table_that_clients_scale_themselves_is_refused(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3)).round(3)
    lines = [f"{a},{b},{c},{int(a > 0)},{'ab'[n % 2]}" for n, (a, b, c) in enumerate(rows)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y,z,label,site", *lines]))
    sets = ["method=fedavg", "dataset=folder", f"data-dir={tmp_path / 't.csv'}", "folder.person=site", "rounds=1"]
    options = [part for text in sets for part in ("--set", text)]
    assert sepal("run", *options, "--name", "r", "--out", tmp_path).exit_code == 0
    result = sepal("export", tmp_path / "r")
    assert result.exit_code == 2
    assert "client: expected a client's name, because each standardises its data by figures of its own" in result.stderr
    assert result.stderr.count("\n") == 1
