"""Names of devices, their spread over workers, and repeatable algorithms; tests/test_accelerators.py has a device."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from sepal.client_app.app import limits_memory
from sepal.client_app.build import Node
from sepal.engines.in_process import run
from sepal.errors import ConfigError, DeviceMemoryError
from sepal.protocol.messages import read_reply, write_client_error
from sepal.strategies.assembly import assemble
from sepal.training.devices import be_deterministic, choose_device, device_memory, spread


def machine(monkeypatch, kind=None, count=0):
    """Let torch find ``count`` accelerators."""
    device = torch.device(kind) if kind else None
    fake = SimpleNamespace(
        current_accelerator=lambda check_available=False: device,
        device_count=lambda: count,
        is_available=lambda: device is not None,
    )
    monkeypatch.setattr(torch, "accelerator", fake)


def test_devices(monkeypatch):
    machine(monkeypatch)
    assert [choose_device(name) for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="device: expected cpu or auto on a machine without an accelerator, got cuda"):
        choose_device("cuda")
    machine(monkeypatch, "cuda", 2)
    names = ("auto", "cpu", "cuda", "cuda:1")
    assert [choose_device(name) for name in names] == ["cuda", "cpu", "cuda", "cuda:1"]
    with pytest.raises(ConfigError, match="device: expected auto, cpu, cuda, cuda:0, cuda:1, got cuda:2"):
        choose_device("cuda:2")
    with pytest.raises(ConfigError, match="got mps"):
        choose_device("mps")
    machine(monkeypatch, "mps", 1)
    assert [choose_device(name) for name in ("auto", "mps")] == ["cpu", "mps"]


def test_workers_use_the_accelerators_in_turn(monkeypatch):
    machine(monkeypatch, "cuda", 2)
    assert spread("auto", "", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert spread("cuda", "1", 2) == ["cuda:1", "cuda:1"]
    assert spread("cuda:1", "", 2) == ["cuda:1", "cuda:1"]
    assert spread("cpu", "", 2) == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="got cuda:5"):
        spread("auto", "0,5", 2)
    with pytest.raises(ConfigError, match="gpus: expected an accelerator without a number as device"):
        spread("cpu", "0", 2)
    machine(monkeypatch, "cuda", 1)
    assert spread("auto", "", 2) == ["cuda", "cuda"]


def test_each_worker_of_a_run_gets_its_device(monkeypatch):
    machine(monkeypatch, "cuda", 4)
    devices = []

    class Pool:
        def __init__(self, setups):
            devices.extend(setup.device for setup in setups)
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "Pool", Pool)
    assembly = assemble({"dataset": "digits", "clients": 4, "gpus": "1,3", "partition.subsample": 100})
    with pytest.raises(KeyboardInterrupt):
        run.run_in_process(assembly, workers=3)
    assert devices == ["cuda:1", "cuda:3", "cuda:1"]


def test_a_nodes_own_device_may_have_a_number():
    assert Node.of({"device": "cuda:1"}).device == "cuda:1"
    with pytest.raises(ConfigError, match="device: expected auto, cpu, cuda, cuda:1, mps, xpu, …, got cuda:x"):
        Node.of({"device": "cuda:x"})


def test_deterministic_algorithms_are_switched_on_and_off(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    be_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    be_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_full_device_is_one_line_also_to_the_server_of_a_deployment():
    with pytest.raises(DeviceMemoryError, match="try a smaller batch-size or width") as caught, device_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
    with pytest.raises(DeviceMemoryError, match=r"client-1: device-memory: .*try a smaller batch-size or width"):
        read_reply(write_client_error(caught.value, "client-1", "12345678"))


def test_answers_have_a_limit_of_memory_without_cuda_only(monkeypatch):
    monkeypatch.setattr("sepal.client_app.app.on_one_machine", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [limits_memory(Node(device=name)) for name in ("cpu", "cuda", "cuda:1", "auto")] == [True, *[False] * 3]
