"""Data for plots of what the personal masks of DM-PFL, Sub-FedAvg and pFedGate have learned, from a run's directory.

A mask has one entry for each entry of the model; pFedGate's masks have one for each block: whether the block is on for
at least half of the client's training examples. DM-PFL: Zhang et al., KDD 2023, Figure 6.

``python -m sepal.cli.report.masks RUN`` prints JSON:

- ``clients``: names, in the order of rows and columns below;
- ``distinct``: number of different personal masks;
- ``similarity``: |m_a ∩ m_b| / |m_b| for each pair of clients' personal masks (Figure 6 a); DM-PFL's are of one size;
- ``labels``: cosine of each pair of clients' training label counts, which ``similarity`` is compared with;
- ``overlap``: |m_g ∩ m_c| / |m_c| for each client (Figure 6 b); null without a global mask, as in Sub-FedAvg;
- ``global_labels``: cosine of each client's label counts and those of all clients together;
- ``layers``: for each masked part, its ``name`` and the share of its entries that masks keep, ``personal`` (mean over
  clients) and ``global`` (null without a global mask);
- ``correlation``: Pearson's r of ``similarity`` with ``labels`` over pairs of clients, and of ``overlap`` with
  ``global_labels`` over clients; null if either of the two does not vary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.cli.report.printing import print_analysis
from sepal.cli.runs import newest_state
from sepal.client_app.build import Node, Shared, build_host, client_name
from sepal.errors import ConfigError
from sepal.masks.packed import Masks, unpack
from sepal.protocol.layout import Layout, Parameter, Role
from sepal.server_app.run_directory import IN_PROCESS, RunDirectory, stored_config
from sepal.strategies.assembly import Assembly, assemble
from sepal.strategies.dmpfl.server import DmPflServer
from sepal.strategies.subfedavg.server import SubFedAvgServer

Matrix = npt.NDArray[np.float64]
MOSTLY = 0.5  # of a client's training examples: a block that is on for at least this share is in its mask


@dataclass(frozen=True)
class Learned:
    """The masks of a run: 0 or 1 for each entry of ``parts``, one part after the other.

    Attributes:
        names: The clients' names, in order.
        personal: float64 (clients, entries), the clients' own masks.
        shared: float64 (entries,), the global mask; None if there is none.
    """

    names: list[str]
    parts: Layout
    personal: Matrix
    shared: Matrix | None


def analyse(path: Path) -> dict[str, Any]:
    """Return the figures above for the run in ``path``.

    Raises:
        ConfigError: ``path`` is not a run directory, or its method has no mask for each client.
    """
    assembly, state = stored_state(path, READERS)
    found = READERS[assembly.method.name](path, assembly, state)
    labels = label_counts(assembly, found.names)
    similarity = (found.personal @ found.personal.T) / found.personal.sum(1)
    pairs = np.triu_indices(len(found.names), 1)
    alike, whole = cosine(labels, labels), cosine(labels, labels.sum(0, keepdims=True))[:, 0]
    overlap = None if found.shared is None else (found.personal @ found.shared) / found.personal.sum(1)
    return {
        "run": path.name,
        "clients": found.names,
        "distinct": len(np.unique(found.personal, axis=0)),
        "similarity": similarity.round(4).tolist(),
        "labels": alike.round(4).tolist(),
        "overlap": None if overlap is None else overlap.round(4).tolist(),
        "global_labels": whole.round(4).tolist(),
        "layers": _layers(found),
        "correlation": {
            "similarity": correlation(similarity[pairs], alike[pairs]),
            "overlap": None if overlap is None else correlation(overlap, whole),
        },
    }


def stored_state(path: Path, methods: Mapping[str, Any]) -> tuple[Assembly, Any]:
    """Return a run's parts and the server's state in its newest checkpoint.

    Args:
        path: A run directory.
        methods: Names of the methods that can be read.

    Raises:
        ConfigError: ``path`` is not a run directory, or its run is of another method or has no checkpoint.
    """
    flat = stored_config(path)
    if flat is None or flat["method"] not in methods:
        raise ConfigError("run", f"the directory of a run of {' or '.join(methods)}", str(path))
    assembly = assemble(flat)
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        progress = directory.store().latest()
    if progress is None:
        raise ConfigError("run", "a run with a checkpoint", str(path))
    return assembly, progress.server


def label_counts(assembly: Assembly, names: list[str]) -> Matrix:
    """Return each client's number of training examples of each label, float64 (clients, classes)."""
    count = assembly.task.config.clients
    clients = [client_name(number) for number in range(count)]
    labels = [assembly.data.client(clients.index(name), count, name).train.y for name in names]
    return np.stack([np.bincount(y, minlength=assembly.info.classes) for y in labels]).astype(np.float64)


