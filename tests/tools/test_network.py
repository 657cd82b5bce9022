"""Namespaces are tried before a test relies on them, and nothing of the trial is left."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tools.hosts import network


@pytest.mark.parametrize("missing", ["bridge", "veth", "tbf"])
def test_what_a_kernel_lacks_is_the_reason_to_skip(monkeypatch, missing):
    done = []

    def run(*command):
        if missing in command:
            raise RuntimeError(f"{missing}: not supported")
        return ""

    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr(network.shutil, "which", lambda tool: tool)
    monkeypatch.setattr(network, "run", run)
    monkeypatch.setattr(network.subprocess, "run", lambda command, **keys: done.append(command) or SimpleNamespace())
    assert network.unavailable() == f"{missing}: not supported"
    assert [command[1:3] for command in done] == [["netns", "del"], ["link", "del"], ["link", "del"]]


def test_without_root_there_is_a_reason_too(monkeypatch):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    assert network.unavailable() == "needs root"
