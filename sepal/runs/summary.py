"""The content of ``summary.json``, described in ``docs/run-directory.md``."""

from __future__ import annotations

import hashlib
import math
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import sepal
from sepal.data.own import PRIVATE
from sepal.method.algorithms import ServerAlgorithm
from sepal.protocol.views import CLOSING_VIEWS
from sepal.runs.privacy import privacy, privacy_of_rounds
from sepal.runs.processors import processor
from sepal.server.report import RunFigures, described, key_of, populations
from sepal.server.run_state import RunState
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import Assembly

GIT_SECONDS = 10


def summarise(
    assembly: Assembly, progress: RunState, report: RunFigures, *, name: str, engine: str, rounds: int
) -> dict[str, Any]:
    """Return the summary of a run whose closing round is done.

    Args:
        assembly: The run's parts.
        progress: The state after the closing round.
        report: The figures of all rounds.
        name: The run's name.
        engine: Name of the engine.
        rounds: The most rounds that the run might have had, without the closing round.
    """
    config, rounds_over = assembly.setup.config, progress.round - 1
    clients_sha256 = digest_clients(report.digests)
    algorithm = assembly.method.make_server(assembly.setup)
    return {
        "name": name,
        "run": progress.run,
        "complete": True,
        "method": config.method,
        "dataset": config.dataset,
        "model": config.model,
        "engine": engine,
        "rounds": rounds_over,
        "limit": rounds,
        "stopped": asdict(report.stopped) if report.stopped and rounds_over < rounds else None,
        "seed": config.seed,
        "clients": len(progress.roster),
        **({"data_changed": sorted(progress.began)} if progress.began else {}),
        "populations": populations(len(progress.roster), len(progress.novel)),
        "clients_with_unseen_test_labels": report.unseen,
        **described(report.scoring),
        key_of(report.scoring): {view: accuracy(report, view) for view in CLOSING_VIEWS},
        **({} if report.scoring.counted else {"metrics": dict(report.metrics)}),
        **({"classes": dict(report.classes)} if report.classes else {}),
        "novel": report.novel,
        "by_capacity": {group: dict(views) for group, views in report.by_capacity.items()},
        "further": {view: dict(figures) for view, figures in report.accuracy.items() if view not in CLOSING_VIEWS},
        "reasons": {view: reason(assembly, report, view) for view in CLOSING_VIEWS if view not in report.accuracy},
        "accuracy_round": report.accuracy_round,
        "model_round": report.accuracy_round - 1,
        **({"best_round": report.best_round} if report.best_round else {}),
        "diverged": report.diverged,
        "undone": report.undone,
        "bytes": report.totals.summary(),
        "seconds": seconds(report.seconds),
        "privacy": privacy_of_rounds(config, report.released)
        if config.privacy.of_rounds
        else privacy(config, assembly.method.private_phases if config.privacy.clip else (), report.uploads),
        "weights_sha256": weights_digest(algorithm, progress.server) or clients_sha256,
        "clients_sha256": clients_sha256,
        "config": "config.toml",
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }


def plain(value: Any) -> Any:
    """Return ``value`` for JSON: NumPy numbers as Python numbers, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def accuracy(report: RunFigures, view: str) -> dict[str, Any] | None:
    """Return the figures of the last full evaluation and those of the best round; None if there are none."""
    if view not in report.accuracy:
        return None
    best = report.best.get(view)
    chosen = {"round": best.round, "mean": best.mean, "validation": best.validation} if best else None
    return {**report.accuracy[view], "best": chosen}


def reason(assembly: Assembly, report: RunFigures, view: str) -> str:
    """Return why a view is null."""
    if not report.accuracy:
        return "no client sent an accuracy: none has test data, or none sends them (sepal join --no-accuracies)"
    if view == "received" and assembly.method.no_received_model:
        return assembly.method.no_received_model
    if view == "kept":
        return "no client had a model of its own before the last download"
    if view == "pooled":
        return assembly.data.private or PRIVATE  # nodes may name private data in any run
    return "no client has test data or a model to test"


def seconds(spent: Mapping[str, float]) -> dict[str, float]:
    """Return wall-clock seconds over all rounds: in total, of the slowest clients' training, of the server's work."""
    total, train, server = (spent.get(key, 0.0) for key in ("total", "train", "server"))
    return {"total": total + server, "train": train, "server": server}


def weights_digest(algorithm: ServerAlgorithm[Any], state: Any) -> str:
    """Return the digest of the global model; empty if the server has none."""
    arrays = dict(algorithm.model(state))
    return digest_arrays(arrays) if arrays else ""


def digest_clients(digests: Mapping[str, str]) -> str:
    """Return SHA-256 (hex) over a line ``NAME DIGEST`` for each client, sorted by name."""
    lines = "".join(f"{name} {digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of packages that can change results, and the server's machine."""
    packages = {name: metadata.version(name) for name in ("flwr", "torch", "numpy")}
    return {
        "sepal": sepal.__version__,
        "commit": commit(),
        **packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": processor(),
    }


def commit() -> str:
    """Return the commit of Sepal's checkout, with ``-dirty`` if files differ; empty if Sepal runs from no checkout."""
    root = Path(sepal.__file__).resolve().parents[1]
    if not (root / ".git").exists():  # an installed package inside somebody's repository has no commit of ours
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True, encoding="utf-8"
        )
    except (OSError, subprocess.SubprocessError):  # no git, or a checkout of another user
        return ""
    return completed.stdout.strip()