def _dmpfl(path: Path, assembly: Assembly, state: Any) -> Learned:
    algorithm, names = DmPflServer(assembly.task), sorted(state.held)
    personal = [_join(algorithm.personal_mask(state, name), algorithm.parts) for name in names]
    shared = _join(unpack(state.global_mask, algorithm.layout), algorithm.parts)
    return Learned(names, algorithm.parts, np.stack(personal), shared)


def _subfedavg(path: Path, assembly: Assembly, state: Any) -> Learned:
    parts, names = SubFedAvgServer(assembly.task).prunable.parts, sorted(state.kept)
    if not names:
        raise ConfigError("run", "one in which a client has taken part", "none")
    return Learned(names, parts, np.stack([_join(unpack(state.kept[name], parts), parts) for name in names]), None)


def _pfedgate(path: Path, assembly: Assembly, state: Any) -> Learned:
    """Read the clients' states, because gates never leave their clients."""
    count, found = assembly.task.config.clients, {}
    parts: Layout = ()
    for number in range(count):
        newest = newest_state(path, assembly, client_name(number))
        if newest is None or newest.state is None or not newest.state.gate:
            continue
        algorithm: Any = build_host(Shared.around(assembly, "cpu"), Node(number, count), "", newest.store).algorithm
        found[client_name(number)] = (algorithm.own_masks(newest.state).mean(0) >= MOSTLY).astype(np.float64)
        blocks = algorithm.blocks.by_tensor()
        parts = tuple(Parameter(tensor, (len(sizes),), Role.WEIGHT) for tensor, sizes in blocks.items())
    if not found or len({mask.size for mask in found.values()}) > 1:
        raise ConfigError("run", "one whose clients have gates over the same blocks", path.name)
    return Learned(list(found), parts, np.stack(list(found.values())), None)


Reader = Callable[[Path, Assembly, Any], Learned]
READERS: Mapping[str, Reader] = {"dmpfl": _dmpfl, "subfedavg": _subfedavg, "pfedgate": _pfedgate}


def _join(masks: Masks, parts: Layout) -> Matrix:
    return np.concatenate([masks[part.name].reshape(-1) for part in parts]).astype(np.float64)


def _layers(found: Learned) -> list[dict[str, Any]]:
    """Return the share of each part that masks keep."""
    ends = np.cumsum([part.size for part in found.parts])[:-1]
    own = [float(part.mean()) for part in np.split(found.personal.mean(0), ends)]
    common: list[float | None] = [None] * len(own)
    if found.shared is not None:
        common = [round(float(part.mean()), 4) for part in np.split(found.shared, ends)]
    return [
        {"name": part.name, "personal": round(a, 4), "global": b}
        for part, a, b in zip(found.parts, own, common, strict=True)
    ]


def cosine(a: Matrix, b: Matrix) -> Matrix:
    """Return the cosine of each row of ``a`` with each of ``b``; 0 with a row of zeros."""
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return np.asarray((a @ b.T) / np.where(norms > 0, norms, 1.0))


def correlation(a: Matrix, b: Matrix) -> float | None:
    """Return Pearson's r of two lists of numbers; None if either does not vary."""
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return round(float(np.corrcoef(a, b)[0, 1]), 4)


if __name__ == "__main__":
    print_analysis(analyse, "What personal masks have learned, as JSON.")
