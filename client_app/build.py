"""Builds a client from the node's and the run's configuration: data, network, client algorithm, state store.

In a deployment, Flower starts a new process for every message, so this code must be fast: prepared data is read from
memory-mapped files (:mod:`sepal.data`), and imports are kept to a minimum. In a long-lived process, parts that clients
share are built once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from sepal.client_app.clipped_uploads import ClippedUploads
from sepal.client_app.data_digest import data_digest, data_keys
from sepal.client_app.frozen_data import FrozenData
from sepal.client_app.guard import parse_allowed
from sepal.client_app.host import ClientHost
from sepal.client_app.secure_sums import ON_ONE_MACHINE, VAULT, FileVault, SecureSums
from sepal.client_app.state_store import DiskStateStore, StateStore
from sepal.client_app.upload_count import UploadCount
from sepal.client_app.views import Pair, class_weights, corrupted, pooled, refuse_streams, scaled, shift
from sepal.config import RunConfig, kebab
from sepal.config.agreement import MACHINE
from sepal.data import ClientData, FederatedData, OwnData
from sepal.data.federation import DealtData
from sepal.data.growing import GrowingData
from sepal.data.sources import FILES
from sepal.errors import ConfigError, DataError
from sepal.flower.simulation import states_directory
from sepal.names import NAME, client_name
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.rng import derive_seed
from sepal.secure.client import Vault
from sepal.seeding import generators_seeded
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import Assembly, assemble
from sepal.training.augment import augmentation
from sepal.training.columns import Part, StreamColumn, columns
from sepal.training.devices import be_deterministic, check_precision, choose_device
from sepal.training.drifting import Drifting
from sepal.training.evaluation import Evaluator
from sepal.training.meeting import Meeting
from sepal.training.network import Network
from sepal.training.programs import Programs
from sepal.training.target_scale import TargetScale, target_scale
from sepal.training.threads import set_threads
from sepal.training.trainer import Trainer


@dataclass
class Shared:
    """What the clients of a process share in a run.

    Attributes:
        assembly: The run's parts.
        device: Device on which this process trains.
        weights_digest: Digest of W_0 and of frozen tensors, which the server compares with its own.
        networks: Networks by use; weights are loaded before each use.
        pooled: A sample of the test data of all clients, on the device; None until first used.
        everyone: All test data of all clients, for test-time shift; None until first used.
        digests: Digests of clients' data by client and numbers of examples; see :func:`data_digest`.
        meeting: Where clients meet that train at once; None if each trains alone.
        programs: What makes captured steps; None if steps are made one by one.
    """

    assembly: Assembly
    device: str
    weights_digest: str
    networks: dict[str, Network] = field(default_factory=dict)
    pooled: Pair | None = None
    everyone: Pair | None = None
    digests: dict[str, str] = field(default_factory=dict)
    meeting: Meeting | None = None
    programs: Programs | None = None

    @cached_property
    def data_keys(self) -> str:
        """The keys that a digest of data covers besides the data; they are the same for all clients."""
        return data_keys(self.assembly.setup.config)

    @classmethod
    def of(cls, run_config: Mapping[str, Any], device: str = "") -> Shared:
        """Return the shared parts of the run with ``run_config``; ``device`` overrides the run's."""
        return cls.around(assemble(run_config), device)

    @classmethod
    def around(cls, assembly: Assembly, device: str = "") -> Shared:
        """Return the shared parts of an assembled run."""
        config = assembly.setup.config
        set_threads(config.threads)
        be_deterministic(config.deterministic)
        digest = digest_arrays(assembly.setup.start)
        chosen = choose_device(device or config.device)
        check_precision(config.precision, chosen)
        return cls(assembly, chosen, digest)


