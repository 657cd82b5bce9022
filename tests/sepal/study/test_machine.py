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
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "DATA", "CACHE"):
        monkeypatch.setenv(f"SEPAL_{name}", str(tmp_path / name.lower()))
    return tmp_path


def findings():
    return {finding.check: finding for finding in machine.examine()}


def without(monkeypatch, name):
    """Let an import fail, as where a library is missing or of another build."""
    plain = builtins.__import__

    def failing(module_name, *rest, **more):
        if module_name == name:
            raise OSError("libc10.so: no such file")
        return plain(module_name, *rest, **more)

    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", failing)


def test_a_machine_that_lacks_nothing_gets_ok_and_nothing_is_written(empty_directory):
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert all(line[:5] in ("ok   ", "note ") for line in lines)
    for check in ("Python", "torch", "device", "data directory", "data sets here", "runs", "SEPAL_HOME", "Flower"):
        assert f"ok   {check}: " in result.stdout
    assert not list(empty_directory.iterdir())


def test_data_that_are_there_are_named(empty_directory):
    by_check = findings()
    assert by_check["data sets here"].words == "digits", "it comes with scikit-learn"
    assert "mnist" in by_check["data sets elsewhere"].words
    assert by_check["data directory"].words.endswith("which does not exist yet (SEPAL_DATA names another)")


def test_a_taken_port_is_named_and_stops_no_run(empty_directory, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setitem(machine.PORTS, "clients", listener.getsockname()[1])
        finding = findings()["port for clients"]
    assert (finding.good, finding.stops) == (False, False)
    assert "in use; give `sepal serve` another one" in finding.words


@pytest.mark.parametrize(("check", "stops"), [("runs", True), ("SEPAL_HOME", False), ("cache of data", False)])
def test_a_directory_that_cannot_be_written_is_named(empty_directory, monkeypatch, check, stops):
    places = {
        "runs": empty_directory,
        "SEPAL_HOME": empty_directory / "home",
        "cache of data": empty_directory / "cache",
    }
    places[check].mkdir(exist_ok=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != places[check] and access(path, mode))
    finding = findings()[check]
    assert (finding.good, finding.stops) == (False, stops)
    assert finding.words.startswith(f"{places[check]} cannot be written")
    assert CliRunner().invoke(app, ["doctor"]).exit_code == stops


def test_a_home_that_others_may_write_to_is_named(empty_directory):
    (empty_directory / "home").mkdir()
    (empty_directory / "home").chmod(0o777)
    assert not findings()["SEPAL_HOME"].good


@pytest.mark.parametrize(("name", "stops"), [("torch", True), ("torchvision", False)])
def test_a_library_that_cannot_be_imported_is_named(empty_directory, monkeypatch, name, stops):
    without(monkeypatch, name)
    library_finding = {finding.check: finding for finding in machine.torch_findings()}[name]
    assert (library_finding.good, library_finding.stops) == (False, stops)
    assert "libc10.so: no such file" in library_finding.words


def test_a_cuda_build_without_a_gpu_is_said_to_be_too_large(empty_directory, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    by_check = {finding.check: finding for finding in machine.torch_findings()}
    assert by_check["torch"].words.endswith("CUDA 12.8")
    assert (by_check["device"].good, by_check["device"].stops) == (False, False)
    assert by_check["device"].words.startswith("cpu: no GPU is found, so the CPU build of torch")


def test_another_flower_and_no_ray_are_named(empty_directory, monkeypatch):
    def version(name):
        if name == "ray":
            raise machine.PackageNotFoundError(name)
        return "1.30.0"

    monkeypatch.setattr(machine, "version", version)
    monkeypatch.setattr("sepal.flower.versions.version", version)
    by_check = findings()
    assert by_check["Flower"].words.startswith("flwr: expected 1.39 to 1.42, got 1.30.0")
    assert "pip install 'sepal-fl[simulation]'" in by_check["Ray"].words
    assert not any(by_check[check].stops or by_check[check].good for check in ("Flower", "Ray"))
