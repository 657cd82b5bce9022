"""`python -m referee.matrix`: runs every model with every method and writes docs/models-and-methods.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from referee.checkout import ROOT, render
from referee.matrix import models
from referee.matrix.models import KINDS, ModelKind
from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.storage.serialize import flatten
from sepal.strategies.assembly import assemble

PAGE = ROOT / "docs" / "models-and-methods.md"
METHODS: Mapping[str, Mapping[str, Any]] = {  # column: method and keys with which it prunes at once
    "FedAvg": {"method": "fedavg"},
    "SCAFFOLD": {"method": "scaffold", "clip-gradient": 0.0},
    "Per-FedAvg": {"method": "per-fedavg"},
    "FedALA": {"method": "fedala"},
    "IFCA": {"method": "ifca"},
    "FedSelect": {"method": "fedselect"},
    "FedRTS": {"method": "fedrts"},
    "FedBN": {"method": "fedbn"},
    "MOON": {"method": "moon"},
    "FedRoD": {"method": "fedrod"},
    "FedProto": {"method": "fedproto"},
    "FedPSE": {"method": "fedpse"},
    "DM-PFL": {"method": "dmpfl", "dmpfl.readjust-every": 1},
    "Sub-FedAvg": {"method": "subfedavg", "subfedavg.accuracy": 0.0, "subfedavg.distance": 0.0},
    "Sub-FedAvg, hybrid": {
        "method": "subfedavg",
        "subfedavg.variant": "hy",
        "subfedavg.accuracy": 0.0,
        "subfedavg.channel-distance": 0.0,
    },
    "Pa3dFL": {"method": "pa3dfl", "pa3dfl.hidden": 8, "pa3dfl.embedding": 8},
    "pFedGate": {"method": "pfedgate", "pfedgate.keep": 0.5},
    "pFedGate, by batch": {"method": "pfedgate", "pfedgate.keep": 0.5, "pfedgate.gating": "batch"},
    "FIARSE": {"method": "fiarse", "capacity.profile": "0.5"},
    "SparsyFed": {"method": "sparsyfed"},
    "SpaFL": {"method": "spafl"},
    "FedPM": {"method": "fedpm"},
}
KEYS = {"dataset": "own", "own.classes": models.CLASSES, "clients": 2, "rounds": 2, "local-epochs": 1, "lr": 0.1}
KEYS |= {"batch-size": 8, "evaluate-every": 0, "optimizer": "sgd"}


def outcome(kind: ModelKind, method: Mapping[str, Any]) -> str:
    """Return nothing if two rounds of a method move the model, or the line in which it is refused."""
    module = models.__name__
    model_keys = {
        **kind.keys,
        "own.data": f"{module}:{kind.keys['own.data']}",
        "model": f"{module}:{kind.build.__name__}",
    }
    try:
        strategy = run_in_process(assemble({**KEYS, **model_keys, **method}))
    except SepalError as error:
        return str(error).replace(f"{module}:", "")
    return "" if moved(strategy) else "nothing moves"


def moved(strategy: Any) -> bool:
    """Return whether the server's model is no longer W_0, or what it starts from; its state, if it has no model."""
    server = strategy._method.make_server(strategy.setup)
    before, after = (server.model(state) or flatten(state)[0] for state in (server.init(), strategy.progress.server))
    return any(not np.array_equal(before[name], after[name]) for name in after)


def page() -> str:
    """Return the page. Methods with the same answers for all models share a column, which has the first one's name."""
    reasons: dict[str, list[str]] = {}
    columns: dict[tuple[str, ...], list[str]] = {}
    for name, method in METHODS.items():
        cells = []
        for kind in KINDS:
            expected, _, got = outcome(kind, method).rpartition(", got ")
            if expected and got not in reasons.setdefault(expected, []):
                reasons[expected].append(got)
            cells.append(f"no ({list(reasons).index(expected) + 1})" if expected else got or "works")
        columns.setdefault(tuple(cells), []).append(name)
    rows = [(kind.title, cells) for kind, cells in zip(KINDS, zip(*columns, strict=True), strict=True)]
    return render("models-and-methods.md", columns=list(columns.values()), rows=rows, reasons=reasons)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
