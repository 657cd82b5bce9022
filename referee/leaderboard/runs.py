"""One run of the leaderboard, in a worker process, and its row."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from referee.leaderboard.blocks import Config
from referee.leaderboard.design import Run
from sepal.engines.in_process.run import run_in_process
from sepal.errors import SepalError, one_line
from sepal.runs.summary import digest_clients, processor, weights_digest
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord, RunState
from sepal.strategies.assembly import assemble

VIEWS = ("received", "trained", "kept")
SHIFTED = tuple(f"{view}-shift-100" for view in VIEWS)
MEGA = 1e6
DIGITS = 5  # of a stored accuracy


class Lines:
    """An observer that keeps each round's line of metrics.jsonl and the last report."""

    def __init__(self) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.report = Report()

    def opened(self, progress: RunState, total: int) -> None:
        """Do nothing."""

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Keep the line."""
        self.lines.append(line)

    def closed(self, progress: RunState, report: Report) -> None:
        """Keep the report."""
        self.report = report


def run(planned: Run, commit: str) -> dict[str, Any]:
    """Run and return the row.

    ``config`` has all keys that the run was given: with the commit they make the run again. ``seconds`` are of wall
    time, ``cpu_seconds`` of this process on one core. ``closing`` has the MB of the last download of all clients
    that train, without which they do not hold what is measured. ``spent`` has those of training, up and down, after
    each round, with that download; a trial has only ``bytes``, without it. ``validation`` and ``accuracy`` are means
    over participants in the closing round, by view; of a trial there is no accuracy, because it has nothing to do with
    test data. ``clients`` has a column for each view, and ``novel`` for those that never trained. ``curve`` has means
    of full evaluations. A run that ends with an error, for example because its weights are no longer finite, has
    ``error`` and no figures.
    """
    begun, cpu = time.monotonic(), time.process_time()
    lines, seen = [], Lines()
    row: dict[str, Any] = {"block": planned.block, "contender": planned.contender, "kind": planned.kind}
    row |= {"config": planned.config, "commit": commit, "machine": processor()}
    row |= {"written": datetime.now(UTC).isoformat(timespec="seconds"), "spent": [], "validation": {}}
    try:
        assembly = assemble(planned.config)
        strategy = run_in_process(assembly, observers=[seen])
        lines, state = seen.lines, strategy.progress.server
        row["deployed"] = assembly.method.deployed
        row["weights_sha256"] = weights_digest(assembly.method.make_server(assembly.task), state)
        row["clients_sha256"] = digest_clients(seen.report.digests)
    except SepalError as problem:
        row["error"] = one_line(str(problem))
    row |= {"seconds": round(time.monotonic() - begun, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    return {**row, **(figures(lines, planned.kind == "trial") if lines and "error" not in row else {})}


def figures(lines: Sequence[Mapping[str, Any]], trial: bool) -> dict[str, Any]:
    """Return a row's figures from the lines of metrics.jsonl, the closing round's last."""
    *rounds, last = lines
    found: dict[str, Any] = {
        "bytes": {key: rounds[-1]["bytes"][key] for key in ("up", "down", "up_dense", "down_dense")},
        "validation": _means(last["validation"]),
    }
    if trial:
        return found
    clients = [(client, {**client, **client.get("further", {})}) for client in last["clients"]]
    columns = {view: [_short(values.get(view)) for _, values in clients] for view in (*VIEWS, *SHIFTED)}
    about = {"name": [client["name"] for client, _ in clients], "novel": [client["novel"] for client, _ in clients]}
    steps = [client["metrics"].get("steps") for client, _ in clients]
    full = [line for line in lines if line["full"]]
    curve = {view: [_means(line["accuracy"]).get(view) for line in full] for view in VIEWS}
    closing = sum(client["down"] for client in last["clients"] if not client["novel"]) / MEGA
    found |= {
        "closing": round(closing, DIGITS),
        "spent": [round(_megabytes(line) + closing, DIGITS) for line in rounds],
        "accuracy": _means(last["accuracy"]),
        "clients": {**about, **{v: c for v, c in columns.items() if any(x is not None for x in c)}, "steps": steps},
        "curve": {"round": [line["round"] for line in full], **curve},
    }
    return found


def _megabytes(line: Mapping[str, Any]) -> float:
    return float(line["bytes"]["up"] + line["bytes"]["down"]) / MEGA


def _means(found: Mapping[str, Mapping[str, float] | None]) -> dict[str, float]:
    return {view: round(each["mean"], 6) for view, each in found.items() if each and view in VIEWS}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def digests(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what a second run must have, too: digests of the server's model and of the clients' states."""
    return {key: row.get(key, "") for key in ("weights_sha256", "clients_sha256", "error")}


def again(row: Mapping[str, Any], commit: str) -> dict[str, Any]:
    """Run a stored row again; return a line about whether the digests are the same."""
    config: Config = dict(row["config"])
    new = run(Run(row["block"], row["contender"], row["kind"], config), commit)
    line = {key: row[key] for key in ("block", "contender", "kind", "config")}
    line |= {"first": {key: row[key] for key in ("commit", "machine", "written")}}
    line |= {key: new[key] for key in ("commit", "machine", "written", "seconds")}
    return {**line, "same": digests(new) == digests(row)}
