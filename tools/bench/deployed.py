"""A deployed round in which clients have almost nothing to do: what processes and polls cost, warm and cold.

Warm is the resident client process of ``sepal join``; cold is Flower's own, a new Python process per message. The two
run one after the other, each with its own SuperLink and the same executor poll. A round is broken down by the way of
the message whose reply arrives last, from process to process (:mod:`tools.bench.moments.sitecustomize`).
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower

CLIENTS, ROUNDS = 2, 10
MOMENTS = Path(__file__).parent / "moments"
# A part of a round's time, and the moment at which it ends. The first begins with the round's ``order``.
PARTS = {
    "message_to_node": "received",  # composed, pushed to the SuperLink, the node's poll, download
    "process_begins": "running",  # the node's task is acquired; a fork, or a new process and its imports of Flower
    "app_begins": "answering",  # inputs read from the node, the bundle found; cold: imports of torch and Sepal
    "app_answers": "answered",  # Sepal: configuration, state, data, training, state written
    "reply_sent": "sent",  # reply to the node, the node's check for it, upload to the SuperLink
    "reply_taken": "taken",  # the server's poll, download
}


@dataclass(frozen=True)
class Moment:
    """A line of the trace: seconds of the monotonic clock, process, what happened, and to which node or round."""

    at: float
    process: str
    event: str
    about: str


def parts_of(moments: Sequence[Moment]) -> list[dict[str, float]]:
    """Return the seconds of each part of each round but the first and the closing one, along the last reply's way."""
    orders = {moment.about: moment.at for moment in reversed(moments) if moment.event == "order"}
    starts = sorted(orders.values())
    parts = []
    for begin, end in pairwise(starts[1:]):
        within = [moment for moment in moments if begin <= moment.at < end]
        last = max((moment for moment in within if moment.event == "taken"), key=lambda moment: moment.at)
        on_way = [moment for moment in within if moment.about == last.about]
        answering = {moment.process for moment in on_way if moment.event == "answering"}
        on_way += [moment for moment in within if moment.event == "running" and moment.process in answering]
        at = {moment.event: moment.at for moment in on_way}
        times = [begin, *(at[event] for event in PARTS.values()), end]
        seconds = [after - before for before, after in pairwise(times)]
        parts.append(dict(zip([*PARTS, "server_between_rounds"], seconds, strict=True)))
    return parts


def rounds_of(
    cold: bool, device: str = "cpu", rounds: int = ROUNDS
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Return seconds and parts of each round but the first, which starts processes.

    Raises:
        FlowerError: The run did not complete.
    """
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        trace = directory / "moments"
        environment = {
            "SEPAL_HOME": str(directory / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "SEPAL_MOMENTS": str(trace),
        }
        with Flower(environment=environment) as deployment:
            deployment.environment["PYTHONPATH"] = os.pathsep.join([str(MOMENTS), deployment.environment["PYTHONPATH"]])
            deployment.start_superlink()
            for number in range(CLIENTS):
                keys: dict[str, Any] = {"partition-id": number, "num-partitions": CLIENTS, "device": device}
                deployment.start_node(f"node{number}", keys, cold=cold)
            config: dict[str, Any] = {
                "name": "idle",
                "out": text,
                "method": "local",
                "dataset": "digits",
                "clients": CLIENTS,
                "rounds": rounds + 1,
                "evaluate-every": 0,
                "partition.subsample": 40,
            }
            write_app(directory / "app")  # what sepal serve submits
            deployment.run_app(directory / "app", config).check()
        lines = [
            json.loads(line) for line in (directory / "idle" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        moments = [
            Moment(float(at), *rest) for at, *rest in map(str.split, trace.read_text(encoding="utf-8").splitlines())
        ]
    return [line["seconds"] for line in lines[1:-1]], parts_of(moments)


def measure() -> list[dict[str, Any]]:
    """Return one row: the warm round's seconds over the cold one's, and their parts."""
    load = os.getloadavg()[0]
    cold, cold_parts = rounds_of(cold=True)
    warm, warm_parts = rounds_of(cold=False)
    row: dict[str, Any] = {}
    for name, rounds, parts in (("cold", cold, cold_parts), ("warm", warm, warm_parts)):
        total, train, server = (statistics.median(row[key] for row in rounds) for key in ("total", "train", "server"))
        figures = {
            "round_seconds": total,
            "fastest_round_seconds": min(row["total"] for row in rounds),
            "slowest_round_seconds": max(row["total"] for row in rounds),
            "training_seconds": train,
            "server_seconds_between_rounds": server,
            "mean_seconds_by_part": {key: statistics.fmean(row[key] for row in parts) for key in parts[0]},
        }
        row |= {f"{name}_{key}": value for key, value in figures.items()}
    ratio = row["warm_round_seconds"] / row["cold_round_seconds"]
    return [
        {
            "what": f"deployed round with almost no training, {CLIENTS} nodes, warm over cold",
            "ratio": ratio,
            "goal": "at most .45, and at most 3.5 s warm",
            "met": ratio <= 0.45 and row["warm_round_seconds"] <= 3.5,
            **row,
            "rounds": len(warm),
            "load_average_before": load,
        }
    ]