@dataclass(frozen=True)
class Node:
    """A client's own configuration, from Flower's node config or from an engine.

    Attributes:
        partition: Number of the client's part of a shared data set, from 0.
        partitions: Number of parts.
        name: The client's name; empty to derive it from the partition.
        data: ``package.module:function`` of private data, which the server never sees.
        device: As the run's key ``device``; empty for the run's.
        capacity: Fraction of the full model that it can hold, in (0, 1]; None to draw it by ``capacity.profile``.
        state_dir: Directory of its states; empty for ~/.sepal/state.
        data_dir: Directory of shared data sets; empty for ``SEPAL_DATA``, then ~/.cache/sepal/data.
        initial_weights: Its copy of the file to start from; empty if there is none.
        allow: Code and paths that the run config may name; see :mod:`sepal.client_app.guard`.
        least_noise: The least ``privacy.noise`` with which it sends uploads; 0 for any. It is that of noise by each
            client; with ``only_secure`` that of noise in a secure sum.
        only_secure: Whether it refuses every run without secure sums.
        accuracies: Whether it evaluates models and sends the counts; see :class:`sepal.client_app.host.ClientHost`.
        most_uploads: Largest number of uploads that it sends over all runs; 0 for no limit.
        audit: File of :class:`sepal.client_app.audit.Audit`; empty for none.
        export: File that gets its deployed model after the closing evaluation; empty for none.
        whole: Whether its data directory has files of its own: then it is one client with all of them.
    """

    partition: int = 0
    partitions: int = 1
    name: str = ""
    data: str = ""
    device: str = ""
    capacity: float | None = None
    state_dir: str = ""
    data_dir: str = ""
    initial_weights: str = ""
    allow: frozenset[str] = frozenset()
    least_noise: float = 0.0
    only_secure: bool = False
    accuracies: bool = True
    most_uploads: int = 0
    audit: str = ""
    export: str = ""
    whole: bool = False

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Node:
        """Return the node with Flower's ``node_config``. Empty values, and a capacity or device of 0, are not set.

        Raises:
            ConfigError: A value has the wrong type or is out of range.
        """
        partition, partitions = node_config.get("partition-id", 0), node_config.get("num-partitions", 1)
        capacity, device = node_config.get("capacity") or None, str(node_config.get("device") or "")
        if not isinstance(partition, int) or not isinstance(partitions, int) or not 0 <= partition < partitions:
            raise ConfigError("partition-id", "a number below num-partitions", f"{partition} of {partitions}")
        if capacity is not None and (not isinstance(capacity, int | float) or not 0 < capacity <= 1):
            raise ConfigError("capacity", "a number in (0, 1]", capacity)
        noise = node_config.get("least-noise") or 0.0
        if not isinstance(noise, int | float) or not 0 <= noise < math.inf:
            raise ConfigError("least-noise", "a number of at least 0", noise)
        silent, only_secure = (node_config.get(key, False) for key in ("no-accuracies", "only-secure"))
        for key, value in (("no-accuracies", silent), ("only-secure", only_secure)):
            if not isinstance(value, bool):
                raise ConfigError(key, "true or false", value)
        most = node_config.get("most-uploads", 0)
        if not isinstance(most, int) or isinstance(most, bool) or most < 0:
            raise ConfigError("most-uploads", "a whole number of at least 0", most)
        texts = {part.name: str(node_config.get(kebab(part.name), "")) for part in fields(cls) if part.type == "str"}
        if texts["name"] and not NAME.match(texts["name"]):
            raise ConfigError("name", "at most 64 letters, digits, '.', '_' or '-'", texts["name"])
        try:
            torch.device("cpu" if device in ("", "auto") else device)
        except RuntimeError:
            raise ConfigError("device", "auto, cpu, cuda, cuda:1, mps, xpu, …", device) from None
        return cls(
            partition=partition,
            partitions=partitions,
            capacity=None if capacity is None else float(capacity),
            allow=parse_allowed(str(node_config.get("allow", ""))),
            least_noise=float(noise),
            only_secure=only_secure,
            accuracies=not silent,
            most_uploads=most,
            whole=bool(texts["data_dir"]) and not {"partition-id", "num-partitions"} & node_config.keys(),
            **{**texts, "device": device},
        )

    @property
    def client(self) -> str:
        """The client's name."""
        return self.name or client_name(self.partition)

    def named(self, assembly: Assembly) -> Node:
        """Return the node of one machine's run, called by the owner of its examples if it has no name of its own."""
        return self if self.name or self.data else replace(self, name=assembly.client_name(self.partition))


