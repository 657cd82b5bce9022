"""A client's model out of its predictor, and its file."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sepal.client_app.build import Node, Shared, data_of, parts_of
from sepal.client_app.frozen_data import FrozenData
from sepal.data import FederatedData
from sepal.data.examples import DatasetInfo, Examples
from sepal.data.federation import DealtData
from sepal.data.growing import GrowingData
from sepal.data.schema import parsed
from sepal.data.sources import FILES
from sepal.errors import ConfigError, one_line
from sepal.export.portable import DIGEST, Loaded, Origin, load, named, save
from sepal.method.interface import resolve
from sepal.models.lora import merged
from sepal.modules import frozen_tensors
from sepal.protocol.messages import Order
from sepal.protocol.types import Predictor
from sepal.runs.summary import versions
from sepal.storage.regular import expanded
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import Assembly
from sepal.training.network import NetworkPredictor
from sepal.training.target_scale import target_scale

log = logging.getLogger("sepal")

# Largest difference in logits between the client's model and the exported one; of targets, in standard deviations.
NEAR = 1e-4


@dataclass
class ClientModel:
    """A client's model, extracted from its run.

    Attributes:
        networks: Their tensors, float32 by name, in the shapes of the client's modules; usually one network.
        inputs: Some of the client's training examples; of a table as they are in its file.
        logits: The client's own predictor's outputs for ``inputs``; numbers are in the unit of the targets.
        labels: Number of classes among all its training examples; 0 where targets are no classes.
        view: Which of the client's models it is: ``received``, ``trained`` or ``kept``.
        round: The last round of training that is in it; None if this machine cannot know it.
    """

    origin: Origin
    networks: list[dict[str, npt.NDArray[np.float32]]]
    inputs: npt.NDArray[Any]
    logits: npt.NDArray[np.float32]
    labels: int
    view: str
    round: int | None = None

    def facts(self, with_client: bool = False) -> dict[str, str]:
        """Return which model it is, for the metadata of its file: run, round, method, digest of the weights, version.

        Args:
            with_client: Whether to name the client.
        """
        built_by = versions()
        facts = {"run": self.origin.run, "method": self.origin.method, DIGEST: digest_arrays(named(self.networks))}
        facts |= {key: built_by[key] for key in ("sepal", "commit")}
        facts |= {} if self.round is None else {"round": str(self.round)}
        return facts | ({"client": self.origin.client} if with_client else {})


def extract(
    assembly: Assembly,
    node: Node,
    run: str,
    predict: Predictor,
    view: str,
    device: str = "cpu",
    source: FederatedData | None = None,
) -> ClientModel:
    """Return the model that a client's predictor is made of.

    Args:
        assembly: The run's parts.
        node: The client.
        run: The run's name, for the file.
        predict: Its predictor.
        view: Which of its models that is.
        device: Where its networks are.
        source: Its data, if they are not those of the node.

    Raises:
        ConfigError: Its networks are combined in an unknown way.
    """
    if not isinstance(predict, NetworkPredictor):
        got = f"{assembly.method.name}, whose predictions are not those of networks alone"
        raise ConfigError("client", "a model of one network", got)
    if predict.combine and predict.combine is not resolve(assembly.method.combination):
        got = f"{len(predict.networks)} networks that are used together"
        raise ConfigError("client", "a model of one network", got)
    info, keys, source = assembly.info, assembly.setup.config, source or data_of(assembly, node)
    parts = parts_of(assembly, node)
    data = source.client(node.partition, parts, node.client)
    scale, raw = target_scale(keys, data), data.train.first(64).x
    x = torch.from_numpy(np.array(raw))
    if isinstance(source, DealtData) and data.scale:
        raw = source.raw(node.partition, parts).train.x[:64]
    elif isinstance(source, FrozenData | GrowingData) and data.scale:
        raw = source.raw(node.partition, parts, node.client)
    origin = Origin(
        keys.model,
        tuple(info.input_shape),
        info.classes,
        info.vocabulary,
        keys.width,
        tuple(info.mean),
        tuple(info.std),
        keys.method,
        keys.dataset,
        run,
        node.client,
        keys.method if predict.combine else "",
        predict.numbers,
        tuple(info.class_names),
        tuple(data.scale.mean.tolist()) if data.scale else (),
        tuple(data.scale.factor.tolist()) if data.scale else (),
        keys.dataset in FILES and keys.folder.size is not None,
        keys.dataset in FILES and keys.folder.channels != "auto",
        tuple(info.columns),
        keys.task,
        keys.target_unit,
        keys.own.shape if info.inputs else "",
        data.scale is not None and keys.folder.missing == "mean",
        scale.mean if scale else (),
        scale.spread if scale else (),
        _schema(info),
    )
    whole = [
        {**network.read(), **frozen_tensors(network.module), **network.state.all()} for network in predict.networks
    ]
    networks = [merged(tensors, (keys.lora.alpha or keys.lora.rank) / (keys.lora.rank or 1)) for tensors in whole]
    labels = len(np.unique(data.train.y)) if info.labelled and isinstance(data.train, Examples) else 0
    outputs = predict(x.to(device))
    logits = (scale.undone(outputs) if scale else outputs).cpu().numpy()
    return ClientModel(origin, networks, np.array(raw), logits, labels, view)


def _schema(info: DatasetInfo) -> str:
    """Return how a table becomes the model's inputs; empty where earlier versions read it so, too."""
    schema = parsed(info.schema)
    plain = schema.is_plain and schema.label in ("", "label")
    return "" if plain else schema.model_copy(update={"classes": ()}).text()


def write_model(model: ClientModel, path: Path, with_client: bool = False) -> Loaded:
    """Write a client's model to ``path``, once it has been read again and answers right, and return it.

    Args:
        model: The model.
        path: The file.
        with_client: Whether the file names the client.

    Raises:
        ConfigError: It answers otherwise than the client's own predictor: its method does more than its module says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sepal-", dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        origin = model.origin if with_client else replace(model.origin, client="")
        save(written, origin, model.networks, model.facts(with_client))
        loaded = load(written, {model.origin.model, model.origin.task})
        near = NEAR * np.array(model.origin.target_spread) if model.origin.target_spread else NEAR
        right = bool(np.isclose(loaded(model.inputs), model.logits, atol=near).all())
        if right:
            written.replace(path)
    if not right:
        raise ConfigError("client", "a model that its tensors and its module alone describe", model.origin.method)
    return loaded


def write_deployed(
    shared: Shared, node: Node, order: Order, view: str, predict: Predictor | None, source: FederatedData | None = None
) -> None:
    """Write a client's deployed model to ``node.export``, if ``view`` is that; log why if it cannot be written.

    Args:
        shared: The run's parts.
        node: The client.
        order: That of the closing round. Of a run with ``final-model = best`` a client does not know whose round's
            models these are.
        view: Which of the client's models ``predict`` is.
        predict: Its predictor; None if it has no such model.
        source: The client's data, if they are not those of the node.
    """
    if view != shared.assembly.method.deployed:
        return
    try:
        if predict is None:
            raise ConfigError("client", f"one that has a {view} model", f"{node.client}, which has none")
        model = extract(shared.assembly, node, order.run, predict, view, shared.device, source)
        is_last = shared.assembly.setup.config.final_model == "last"
        write_model(replace(model, round=order.plan.round - 1 if is_last else None), expanded("export", node.export))
        log.info("%s: its %s model is in %s", node.client, view, node.export)
    except Exception as reason:  # whatever it is, the run is not ended by it
        log.error("%s: no model in %s: %s", node.client, node.export, one_line(str(reason) or repr(reason)))
