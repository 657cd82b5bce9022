"""The model that all clients of a run receive, from the server's files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.secure_sums import NoVault
from sepal.client_app.state_store import DiskStateStore
from sepal.data.examples import ClientData, DatasetInfo, Examples
from sepal.errors import ConfigError, printable
from sepal.export.extraction import ClientModel, extract
from sepal.export.stored_states import last_trained, progress_of, received_predictor, start_after
from sepal.protocol.payloads import seal
from sepal.runs.about import with_images_as_begun
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import as_begun


def common_model(
    path: Path, config: Mapping[str, Any], device: str = "cpu", view: str = "", round: int | None = None
) -> ClientModel:
    """Return the model that all clients of the run at ``path`` receive, from the server's files alone.

    It is the one that a client deploys, bit for bit.

    Args:
        path: The run directory.
        config: The run's flat keys.
        device: Where its predictions are computed.
        view: ``received``, or empty for that.
        round: An earlier round; None for the last one.

    Raises:
        ConfigError: Each client has a model of its own, or the models of that round are not kept.
    """
    with with_images_as_begun(path):
        assembly = assemble(as_begun(config))
    method, keys = assembly.method, assembly.setup.config
    if not method.one_model:
        reason = f"each has a model of its own with {method.name}"
    elif keys.target_scale == "client" or (assembly.info.table and keys.folder.standardize):
        reason = "each standardises its data by figures of its own"
    else:
        reason = ""
    if reason:
        raise ConfigError("client", f"a client's name, because {reason}", "none")
    if view not in ("", "received"):
        raise ConfigError("view", "received, the model that all clients have in common", view)
    last = progress_of(path, assembly, round)
    if last is None:
        raise ConfigError("run", "a run with a checkpoint", path.name)
    assembly = replace(assembly, data=_Drawn(assembly.info))
    node = Node(0, 1)
    with tempfile.TemporaryDirectory() as scratch:
        store = DiskStateStore(Path(scratch), method.client_state, durable=False)
        host = build_host(Shared.around(assembly, device), node, "", store, vault=NoVault())
        start = start_after(last, assembly)
        plan, algorithm = start.plan, host.algorithm
        before = algorithm.init()
        content = seal(start.algorithm.newcomer(last.server, host.info, plan))
        host.take_up(plan.round, {})
        predict = received_predictor(algorithm, before, content, plan)
        if predict is None:
            raise ConfigError("run", "one whose server has a model", path.name)
        model = extract(assembly, node, printable(path.name), predict, "received", device)
    trained = last_trained(path, last) if last.closed else last.round
    return replace(model, origin=replace(model.origin, client=""), labels=0, round=trained)


@dataclass(frozen=True)
class _Drawn:
    """Examples that stand for those that the server has not: the model is tried with them."""

    info: DatasetInfo
    private: str = "they are of nobody"
    seed: int = 0

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return some random examples of the data's shape."""
        generator, shape = np.random.default_rng(self.seed), (4, *self.info.input_shape)
        tokens = self.info.vocabulary
        x = generator.integers(0, tokens, shape) if tokens else generator.normal(size=shape).astype(np.float32)
        part = Examples(x, np.zeros(len(x), np.int64))
        return ClientData(part, part, part)

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Return the same."""
        return self.client(0, clients, "").test
