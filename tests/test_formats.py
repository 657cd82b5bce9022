"""Stored formats have numbers (docs/versioning.md): another is refused by name, and the file stays as it is."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.client_app.state_store import DiskStateStore, Stored
from sepal.data.schema import read_schema
from sepal.errors import SepalError, StateError
from sepal.export import portable
from sepal.protocol.messages import Content, Reply, version
from sepal.protocol.types import ClientInfo, Kind
from sepal.runs import about, stored_run
from sepal.runs.run_directory import RunDirectory
from sepal.server.run_state import RunState
from sepal.server.run_store import DiskRunStore
from sepal.storage import files
from sepal.strategies.assembly import assemble
from tests.sepal.cli.runs_for_tests import write_run


@dataclass(frozen=True)
class State:
    value: int = 3


def of_the_next_release(monkeypatch, write):
    """Write as a release with the next format of states would, and return what ``write`` returned."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", "2")
        return write()


def test_a_clients_state_of_another_format_is_refused_and_not_set_aside(tmp_path, monkeypatch):
    name = version(1, "", "d", "u")
    reply = Reply("run-1", 1, Kind.TRAIN, ClientInfo("a", 10), "", "d" * 64, name)
    store = DiskStateStore(tmp_path, State)
    of_the_next_release(monkeypatch, lambda: store.save(name, Stored("train", State(), reply, Content())))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StateError, match=r"expected a state of format 1, got 2, of another release of Sepal"):
        store.load(name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_of_another_format_is_refused_and_not_set_aside(tmp_path, monkeypatch):
    store = DiskRunStore(tmp_path, State)
    of_the_next_release(monkeypatch, lambda: store.checkpoint(RunState("run-1", 1, State())))
    with pytest.raises(StateError, match=r"expected a state of format 1, got 2, of another release of Sepal"):
        DiskRunStore(tmp_path, State).latest()
    assert [path.name for path in tmp_path.glob("round-*")] == ["round-000001.safetensors"]


def test_a_state_says_its_format_and_one_without_is_read(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    files.write_tensors(path, {"w": np.zeros(2, np.float32)}, "{}")
    with safe_open(str(path), "np") as file:
        assert file.metadata()["format"] == "1"
    header = files._header

    def former(arrays, names, text):
        document = json.loads(header(arrays, names, text))
        del document["__metadata__"]["format"]
        data = json.dumps(document, separators=(",", ":")).encode()
        return data + b" " * (-len(data) % 8)

    monkeypatch.setattr(files, "_header", former)
    files.write_tensors(path, {"w": np.zeros(2, np.float32)}, "{}")
    assert files.read_tensors(path)[0]["w"].tolist() == [0, 0]


def test_a_run_directory_of_another_format_is_neither_shown_nor_continued(tmp_path, monkeypatch):
    run = write_run(tmp_path / "next")
    about_path = run / stored_run.ABOUT
    assert json.loads(about_path.read_text())["format"] == 1
    monkeypatch.setattr(about, "FORMAT", 2)
    about.write_about(run, assemble({"method": "fedavg", "dataset": "digits", "clients": 3}), alone=True)
    content = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["show", str(run)])
    assert result.exit_code != 0
    assert "expected a run directory of format 1, got 2, of another release of Sepal" in " ".join(result.output.split())
    with pytest.raises(StateError, match=r"expected a run directory of format 1, got 2"):
        RunDirectory(run, assemble({"method": "fedavg", "dataset": "digits", "clients": 3, "rounds": 2}), "in-process")
    assert {path: path.read_bytes() for path in content} == content


def test_an_exported_model_of_another_format_is_refused_by_name(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"0/w": np.zeros(1, np.float32)}, path, {"format": "sepal.model.v2", "origin": "{}"})
    assert list(load_file(path)) == ["0/w"]
    with pytest.raises(StateError, match=r"got sepal\.model\.v2"):
        portable.load(path)


def test_a_schema_of_another_format_is_refused_by_name(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text("format = 1\n")
    assert read_schema(path).format == 1
    path.write_text("format = 2\n")
    with pytest.raises(SepalError, match=r"format: .*should be 1"):
        read_schema(path)
