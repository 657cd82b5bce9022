"""``sepal doctor``: every line is ``ok`` or says what to do, and only what stops a run makes it fail."""

import builtins
import os
import socket
import sys

import pytest
import torch
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.study import machine


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "DATA", "CACHE"):
        monkeypatch.setenv(f"SEPAL_{name}", str(tmp_path / name.lower()))
    return tmp_path


def findings():
    return {finding.check: finding for finding in machine.examine()}


def without(monkeypatch, name):
    """Let an import fail, as where a library is missing or of another build."""
    plain = builtins.__import__

    def failing(wanted, *rest, **more):
        if wanted == name:
            raise OSError("libc10.so: no such file")
        return plain(wanted, *rest, **more)

    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", failing)


def test_a_machine_that_lacks_nothing_gets_ok_and_nothing_is_written(here):
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert all(line[:5] in ("ok   ", "note ") for line in lines)
    for what in ("Python", "torch", "device", "data directory", "data sets here", "runs", "SEPAL_HOME", "Flower"):
        assert f"ok   {what}: " in done.stdout
    assert not list(here.iterdir())


def test_data_that_are_there_are_named(here):
    found = findings()
    assert found["data sets here"].words == "digits", "it comes with scikit-learn"
    assert "mnist" in found["data sets elsewhere"].words
    assert found["data directory"].words.endswith("which does not exist yet (SEPAL_DATA names another)")


def test_a_taken_port_is_named_and_stops_no_run(here, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setitem(machine.PORTS, "clients", taken.getsockname()[1])
        found = findings()["port for clients"]
    assert (found.good, found.stops) == (False, False)
    assert "in use; give `sepal serve` another one" in found.words


@pytest.mark.parametrize(("what", "stops"), [("runs", True), ("SEPAL_HOME", False), ("cache of data", False)])
def test_a_directory_that_cannot_be_written_is_named(here, monkeypatch, what, stops):
    places = {"runs": here, "SEPAL_HOME": here / "home", "cache of data": here / "cache"}
    places[what].mkdir(exist_ok=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != places[what] and access(path, mode))
    found = findings()[what]
    assert (found.good, found.stops) == (False, stops)
    assert found.words.startswith(f"{places[what]} cannot be written")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == stops


def test_a_home_that_others_may_write_to_is_named(here):
    (here / "home").mkdir()
    (here / "home").chmod(0o777)
    assert not findings()["SEPAL_HOME"].good


@pytest.mark.parametrize(("name", "stops"), [("torch", True), ("torchvision", False)])
def test_a_library_that_cannot_be_imported_is_named(here, monkeypatch, name, stops):
    without(monkeypatch, name)
    found = {finding.check: finding for finding in machine.torch_findings()}[name]
    assert (found.good, found.stops) == (False, stops)
    assert "libc10.so: no such file" in found.words


def test_a_cuda_build_without_a_gpu_is_said_to_be_too_large(here, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    found = {finding.check: finding for finding in machine.torch_findings()}
    assert found["torch"].words.endswith("CUDA 12.8")
    assert (found["device"].good, found["device"].stops) == (False, False)
    assert found["device"].words.startswith("cpu: no GPU is found, so the CPU build of torch")


def test_another_flower_and_no_ray_are_named(here, monkeypatch):
    def version(name):
        if name == "ray":
            raise machine.PackageNotFoundError(name)
        return "1.30.0"

    monkeypatch.setattr(machine, "version", version)
    monkeypatch.setattr("sepal.flower.versions.version", version)
    found = findings()
    assert found["Flower"].words.startswith("flwr: expected 1.39 to 1.42, got 1.30.0")
    assert "pip install 'sepal-fl[simulation]'" in found["Ray"].words
    assert not any(found[what].stops or found[what].good for what in ("Flower", "Ray"))
