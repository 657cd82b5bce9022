"""``wrap_client``: a Flower ClientApp around the user's model and data, for a method's Strategy in plain Flower.

A client keeps everything in Flower's ``context.state``: what the run's first message brought (W_0 and the keys), and
its own states (docs/decisions/0033-plain-flower.md). It answers with the same host as in a durable run.
"""

from __future__ import annotations

import json
import logging
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, default_collate

from sepal.client_app.build import Node, Shared, build_host
from sepal.client_app.mods import Mod, refuse_array_mods
from sepal.client_app.state_store import Stored, VersionOrigin, pack, unpack
from sepal.config import RunConfig
from sepal.data import ClientData, Examples, OwnData
from sepal.data.own import checked_data
from sepal.errors import ConfigError, DataError, SepalError, StateError
from sepal.method import Method
from sepal.protocol.messages import CAUSE, INITIAL, KEYS, SIZES, write_error
from sepal.rng import derive_seed
from sepal.seeding import generators_seeded
from sepal.strategies import plain
from sepal.user_modules import described

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("sepal")
LABELS = ("label", "labels", "target", "targets", "y")  # what Datasets of dictionaries call the target
# Of a node config, which only `sepal join` meets.
DEMANDS = ("least-noise", "only-secure", "most-uploads", "audit", "export")
STATE, TEXT, STORE = "sepal.state.", "sepal.text.", "sepal.store"  # records of context.state
Load: TypeAlias = Callable[[Context], Any]


def wrap_client(method: Method, model: Callable[[], nn.Module], data: Load, mods: Sequence[Mod] = ()) -> ClientApp:
    """Return a ClientApp that trains the user's model on his data, by ``method``.

    Args:
        method: The method of the server's Strategy, such as ``FedPSE``.
        model: Returns a new module, such as its class; its weights come from the server.
        data: Called with Flower's context. Returns (train, test) or (train, validation, test) as torch Datasets or
            DataLoaders, of which the Dataset is taken, or the arrays (x_train, y_train, x_test, y_test). An example of
            a Dataset is (x, y), or a dictionary of ``label`` and one input.
        mods: Flower mods that leave arrays alone.

    Raises:
        ConfigError: A mod cannot read a sparse payload.
    """
    refuse_array_mods(mods)
    client = _Client(method, model, data)
    app = ClientApp(mods=list(mods))
    for decorate in (app.query(), app.train(), app.evaluate()):
        decorate(client.handle)
    return app


@dataclass(frozen=True)
class _Client:
    """Answers Flower's messages; what it knows of a run is in the context."""

    method: Method
    model: Callable[[], nn.Module]
    data: Load

    def handle(self, message: Message, context: Context) -> Message:
        """Answer one message. An error is answered with its full cause."""
        name = f"node-{context.node_id}"
        try:
            node = _node(context)
            name = node.client
            answer = self._answer(message.content, context, node)
        except Exception as error:
            answer = _failure(error, name)
        return Message(answer, reply_to=message)

    def _answer(self, records: RecordDict, context: Context, node: Node) -> RecordDict:
        state = context.state
        if INITIAL in records and KEYS in records:  # the run's first message
            for name in [name for name in state if name.startswith("sepal.")]:
                del state[name]
            state[f"sepal.{INITIAL}"], state[f"sepal.{KEYS}"] = records.pop(INITIAL), records.pop(KEYS)
            state[STORE] = ConfigRecord({"identity": uuid.uuid4().hex})
        arrays, keys = state.get(f"sepal.{INITIAL}"), state.get(f"sepal.{KEYS}")
        if not isinstance(arrays, ArrayRecord) or not isinstance(keys, ConfigRecord):
            got = "none: the node was restarted, and Flower keeps a client's context in memory"
            raise StateError("context.state", "what the run's first message brought", got)
        shared = self._shared(plain.OwnModel(self.model, arrays), dict(keys), context, node)
        store = ContextStore(state, shared.assembly.method.client_state)
        host, info = build_host(shared, node, "", store), shared.assembly.info
        sizes = dict(zip(SIZES, (plain.shape_text(info.input_shape), str(info.classes)), strict=True))
        return replace(host, facts={**host.facts, **sizes}).answer(records)

    def _shared(self, model: plain.OwnModel, keys: dict[str, Any], context: Context, node: Node) -> Shared:
        """Return the run's parts with the user's data."""
        plain.check_client_keys(self.method, keys)
        seed = derive_seed(int(keys["seed"]), "own-data", node.client) % 2**32
        with generators_seeded(seed):  # the function may draw from them
            returned = self.data(context)
        if isinstance(returned, tuple | list):
            returned = tuple(map(_dataset, returned))
        examples = checked_data("data", returned, validation=RunConfig().split.validation, seed=seed)
        first = (examples.train if len(examples.train) else examples.test).first(1).x
        classes = _classes(model, first)
        for part in (examples.train, examples.test):
            if isinstance(part, Examples) and len(part) and part.y.max() >= classes:
                raise DataError("data", f"labels below {classes}, the number of the model's outputs", part.y.max())
        client_data = _Own(plain.own_facts(plain.shape_text(first.shape[1:]), classes), "", examples=examples)
        assembly = plain.assemble_plain(self.method, model, keys, data=client_data)
        shared = Shared.around(assembly, node.device)
        shared.digests[node.client] = ""  # nobody goes on with the run elsewhere
        return shared


