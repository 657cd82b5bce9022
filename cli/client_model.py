"""Extracts a client's model from its run, for any method whose predictor says which networks it is made of."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sepal.cli.portable import Origin
from sepal.cli.runs import newest_state, read_run
from sepal.client.network import NetworkPredictor
from sepal.client_app.build import Node, Shared, build_host, client_name
from sepal.errors import ConfigError, ModelError
from sepal.modules import frozen_tensors
from sepal.protocol.method import Plan, Predictor, resolve
from sepal.strategies.assembly import assemble


@dataclass
class ClientModel:
    """A client's model, extracted from its run.

    Attributes:
        networks: Their tensors, float32 by name, in the shapes of the client's modules; usually one network.
        inputs: Some of the client's training examples.
        logits: The client's own predictor's outputs for ``inputs``.
    """

    origin: Origin
    networks: list[dict[str, npt.NDArray[np.float32]]]
    inputs: npt.NDArray[Any]
    logits: npt.NDArray[np.float32]


def client_model(path: Path, client: str) -> ClientModel:
    """Return the newest model of a client of the run at ``path``: that of the closing round, if there was one.

    Raises:
        ConfigError: The run has no such client, the client has no model, or its networks are combined in an unknown
            way.
    """
    stored = read_run(path)
    names = {each["name"] for line in stored.lines for each in line["clients"]}
    if client not in names:
        few = f"{sorted(names)[0]} … {sorted(names)[-1]}" if names else "none yet"
        raise ConfigError("client", f"a client of {path.name}: {few}", client)
    assembly = assemble(stored.config)
    number = next((n for n in range(assembly.task.config.clients) if client_name(n) == client), None)
    newest = newest_state(path, assembly, client)
    if number is None or newest is None:
        raise ConfigError("client", f"one with a model in {path / 'clients'}", f"{client}, whose states are not here")
    if newest.state is None:
        raise ConfigError("client", "one whose state can be read", f"{client}, whose state is damaged")
    node = Node(number, assembly.task.config.clients)
    host = build_host(Shared.around(assembly, "cpu"), node, "", newest.store)
    predict: Predictor | None = host.algorithm.predictor(newest.state, None, Plan(newest.round))
    if predict is None:
        raise ConfigError("client", "one that has a model of its own", f"{client}, which has none")
    if not isinstance(predict, NetworkPredictor):
        got = f"{assembly.method.name}, whose predictions are not those of networks alone"
        raise ConfigError("client", "a model of one network", got)
    if predict.combine and predict.combine is not resolve(assembly.method.combination):
        got = f"{len(predict.networks)} networks that are used together"
        raise ConfigError("client", "a model of one network", got)
    x = torch.from_numpy(np.array(assembly.data.client(number, node.partitions, client).train.x[:64]))
    info, config = assembly.info, assembly.task.config
    origin = Origin(
        config.model,
        tuple(info.input_shape),
        info.classes,
        info.vocabulary,
        config.width,
        tuple(info.mean),
        tuple(info.std),
        config.method,
        config.dataset,
        path.name,
        client,
        config.method if predict.combine else "",
        predict.numbers,
        tuple(info.class_names),
    )
    networks = [{**network.read(), **frozen_tensors(network.module)} for network in predict.networks]
    return ClientModel(origin, networks, x.numpy(), predict(x).numpy())


def write_onnx(module: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    """Write a module as ONNX, for batches of any size.

    Raises:
        ConfigError: onnx or onnxscript is not installed.
        ModelError: ONNX cannot express it.
    """
    try:
        batch = torch.export.Dim("batch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # from torch's own exporter
            torch.onnx.export(
                module, (x[:2],), path, dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
            )
    except ImportError as missing:
        raise ConfigError("--onnx", "onnx and onnxscript: pip install onnx onnxscript", str(missing)) from None
    except torch.onnx.errors.OnnxExporterError as reason:
        raise ModelError("--onnx", "a model that ONNX can express", str(reason).splitlines()[0]) from None
