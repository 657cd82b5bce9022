"""Makes a run's record from its run directory, with the further figures that papers' pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sepal.client_app.host import COSTS
from sepal.study.plans.execute import has_ended
from sepal.study.plans.model import PlannedRun
from sepal.study.record import RunRecord, columns, of_lines, rounded
from sepal.study.results import read_result
from sepal.study.statistics import rise

KEPT = ("written", "diverged", "undone", "weights_sha256", "clients_sha256")  # of summary.json
SHARED = COSTS | {"unseen-test-labels"}  # metrics that clients of all methods report


def figures(run: PlannedRun, out: Path) -> RunRecord | None:
    """Return the record of a run; None if it does not exist or has not ended.

    Its ``figures``: ``own``, columns of what the method's clients report of themselves in the closing round;
    ``method``, columns of the method's own figures by round; ``novel``, the novel clients' accuracy and the gap;
    ``multiply_adds`` of training, summed over clients; ``rise``, what :func:`sepal.study.statistics.rise` found;
    ``stopped``, what ended the run before its limit; ``chosen``, the keys that trials have chosen.

    Args:
        run: A run of a plan.
        out: Directory of run directories.
    """
    if not has_ended(run, out):
        return None
    result = read_result(out / run.name)
    stored = result.stored
    summary, last = stored.summary or {}, stored.lines[-1]
    versions = dict(summary["versions"])
    risen = rise(stored.lines, run.deployed)
    own_figures = [_own_figures(client) for client in last["clients"] if not client.get("novel")]
    rounds = [{"round": line["round"], **_means(line["method"])} for line in stored.lines if line["method"]]
    extra = {
        "by_capacity": summary.get("by_capacity"),
        "own": columns(own_figures) if any(len(row) > 1 for row in own_figures) else None,
        "novel": last.get("novel"),
        "multiply_adds": result.multiply_adds,
        "privacy": {key: value for key, value in (summary.get("privacy") or {}).items() if key != "clients"},
        "method": columns(rounds),
        "rise": asdict(risen) if risen else None,
        "stopped": summary["stopped"]["by"] if summary.get("stopped") else None,
        "chosen": dict(run.chosen),
    }
    seconds, parts = summary["seconds"]["total"], of_lines(stored.lines, ("clients", "curve"))
    return RunRecord(
        **rounded(parts),
        labels={"name": run.name, "block": run.block, "cell": run.cell, "variant": run.variant},
        config={key: value for key, value in run.keys.items() if key not in ("name", "out")},
        rounds=summary["rounds"],
        deployed=run.deployed,
        accuracy=rounded({**summary["accuracy"], **summary["further"]}),
        seconds=rounded(seconds),
        commit=versions.pop("commit", ""),
        machine=versions.pop("cpu", ""),
        **{key: summary[key] for key in KEPT if key in summary},  # a run of an earlier version may lack some
        figures=rounded({key: value for key, value in extra.items() if value} | {"versions": versions}),
    )


def _own_figures(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client of the method reports of itself, beyond costs."""
    return {"name": client["name"], **{key: v for key, v in client["metrics"].items() if key not in SHARED}}


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out figures of single clients (``distance.client-00001``)."""
    return {name: value for name, value in metrics.items() if ".client-" not in name}
