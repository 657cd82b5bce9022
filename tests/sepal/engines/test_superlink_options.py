"""The commands that start a SuperLink, in Compose, Kubernetes and the docs, are ones that it understands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

from sepal.engines.flower.commands import Ports, superlink_command
from sepal.flower.superlink import options
from sepal.flower.versions import speaks_http

ROOT = Path(__file__).parents[3]
MODULE = "sepal.flower.superlink"


def composes():
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["superlink"]
    return [*service["entrypoint"], *service["command"]]


def kubernetes():
    for document in yaml.safe_load_all((ROOT / "deploy/kubernetes/server/server.yaml").read_text()):
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            if MODULE in container.get("command", []):
                return [*container["command"], *container["args"]]
    raise AssertionError("no container runs it")


def pages():
    text = (ROOT / "docs" / "operating.md").read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith(f"python3 -P -m {MODULE} "))
    return shlex.split(line)


def own_commands():
    return superlink_command(Ports(9092, 9093), "0.0.0.0", Path("/home"))


@pytest.mark.parametrize("command", [composes, kubernetes, pages, own_commands])
def test_a_command_says_where_clients_connect_and_where_nobody_else_does(command, monkeypatch):
    words = command()
    door, rest = options(words[words.index(MODULE) + 1 :])
    monkeypatch.setattr("sys.argv", ["flower-superlink", *rest])
    arguments = _parse_args_run_superlink().parse_args()
    assert (door if speaks_http() else arguments.fleet_api_address) == "0.0.0.0:9092"
    assert (arguments.host, int(arguments.port)) == ("127.0.0.1", 9093)
