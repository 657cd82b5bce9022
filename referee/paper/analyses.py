"""Tables and figures of what masks, gates and pruning do, from the analyses stored beside the pages.

``python -m referee.paper.readings KIND RUN`` made the stored rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from referee.checkout import RESULTS
from sepal.report.markdown import table
from sepal.study.statistics import paired

NEAR = 0.5  # points; clients of one target reach the same shares up to rounding


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of ``referee/results/NAME.ndjson``."""
    return [json.loads(line) for line in (RESULTS / f"{name}.ndjson").read_text(encoding="utf-8").splitlines()]


def while_pruning(number: int, shares: Sequence[float], clients: Sequence[int] = (0, 5, 10, 15)) -> str:
    """Return Sub-FedAvg's accuracy by the share that a client has pruned, for a row of subfedavg-pruning."""
    cells = [
        [float(np.mean(accuracies)) if accuracies else np.nan for accuracies in by_share]
        for by_share in _at(number, shares).values()
    ]
    by_client = np.array(cells)
    lines = [[f"client {number}", *(f"{value:.1f}" for value in by_client[number])] for number in clients]
    for title, values in (("mean", np.nanmean(by_client, 0)), ("worst client", np.nanmin(by_client, 0))):
        lines.append([title, *(f"{value:.1f}" for value in values)])
    return "\n".join(table(["pruned, % of all parameters", *(f"{share:.1f}" for share in shares)], lines))


def change_while_pruning(number: int, first: float, last: float) -> str:
    """Return the change of accuracy between two shares of pruning, over the clients evaluated at both."""
    sides: list[dict[str, float]] = [{}, {}]
    for name, (before, after) in _at(number, (first, last)).items():
        for side, accuracies in zip(sides, (before, after), strict=True):
            side.update({name: float(np.mean(accuracies)) / 100} if accuracies else {})
    change = paired({0: sides[1]}, {0: sides[0]})
    return change.text(sign="+").replace("-", "−") if change else "–"


def _at(number: int, shares: Sequence[float]) -> dict[str, list[list[float]]]:
    by_client = {}
    for name, client in rows("subfedavg-pruning")[number]["clients"].items():
        pairs = list(zip(client["pruned"], client["accuracy"], strict=True))
        by_client[name] = [[100 * a for pruned, a in pairs if abs(100 * pruned - share) < NEAR] for share in shares]
    return by_client


def channel_gate() -> str:
    """Return how often Sub-FedAvg's hybrid clients pass their gate on channels (ε = 0.05)."""
    columns = []
    for run in rows("subfedavg-distances"):
        clients = list(run["distances"].values())
        rounds = np.concatenate([client["round"] for client in clients])
        far = np.concatenate([client["channel-distance"] for client in clients])
        never = sum(max(client["channel-distance"]) < 0.05 for client in clients)
        shares = [far == 0, far >= 0.05, (far >= 0.05)[rounds <= 15], (far >= 0.05)[rounds > 15]]
        columns.append([str(len(far)), *(f"{100 * np.mean(share):.0f} %" for share in shares), f"{never} of 20"])
    titles = ["participations", "both masks are the same", "the distance reaches ε", "… in rounds 1 to 15"]
    titles += ["… in rounds 16 to 60", "clients that never cut a channel"]
    cells = [[title, *values] for title, *values in zip(titles, *columns, strict=True)]
    return "\n".join(table(["hy-50", "MNIST, 30 channels", "CIFAR-10, 22 channels"], cells))


def shared_by_label() -> dict[str, str]:
    """Return DM-PFL's overlap of two clients' masks by the classes that they have in common (Figure 6 a)."""
    run, _ = rows("dmpfl-masks")
    pairs = np.triu_indices(len(run["clients"]), 1)
    shared, labels = np.array(run["similarity"])[pairs], np.array(run["labels"])[pairs]
    two, none = labels > 0.8, labels == 0
    kinds = {"both": two, "one": ~two & ~none, "none": none}
    means = {name: f"{shared[kind].mean():.3f}" for name, kind in kinds.items()}
    return {**means, "r": f"{run['correlation']['similarity']:.2f}", "global": f"{run['correlation']['overlap']:.2f}"}


def gate_masks(run: str) -> dict[str, str]:
    """Return of pFedGate's clients: distinct masks, the least that two share in %, correlation with their labels."""
    analysis = next(row for row in rows("pfedgate-masks") if row["run"] == f"{run}-seed0")
    r = analysis["correlation"]["similarity"]
    least = f"{100 * np.min(analysis['similarity']):.1f}"
    return {"distinct": str(analysis["distinct"]), "least": least, "r": "–" if r is None else f"{r:.2f}"}


def clusters() -> dict[str, str]:
    """Return of pFedGate's gates: the order of leaves with their labels, and distances with and without a label."""
    (run,) = rows("pfedgate-clusters")
    pairs = np.triu_indices(len(run["clients"]), 1)
    far, alike = np.array(run["distances"])[pairs], np.array(run["alike"])[pairs]
    leaves = " · ".join(", ".join(map(str, labels)) for labels in run["labels"])
    near, rest = far[alike > 0].mean(), far[alike == 0].mean()
    return {"leaves": leaves, "r": f"{run['correlation']:.2f}", "alike": f"{near:.1f}", "others": f"{rest:.1f}"}
