"""What Flower's quickstart and Sepal send as deployments: ten SuperNodes over gRPC, counted on their sockets.

The same federation as in :mod:`tools.side_by_side.ways`. Counted are the TCP connections of the SuperNodes to the
SuperLink, from the run's submission to its end: payloads, envelopes, polls and heartbeats. Other frameworks send
nothing unless a deployment of theirs is set up, which was not done.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.commands import supernode_command
from sepal.engines.flower.engine import CONNECTION, Flower
from sepal.engines.flower.processes import free_port
from tools.side_by_side.ways import CLIENTS, last_weights, result, sepal_keys

ROOT = Path(__file__).resolve().parents[2]
SEEDED = """
from pathlib import Path
from tools.side_by_side.ways import flower_apps
apps = flower_apps({rounds}, Path({place!r}), seeded_clients=True)
client_app = apps[0]  # Flower looks for the names in the text
server_app = apps[1]
"""
PROJECT = """
[project]
name = "quickstart"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "quickstart"
[tool.flwr.app.components]
serverapp = "quickstart:server_app"
clientapp = "quickstart:client_app"
[tool.flwr.app.config]
"""


def deployed(way: str, rounds: int, directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run a federation as a deployment; its weights are written to ``directory``.

    Returns:
        ``wire``: the bytes that all SuperNodes have sent and received; ``account``: Flower's own count of both.
    """
    run: Callable[[Flower, int, Path], str] = {"flower-seeded": _flower, "sepal": _sepal}[way]
    directory.mkdir(parents=True, exist_ok=True)
    with Flower(directory / "home", {**environment, "SEPAL_HOME": str(directory / "sepal")}) as deployment:
        deployment.start_superlink()
        for number in range(CLIENTS):
            node = {"partition-id": number, "num-partitions": CLIENTS}
            if way == "sepal":
                deployment.start_node(f"node{number}", {**node, "data": "tools.bench.small:load", "allow": ALLOWED})
            else:
                command = supernode_command(f"127.0.0.1:{deployment.ports.fleet}", free_port(), node)
                deployment.nodes[f"node{number}"] = deployment.spawn(*command, log=f"node{number}.log")
        before = on_sockets(deployment.ports.fleet)
        run_id = run(deployment, rounds, directory)
        after = on_sockets(deployment.ports.fleet)
        answer, _ = deployment.ask("flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json")
    traffic = json.loads(answer)["runs"][0]["network-traffic"]
    account = [traffic["inbound-bytes"], traffic["outbound-bytes"]]
    return {"wire": [after[0] - before[0], after[1] - before[1]], "account": account}


ALLOWED = "tools.bench.small:tiny"


def on_sockets(port: int) -> tuple[int, int]:
    """Return the bytes that connections to a local port have sent and received, of those that are open."""
    command = ["ss", "-tin", f"dport = :{port}"]
    text = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    sent, received = (
        sum(map(int, re.findall(rf"\b{field}:(\d+)", text))) for field in ("bytes_sent", "bytes_received")
    )
    return sent, received


def _flower(deployment: Flower, rounds: int, directory: Path) -> str:
    app = directory / "app"
    app.mkdir()
    (app / "quickstart.py").write_text(SEEDED.format(rounds=rounds, place=str(directory)), encoding="utf-8")
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    run = deployment.run_app(app, {})
    run.check(deployment.home)
    return run.run_id


def _sepal(deployment: Flower, rounds: int, directory: Path) -> str:
    app = directory / "app"
    app.mkdir()
    write_app(app)
    keys = {name: value for name, value in sepal_keys(rounds, directory).items() if name != "own.data"}
    run = deployment.run_app(app, keys)
    run.check(deployment.home)
    result(directory, last_weights(directory / "run"))
    return run.run_id
