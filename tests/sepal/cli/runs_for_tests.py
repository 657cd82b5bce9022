"""Run directories as a run writes them, made by hand: 2 rounds and the closing one, three clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from sepal.runs.about import write_about
from sepal.strategies.assembly import assemble

UP, DOWN = 100, 50  # bytes a client and round


def figures(values: list[float]) -> dict[str, Any]:
    """Figures over clients."""
    mean = sum(values) / len(values)
    return {"mean": mean, "weighted": mean, "std": 0.0, "bottom_decile": min(values), "clients": len(values)}


def write_run(
    path: Path,
    *,
    method: str = "fedavg",
    seed: int = 0,
    full: list[float] | None = None,
    closing: list[float] | None = None,
    capacities: list[float] | None = None,
    shift: bool = False,
    kept: bool = False,
    volume: int = 1,
    validation: Mapping[str, float] | None = None,
    about: bool = True,
    **keys: Any,
) -> Path:
    """Write a complete run with the accuracies given: of the full evaluations of rounds 1 and 2, and by client.

    With ``kept``, kept models are as accurate as trained ones. ``volume`` multiplies the bytes.
    Accuracy on validation data is the same, but for the views of ``validation`` in the closing round. Without
    ``about``, the run is one of an earlier version, which stored nothing for reports.
    """
    accuracies = closing or [0.5, 0.6, 0.7]
    count = len(accuracies)
    flat = {"method": method, "dataset": "digits", "clients": count, "rounds": 2, "seed": seed, **keys}
    assembly = assemble(flat)
    setup = assembly.setup
    from sepal.config import flatten

    config = {**setup.config.flat(), "name": path.name, **flatten(setup.hyper, f"{method}.")}
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps(config))
    if about:
        write_about(path, assembly, alone=True)
    rounds = [[value] * count for value in full or [0.2, 0.4]] + [accuracies]
    lines, ledger = [], []
    for number, values in enumerate(rounds, 1):
        last = number == len(rounds)
        rounds_over = min(number, len(rounds) - 1)
        sizes = {
            "up": UP * volume * count * rounds_over,
            "down": DOWN * volume * count * rounds_over,
            "up_dense": UP * count * rounds_over,
            "down_dense": DOWN * count * rounds_over,
        }
        views = {
            "received": figures(values),
            "trained": figures(values),
            "pooled": None,
            "kept": figures(values) if kept else None,
        }
        clients = [
            {
                "name": f"client-{position:05}",
                "received": value,
                "trained": value,
                "pooled": None,
                "kept": value if kept else None,
                "further": {f"trained-shift-{p}": value for p in (0, 100)} if shift and last else {},
                "examples": 10,
                "capacity": (capacities or [1.0] * count)[position],
                "up": UP,
                "down": DOWN,
                "metrics": {"multiply-adds": 1000.0, "steps": 1.0, "pruned": 0.1 * number},
            }
            for position, value in enumerate(values)
        ]
        lines.append(
            {
                "round": number,
                "phase": "closing" if last else "",
                "model_round": number - 1,
                "population": count,
                "full": True,
                "accuracy": views,
                "validation": {
                    view: figures([(validation or {}).get(view, value) if last else value for value in values])
                    for view in ("received", "trained", "kept")
                },
                "novel": None,
                "bytes": {**sizes, "total": sizes},
                "seconds": {"total": 1.0, "train": 1.0, "server": 0.5},
                "method": {},
                "clients": clients,
            }
        )
        for client in clients:
            for direction, size in (("down", DOWN * volume), ("up", UP * volume)):
                purpose = "closing" if last else "training"
                row = {"round": number, "client": client["name"], "purpose": purpose, "direction": direction}
                ledger.append(
                    {**row, "payload": size, "message": size, "dense": size, "status": "accepted", "reason": ""}
                )
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (path / "ledger.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ledger))
    summary = {
        "name": path.name,
        "complete": True,
        "rounds": 2,
        "accuracy": {
            v: view_figures and {**view_figures, "best": None} for v, view_figures in lines[-1]["accuracy"].items()
        },
        "further": {f"trained-shift-{p}": figures(accuracies) for p in (0, 100)} if shift else {},
        "bytes": lines[-1]["bytes"],
        "seconds": {"total": 4.5, "train": 3.0, "server": 1.5},
        "versions": {"sepal": "0.1.0", "cpu": "a <processor>"},
        "weights_sha256": "",
    }
    (path / "summary.json").write_text(json.dumps(summary))
    return path