def build_host(
    shared: Shared,
    node: Node,
    run: str,
    store: StateStore,
    secret: bytes = b"",
    source: FederatedData | None = None,
    vault: Vault | None = None,
) -> ClientHost:
    """Return the client's host.

    Args:
        shared: The run's parts.
        node: The client's own configuration.
        run: UUID of the run.
        store: The client's states in this run.
        secret: What the noise of ``privacy.noise`` is drawn from; empty to draw it from the run's seed.
        source: The client's data; None for those of :func:`data_of`.
        vault: Keeps the secrets of secure sums; needed in a run that has them.

    Raises:
        DataError: The client has no data, or its private data does not match the run config.
    """
    setup, device = shared.assembly.setup, shared.device
    capacity = setup.config.capacity.draw(setup.config.seed, node.client) if node.capacity is None else node.capacity
    source, clients = source or data_of(shared.assembly, node), parts_of(shared.assembly, node)
    data = source.client(node.partition, clients, node.client)
    if not len(data.train) + len(data.test):
        raise DataError(f"{node.client}: data", "at least one training or test example", "none")
    digest = _digest(shared, node, store, data)
    refuse_streams(setup.config, data, node.client)
    train, validation, test = (columns(part, device) for part in (data.train, data.validation, data.test))
    scale_of_inputs = data.scale  # the data themselves are not kept beside their tensors
    shown = judged = validation
    if setup.config.evaluate.validation_apart:
        shown, judged = ((validation[0][first::2], validation[1][first::2]) for first in (0, 1))
    scale = target_scale(setup.config, data)
    targets = [_standardized(y, scale) for y in (train[1], shown[1])]
    drifting = Drifting.of(setup.config, train[0], targets[0], source.seed, node.client)
    x, y, examples = train[0], targets[0], len(data.train)
    if drifting is not None:
        x, y, examples = drifting.x, drifting.y, drifting.window.size
    info = ClientInfo(node.client, examples, capacity, device.partition(":")[0], digest)
    balanced = setup.config.own.class_weights == "balanced"
    trainer = Trainer(
        info,
        setup.config,
        x,
        y,
        shown[0],
        targets[1],
        shared.assembly.make,
        shared.networks,
        device,
        secret=secret,
        task=setup.task,
        class_weights=class_weights(train[1][:], shared.assembly.info.classes) if balanced else None,
        augment=augmentation(setup.config.augment, train[0][:2]),
        meeting=shared.meeting,
        programs=shared.programs,
        drifting=drifting,
    )
    algorithm = shared.assembly.method.make_client(setup, trainer)
    evaluator = Evaluator(
        test,
        judged,
        lambda: scaled(pooled(shared, source, clients), scale_of_inputs, shared.device),
        lambda: shift(shared, source, clients, node.client, len(test[1]), scale_of_inputs),
        lambda: corrupted(shared, node.client, test[0], test[1]),
        setup.task,
        scale,
        lambda view: trainer.randomness(trainer.round, f"evaluate {view}"),
    )
    facts = {"weights": shared.weights_digest, "config": shared.assembly.agreed}
    machine = machine_keys(setup.config) if secret else ""  # without a secret engines must agree on the bits
    figures = {"unseen-test-labels": float(data.unseen_test_labels)}
    secure, privacy = None, setup.config.privacy
    if setup.config.secure != "off":
        if vault is None:
            raise ConfigError("secure", "off where clients have no place for secrets", setup.config.secure)
        key, weigh = secret or ON_ONE_MACHINE, partial(_weight, shared, info)
        secure = SecureSums(info.name, setup.config, setup.weights, vault, key, weigh)
    return ClientHost(
        run,
        info,
        algorithm,
        store,
        evaluator,
        facts,
        trainer.spent,
        figures,
        noised=shared.assembly.method.private_phases if secret and privacy.noise and privacy.by_clients else (),
        begin=trainer.begin,
        take_up=trainer.take_up,
        changes=setup.config.data_changes == "accept",
        local=lambda: trainer.local,
        tells_divergence=not privacy.noise,
        accuracies=node.accuracies,
        machine=machine,
        secure=secure,
        clips=ClippedUploads(setup.weights, bool(privacy.quantile)) if privacy.central else None,
        data_bytes=sum(
            column.nbytes
            for part in (train, validation, test)
            for column in part
            if not isinstance(column, StreamColumn)
        ),
    )


