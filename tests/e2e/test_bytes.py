"""The ledger against what crossed the socket: TCP counters of the gRPC connections, and Flower's own account.

From Flower 1.40 on, SuperNodes speak HTTP and close connections, whose counters go with them; the account is left.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from sepal.engines.flower.engine import CONNECTION, Flower
from sepal.flower.versions import speaks_http
from tools.hosts.federation import IDLE, payload_sums

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
FLAT = {
    "method": "fedavg",
    "dataset": "digits",
    "model": "wide:build",
    "clients": 3,
    "rounds": 3,
    "evaluate-every": 0,
    "partition.name": "iid",
    "partition.subsample": 120,
    "timeout": 240.0,
    "name": "bytes",
}


def socket_bytes(port: int) -> tuple[int, int]:
    """Bytes that the SuperNodes sent to and received from the Fleet API's port, over all connections that are open."""
    text = subprocess.run(["ss", "-tin", f"dport = :{port}"], capture_output=True, text=True, check=True).stdout
    sent, received = (
        sum(map(int, re.findall(rf"\b{field}:(\d+)", text))) for field in ("bytes_sent", "bytes_received")
    )
    return sent, received


def traffic(deployment: Flower, run_id: str) -> dict[str, int]:
    command = ["flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json"]
    answer = subprocess.run(command, env=deployment.environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)["runs"][0]["network-traffic"]


def test_the_ledger_counts_what_crosses_the_socket(tmp_path):
    environment = {
        "SEPAL_HOME": str(tmp_path / "home"),
        "SEPAL_USER_PATH": str(Path(__file__).parent / "models_for_tests"),
    }
    with Flower(environment=environment) as deployment:
        deployment.start_superlink()
        for number in range(3):
            node = {"partition-id": number, "num-partitions": 3, "allow": "wide:build"}
            cold = number == 0  # as Flower starts it
            deployment.start_node(f"node{number}", node, cold=cold, allow_code=True)
        waiting = socket_bytes(deployment.ports.fleet)
        time.sleep(IDLE)
        before, begun = socket_bytes(deployment.ports.fleet), time.monotonic()
        run = deployment.run_app(ROOT, {**FLAT, "out": str(tmp_path)})
        assert run.status == "finished:completed", "\n".join(run.log[-80:])
        after, seconds = socket_bytes(deployment.ports.fleet), time.monotonic() - begun
        account = traffic(deployment, run.run_id)
    entries = [json.loads(line) for line in (tmp_path / "bytes" / "ledger.jsonl").read_text().splitlines()]
    up, down = (after[side] - before[side] for side in (0, 1))
    # What nodes that only wait send and receive in the run's time: heartbeats, and looks for messages at uneven times.
    idle = [2 * (before[side] - waiting[side]) * seconds / IDLE for side in (0, 1)]
    answered = payload_sums(entries)[1]
    sums = {
        (direction, measure): sum(entry[measure] for entry in entries if entry["direction"] == direction)
        for direction in ("up", "down")
        for measure in ("payload", "message")
    }
    messages = len(entries) // 2
    report = {
        "socket": (up, down),
        "idle": idle,
        "flower": account,
        "ledger": {" ".join(k): v for k, v in sums.items()},
    }
    report["overhead per message up"] = (up - sums["up", "payload"]) // messages
    print(json.dumps(report))
    # 9 uploads of 1.8 MB; the closing round's 3 replies carry none. An order that a node did not take counts, too.
    for number, (way, side) in enumerate((("up", "inbound-bytes"), ("down", "outbound-bytes"))):
        assert answered[number] <= account[side] <= 1.02 * sums[way, "payload"]
    if speaks_http():
        return
    # Down there is also the app bundle, once a node; up, what acknowledges it.
    bundle = 3 * len(build_fab_from_disk(ROOT))  # with the code, as `flwr run` in a checkout sends it
    assert answered[0] <= up <= 1.02 * sums["up", "payload"] + 0.01 * bundle + idle[0]
    assert answered[1] <= down <= 1.02 * (sums["down", "payload"] + bundle) + idle[1]
