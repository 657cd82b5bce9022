"""Reads one run's figures from its run directory, for results pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sepal.client_app.host import COSTS
from sepal.protocol.views import CLOSING_VIEWS, VIEWS
from sepal.study.plans.execute import has_ended
from sepal.study.plans.model import PlannedRun
from sepal.study.results import MEGA, read_result
from sepal.study.statistics import rise

SHARED = COSTS | {"unseen-test-labels"}  # metrics that clients of all methods report


def figures(run: PlannedRun, out: Path) -> dict[str, Any] | None:
    """Return the figures of a run; None if it does not exist or has not ended.

    Args:
        run: A run of a plan.
        out: Directory of run directories.

    ``clients``, ``own`` and ``method`` hold columns of equal length; the first has the clients' names or the rounds.
    ``clients`` (accuracies) and ``own`` (what the method's clients report of themselves) cover the participants in the
    closing round. ``novel`` has the novel clients' accuracy and the gap. ``rise`` is what
    :func:`sepal.study.statistics.rise` found; ``stopped`` what ended the run before its limit.

    Accuracies are fractions, of the closing round. MB are payload bytes of training over all clients and rounds / 10⁶.
    Multiply-adds are those of training, without evaluation, summed over clients.
    """
    if not has_ended(run, out):
        return None
    result = read_result(out / run.name)
    stored = result.stored
    summary, last = stored.summary or {}, stored.lines[-1]
    sizes, present = summary["bytes"], [client for client in last["clients"] if not client.get("novel")]
    found = {
        "name": run.name,
        "block": run.block,
        "cell": run.cell,
        "variant": run.variant,
        "seed": run.seed,
        "rounds": summary["rounds"],
        "accuracy": {**summary["accuracy"], **summary["further"]},
        "by_capacity": summary.get("by_capacity", {}),
        "clients": _columns([{"name": client["name"], **_views(client)} for client in present]),
        **_own(present),
        **({"novel": last["novel"]} if last.get("novel") else {}),
        "megabytes": {key: sizes[key] / MEGA for key in ("up", "down", "up_dense", "down_dense")},
        "multiply_adds": result.multiply_adds,
        "seconds": summary["seconds"]["total"],
        **_privacy(summary.get("privacy")),
        "weights_sha256": summary["weights_sha256"],
        "versions": summary["versions"],
        "curve": [_point(line) for line in result.lines],
        "method": _columns([{"round": r["round"], **_means(r["method"])} for r in stored.lines if r["method"]]),
        "validation": {view: means["mean"] for view, means in last["validation"].items() if means},
    }
    if risen := rise(stored.lines, run.deployed):
        found["rise"] = asdict(risen)
    if summary.get("stopped"):
        found["stopped"] = summary["stopped"]["by"]
    if run.chosen:
        found["chosen"] = dict(run.chosen)
    return found


def _own(clients: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the method's clients report of themselves; nothing if they report only costs."""
    rows = [{key: value for key, value in client["metrics"].items() if key not in SHARED} for client in clients]
    return (
        {"own": _columns([{"name": c["name"], **row} for c, row in zip(clients, rows, strict=True)])}
        if any(rows)
        else {}
    )


def _privacy(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the run's privacy figures without those of each client; nothing for a run without ``privacy.clip``."""
    return {"privacy": {key: value for key, value in found.items() if key != "clients"}} if found else {}


def _views(client: Mapping[str, Any]) -> dict[str, float]:
    views = {**{view: client[view] for view in CLOSING_VIEWS}, **client.get("further", {})}
    return {view: accuracy for view, accuracy in views.items() if accuracy is not None}


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert rows to columns, with None for missing entries. As JSON, this takes a fifth of the space."""
    return {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}


def _point(line: Mapping[str, Any]) -> dict[str, Any]:
    means = {view: found["mean"] for view, found in line["accuracy"].items() if found and view in VIEWS}
    return {"round": line["round"], "megabytes": (line["bytes"]["up"] + line["bytes"]["down"]) / MEGA, **means}


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out figures of single clients (``distance.client-00001``)."""
    return {name: value for name, value in metrics.items() if ".client-" not in name}