def _weight(shared: Shared, info: ClientInfo) -> float:
    """Return what a client weighs in a sum: what the method's server says, or with noise as much as all others."""
    if shared.assembly.setup.config.privacy.distributed:
        return 1.0
    server: Any = shared.assembly.method.make_server(shared.assembly.setup)
    return float(server.weigh(Upload(info, Payload())))


def _digest(shared: Shared, node: Node, store: StateStore, data: ClientData) -> str:
    """Return the digest of a client's data. It is computed again where a process sees that they have grown."""
    known = f"{node.client} {[len(part) for part in (data.train, data.validation, data.test)]}"
    if known not in shared.digests:
        key = f"{getattr(store, 'secret', '')}|{shared.data_keys}"
        seed = shared.assembly.setup.config.seed
        with generators_seeded(derive_seed(seed, "data-digest", node.client)):  # reads the user's Datasets
            shared.digests[known] = data_digest(data, key)
    return shared.digests[known]


def _standardized(targets: Part, scale: TargetScale | None) -> Part:
    """Return the targets that a client trains on; a Dataset's have no scale."""
    return targets if scale is None or isinstance(targets, StreamColumn) else scale.standardized(targets)


def machine_keys(config: RunConfig) -> str:
    """Return the values of the keys that each machine sets for itself, as JSON."""
    flat = config.flat()
    return json.dumps([flat[key] for key in sorted(MACHINE)])


def has_whole(assembly: Assembly, node: Node) -> bool:
    """Return whether a node is one client with all files of its own; data sets that Sepal knows are shared ones."""
    return node.whole and not node.data and assembly.setup.config.dataset in FILES


def parts_of(assembly: Assembly, node: Node) -> int:
    """Return into how many parts the data on the node's machine is dealt."""
    return 1 if has_whole(assembly, node) else assembly.setup.config.clients or node.partitions


def data_of(assembly: Assembly, node: Node) -> FederatedData:
    """Return the run's data, as the node has it, or the node's private data."""
    noise = assembly.setup.config.partition.noise
    if noise and (node.data or has_whole(assembly, node)):
        expected = "0 where a client brings data of its own, which nothing deals"
        raise ConfigError(f"{node.client}: partition.noise", expected, noise)
    if not node.data:
        data = assembly.data
        return data.whole() if has_whole(assembly, node) and isinstance(data, DealtData) else data
    config = assembly.setup.config
    task = assembly.setup.task
    targets = None if task.classifies else task.targets
    return OwnData(assembly.info, node.data, config.split.validation, config.seed, targets=targets)


def changing_data(shared: Shared, node: Node, store: DiskStateStore) -> FrozenData | GrowingData | None:
    """Return a deployed client's data in a run with ``data-changes = "freeze"`` or ``"accept"``, else None."""
    config = shared.assembly.setup.config
    if config.data_changes == "freeze":
        return FrozenData(data_of(shared.assembly, node), store.directory, partial(_digest, shared, node, store))
    if config.data_changes == "accept":
        return GrowingData.of(data_of(shared.assembly, node), f"split|{store.secret}", config)
    return None


def open_store(shared: Shared, node: Node, run: str) -> DiskStateStore:
    """Return a deployed client's store, under the node's ``state-dir``, the run's, or ~/.sepal/state."""
    return DiskStateStore(state_dir(shared, node) / run / node.client, shared.assembly.method.client_state)


def open_vault(store: DiskStateStore) -> FileVault:
    """Return where a client with a store on disk keeps the secrets of secure sums."""
    return FileVault(store.directory / VAULT)


def open_upload_count(shared: Shared, node: Node) -> UploadCount:
    """Return the count of a deployed client's uploads, in a directory whose name no run has: it starts with a dot."""
    return UploadCount(state_dir(shared, node) / ".uploads" / node.client / "sent", node.most_uploads)


def state_dir(shared: Shared, node: Node) -> Path:
    """Return the directory of a deployed client's states in all runs."""
    return states_directory(node.state_dir or shared.assembly.setup.config.state_dir)
