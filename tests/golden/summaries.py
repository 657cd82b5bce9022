"""Summaries of final weights and states, which any processor gives within ``TOLERANCE``; one file per method.

A group of arrays is summarised by the number of its entries, its norm, its sum and three projections on fixed vectors
of ±1. A difference is measured relative to the group's norm, so that a projection's is about ‖change‖ / ‖group‖.
"""

from __future__ import annotations

import math
import tempfile
import tomllib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sepal.client_app.state_store import DiskStateStore
from sepal.engines.in_process import run_in_process
from sepal.method.interface import resolve
from sepal.server.run_store import MemoryRunStore
from sepal.storage.serialize import flatten
from sepal.strategies.assembly import assemble
from tests.golden.cases import CASES, SEEDS

METHODS = Path(__file__).parent / "methods"
PROJECTIONS = 3
# Relative to a group's norm. Measured on all cases and both seeds, against AVX512 with torch 2.13: at most 4.5e-5 with
# ATEN_CPU_CAPABILITY=default, 6.8e-7 with avx2, 9.1e-6 with AVX2 alone in every library (MKL, oneDNN, OpenBLAS, NumPy),
# 1.4e-5 without AVX2; only a case with fp16 values exceeds 2e-6. Of 36 one-line changes of methods that reach weights
# or states, the least visible makes 9.2e-4 (APFL resets α), the next 1.7e-3. So both sides are four times away.
TOLERANCE = 2e-4

Summary: TypeAlias = dict[str, dict[str, Any]]


def written(method: str) -> Path:
    """The file of a method's summaries."""
    return METHODS / f"{method}.toml"


def summary(method: str, case: str, seed: int) -> Summary:
    """Bytes of training by direction, and a summary of the server's and of all clients' floats and integers."""
    assembly = assemble({**CASES[method][case], "seed": seed})
    with tempfile.TemporaryDirectory(prefix="sepal-golden-") as scratch:
        # A store of the caller's has the clients' states written to disk.
        strategy = run_in_process(assembly, store=MemoryRunStore(), state_dir=Path(scratch))
        kind, progress = resolve(assembly.method.client_state), strategy.progress
        clients = {}
        for name, version in sorted(progress.versions.items()):
            stored = DiskStateStore(Path(scratch) / progress.run / name, kind, durable=False).load(version)
            assert stored, f"{name} has no state {version}"
            clients[name] = stored.state
    sent = strategy.report.totals.training
    figures: Summary = {"bytes": {"up": sent.up, "down": sent.down}}
    for side, state in {"server": progress.server, "clients": clients}.items():
        for group, vector in _vectors(state).items():
            figures[f"{side}-{group}"] = _figures(vector)
    return figures


def _vectors(state: object) -> dict[str, np.ndarray]:
    """All numbers of a state, float64 (n,), in the order of their paths; groups without numbers are left out."""
    arrays, structure = flatten(state)
    parts: dict[str, list[np.ndarray]] = {"floats": [], "integers": []}
    for array in [*(arrays[path] for path in sorted(arrays)), *_numbers(structure)]:
        parts["floats" if array.dtype.kind == "f" else "integers"].append(array.reshape(-1).astype(np.float64))
    return {group: np.concatenate(vectors) for group, vectors in parts.items() if vectors}


def _numbers(structure: Any) -> list[np.ndarray]:
    """The numbers in a state outside arrays."""
    if isinstance(structure, dict):
        return [number for key in sorted(structure) for number in _numbers(structure[key])]
    if isinstance(structure, list):
        return [number for item in structure for number in _numbers(item)]
    return [np.array(structure)] if isinstance(structure, bool | int | float) else []


def _figures(vector: np.ndarray) -> dict[str, Any]:
    projections = [float(vector @ _signs(number, vector.size)) for number in range(PROJECTIONS)]
    norm, total = float(np.linalg.norm(vector)), float(vector.sum())
    return {"entries": vector.size, "norm": norm, "sum": total, "projections": projections}


def _signs(number: int, size: int) -> np.ndarray:
    """A fixed vector of ±1, float64 (size,), from raw bits, which no version of NumPy changes."""
    raw = np.random.PCG64(number).random_raw((size + 63) // 64).astype("<u8")
    return 1.0 - 2.0 * np.unpackbits(raw.view(np.uint8), count=size)


def differences(stored: Summary, computed: Summary) -> list[str]:
    """What differs, a line each: bytes at all, other groups by more than ``TOLERANCE``."""
    if stored.keys() != computed.keys():
        return [f"expected the groups {', '.join(stored)}, got {', '.join(computed)}"]
    lines = []
    if stored["bytes"] != computed["bytes"]:
        lines.append(f"bytes: expected {stored['bytes']}, got {computed['bytes']}")
    for group in stored.keys() - {"bytes"}:
        if (far := distance(stored[group], computed[group])) > TOLERANCE:
            lines.append(f"{group}: expected a relative difference of at most {TOLERANCE}, got {far:.2g}")
    return lines


def distance(stored: Mapping[str, Any], computed: Mapping[str, Any]) -> float:
    """The largest difference of a group's figures, relative to the known norm; infinite if the entries differ."""
    if stored["entries"] != computed["entries"]:
        return math.inf
    before, after = ([figures["norm"], figures["sum"], *figures["projections"]] for figures in (stored, computed))
    return float(np.abs(np.subtract(after, before)).max() / (stored["norm"] or 1.0))


def write(method: str) -> None:
    """Run a method's cases and write its file."""
    METHODS.mkdir(exist_ok=True)
    lines = [f"# Written by: python -m tests.golden {method}"]
    for case, seed in product(CASES[method], SEEDS):
        lines += ["", f"[{case}.{seed}]"]
        lines += [f"{group} = {_inline(figures)}" for group, figures in summary(method, case, seed).items()]
    written(method).write_text("\n".join(lines) + "\n")


def _inline(figures: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {_text(value)}" for key, value in figures.items()) + " }"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(float(f"{value:.9g}")) if isinstance(value, float) else str(value)


def read(method: str) -> dict[str, dict[str, Summary]]:
    """A method's summaries by case and seed."""
    return tomllib.loads(written(method).read_text())