@dataclass(frozen=True)
class _Own(OwnData):
    """The user's data, already loaded."""

    examples: ClientData | None = None

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return the data."""
        if self.examples is None:
            raise DataError("data", "data that was loaded", "none")
        return self.examples


@dataclass
class ContextStore:
    """A client's newest state and the one before it, in Flower's ``context.state``.

    See :class:`sepal.client_app.state_store.StateStore`. Nobody asks for an older one, or twice for the same.
    """

    records: RecordDict
    kind: type
    _base: str = ""

    @property
    def identity(self) -> str:
        """What tells this client from another one of its name."""
        return str(self.records[STORE]["identity"])

    def load(self, version: str) -> Stored | None:
        """Return the version, and remember it as the one before the next."""
        self._base = version
        arrays, text = self.records.get(STATE + version), self.records.get(TEXT + version)
        if not isinstance(arrays, ArrayRecord) or not isinstance(text, ConfigRecord):
            return None
        return unpack({name: array.numpy() for name, array in arrays.items()}, str(text["json"]), self.kind)

    def answered(self, round: int, request: str) -> Stored | None:
        """Return None: Flower sends no message twice."""

    def origin(self, version: str) -> VersionOrigin | None:
        """Return None: a state that is lost stays lost."""

    def save(self, version: str, stored: Stored, origin: VersionOrigin | None = None) -> None:
        """Keep the version and the one it came from; delete all others."""
        newest = {prefix + name for name in (version, self._base) for prefix in (STATE, TEXT)}
        for name in [name for name in self.records if name.startswith((STATE, TEXT)) and name not in newest]:
            del self.records[name]
        arrays, head = pack(replace(stored, content=replace(stored.content, data=b"")))
        self.records[STATE + version] = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        self.records[TEXT + version] = ConfigRecord({"json": json.dumps(head)})

    def prune(self, durable: str, best: str = "") -> None:
        """Do nothing: :meth:`save` deletes what is old."""

    def versions(self) -> None:
        """Return None: Flower keeps no run that a server could go back to."""


@dataclass(frozen=True)
class _Pairs:
    """A Dataset of dictionaries as one of pairs."""

    dataset: Any
    keys: tuple[str, str]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        example = self.dataset[number]
        return example[self.keys[0]], example[self.keys[1]]


def _dataset(part: Any) -> Any:
    """Return what :func:`checked_data` takes: of a DataLoader its Dataset, and pairs of what dictionaries hold.

    Raises:
        DataError: A DataLoader changes examples, or a dictionary has other entries.
    """
    if isinstance(part, DataLoader):
        if part.collate_fn is not default_collate:
            expected = "a DataLoader with torch's own collate_fn: Sepal makes its own batches of the Dataset"
            raise DataError("data", expected, getattr(part.collate_fn, "__name__", "another"))
        part = part.dataset
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__") or not len(part):
        return part
    example = part[0]
    if not isinstance(example, Mapping):
        return part
    targets = [key for key in example if key in LABELS]
    if len(targets) != 1 or len(example) != 2:
        expected = f"examples with one input and one of {', '.join(LABELS)}"
        raise DataError("data", expected, f"dictionaries of {', '.join(map(str, example))}")
    return _Pairs(part, (next(key for key in example if key not in LABELS), targets[0]))


def _classes(model: plain.OwnModel, first: Any) -> int:
    """Return the number of the model's outputs, from one example."""
    try:
        with torch.no_grad():
            outputs = model().eval()(torch.as_tensor(first))
    except SepalError:
        raise
    except Exception as error:
        raise ConfigError("model", f"to take examples of shape {first.shape[1:]}", described(error)) from error
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        got = f"shape {tuple(outputs.shape)} for one example"
        raise ConfigError("model", "a number for each of at least 2 classes: (n, classes)", got)
    return int(outputs.shape[1])


def _node(context: Context) -> Node:
    """Return the client's own configuration.

    Raises:
        ConfigError: A value is invalid, or demands what only ``sepal join`` does.
    """
    for key in DEMANDS:
        if context.node_config.get(key):
            raise ConfigError(key, "nothing: only nodes of `sepal join` hold to it", context.node_config[key])
    node = Node.of(context.node_config)
    name = node.name or (node.client if "partition-id" in context.node_config else f"node-{context.node_id}")
    settings = {"device": node.device, "capacity": node.capacity, "accuracies": node.accuracies}
    return Node(node.partition, node.partitions, name, **settings)  # type: ignore[arg-type]


def _failure(error: Exception, name: str) -> RecordDict:
    """Return an error's answer, with its text in full, as Flower sends that of any ClientApp."""
    plain_error = error if isinstance(error, SepalError) else SepalError(name, "an answer", described(error))
    records = write_error(plain_error, name)
    whole = str(error) if isinstance(error, SepalError) and not error.__cause__ else traceback.format_exception(error)
    records[CAUSE] = ConfigRecord({"text": "".join(whole).strip()[-100_000:]})
    log.error("%s: %s", name, plain_error)
    return records
