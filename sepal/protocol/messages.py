"""Messages between server and client: an order and a reply, each written as a Flower RecordDict.

An order names the run, the round, the version of the client's state to start from (``base``) and the oldest version
that the server may still ask for (``durable``), but for that of the best evaluation (``best``). All tensors are in one
Array (:mod:`sepal.wire.records`), everything else in config and metric records. A malformed record raises
ProtocolError.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from sepal import errors
from sepal.errors import ProtocolError, SepalError, WireError
from sepal.protocol import fields, peer
from sepal.protocol.client_errors import Word, parts_of, read_parts
from sepal.protocol.peer import Peer, Side, check_peer
from sepal.protocol.types import ClientInfo, Kind, Plan, Scalar
from sepal.protocol.views import refuse_unknown
from sepal.storage.serialize import SPARING
from sepal.wire.records import from_array, to_array

# A message's records by name, each with its class and what it contains.
Parts: TypeAlias = Mapping[str, tuple[type[ConfigRecord] | type[MetricRecord], Mapping[str, Any]]]

_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})-[0-9a-f]{24}\Z")
_DEVICE = re.compile(r"[a-z][a-z0-9]{1,15}\Z")
_ROUNDS = 10**9  # the name of a version has nine digits for the round
DIVERGED = "diverged"  # the metric of a reply by which a client says that its model is not finite after ADAPT
WITHIN_CLIP = "within-clip"  # the metric by which a client says that its update needed no clipping: 0 or 1
MOST_HALVINGS = 16  # of the learning rate in a repeated round
MOST_VERSIONS = 400  # of a client's state, that it lists in its answer: the newest
MOST_FACT = 16_384  # characters; the keys on which both sides must agree take about 2,000
# In plain Flower (docs/decisions/0033): records of the query that brings W_0 and the keys, and of an error's full text;
# facts of its answer.
INITIAL, KEYS, CAUSE = "initial", "keys", "cause"
SIZES = ("shape", "outputs")
RECORDS = frozenset({"sepal", "payload", "scalars", "plan", "metrics", "facts", "sums"})
_ORDER = "protocol sepal run kind round phase who base durable views keep novel halvings best clip"
_REPLY = "protocol sepal run round kind client examples capacity device data base download version state"
# The fields of a head, by its sender. Another one is refused, and not passed over: it may change what is asked.
HEADS: Mapping[Side, frozenset[str]] = {"server": frozenset(_ORDER.split()), "client": frozenset(_REPLY.split())}


@dataclass(frozen=True)
class Content:
    """An encoded payload: wire bytes and scalars.

    Attributes:
        decoded: What the bytes were decoded to, with the specs that they were checked against; see
            :func:`sepal.protocol.payloads.unseal`. Empty before.
    """

    data: bytes = b""
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    decoded: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def digest(self) -> str:
        """Return SHA-256 (hex) over bytes and scalars; computed once."""
        return self._digest

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "decoded": []}  # what is sent to another process is decoded there

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256(len(self.data).to_bytes(8, "little"))
        sha.update(self.data)
        sha.update(json.dumps(dict(self.scalars), sort_keys=True, separators=(",", ":")).encode())
        return sha.hexdigest()


class Enclosed(RecordDict):
    """A message that does not leave its machine: its objects, and its records only once somebody looks into them.

    Server and clients of the in-process engine exchange these. :func:`read_order` and :func:`read_reply` return the
    objects; whoever looks into the records, as a hostile client of the tests does, gets those that would travel, and
    from then on they count. Sizes are the same either way (:func:`sepal.server.ledger.message_bytes`).

    Attributes:
        head: The head of an order or of a reply.
        content: Its content.
        written: Whether the records have been written.
    """

    def __init__(self, head: Order | Reply, content: Content) -> None:
        super().__init__()
        self.head, self.content, self.written = head, content, False

    @property
    def parts(self) -> Parts:
        """What its records contain besides the payload's bytes."""
        head = self.head
        return light_parts(order_parts(head) if isinstance(head, Order) else reply_parts(head), self.content)

    def _write(self) -> None:
        if not self.written:
            self.written = True
            for name, record in _records(self.parts, self.content).items():
                self[name] = record

    def __reduce__(self) -> tuple[Any, ...]:
        return (RecordDict, (dict(self),)) if self.written else (Enclosed, (self.head, self.content))


def arrays_bytes(records: RecordDict) -> int:
    """Return how many bytes the arrays of a message have."""
    if isinstance(records, Enclosed) and not records.written:
        return len(records.content.data)
    return sum(len(array.data) for array in fields.arrays_of(records))


def _after_writing(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def written(self: Enclosed, *arguments: Any) -> Any:
        self._write()
        return method(self, *arguments)

    return written


for _name in ("__getitem__", "__iter__", "__len__", "__contains__", "__setitem__", "__delitem__", "__repr__", "__eq__"):
    setattr(Enclosed, _name, _after_writing(getattr(RecordDict, _name)))
for _name in ("keys", "values", "items", "copy"):
    setattr(Enclosed, _name, _after_writing(getattr(RecordDict, _name)))


def version(round: int, base: str, download: str, upload: str) -> str:
    """Return the name of a client's state after a round: ``ROUND-24 hex digits``.

    The digest covers the upload, the download that it answers and the version it started from, so that two histories
    never share a name, even in rounds without uploads. Both sides compute it.
    """
    return f"{round}-{hashlib.sha256('|'.join([str(round), base, download, upload]).encode()).hexdigest()[:24]}"


def is_version(name: str) -> bool:
    """Return whether ``name`` is the name of a version."""
    return bool(_VERSION.match(name))


def version_round(name: str) -> int:
    """Return the round of a version; -1 for the empty version, which is the initial state.

    Raises:
        ProtocolError: ``name`` is neither a version nor empty.
    """
    if name and not _VERSION.match(name):
        raise ProtocolError("version", "ROUND-DIGEST or nothing", name)
    return int(name.partition("-")[0]) if name else -1


@dataclass(frozen=True)
class Order:
    """The head of a message from the server.

    Attributes:
        run: UUID of the run; a client refuses messages of another run.
        kind: What the client is to do.
        plan: The round's plan.
        base: Version of the client's state to start from; empty for the initial state.
        durable: Oldest version that the server may still ask for, but for ``best``.
        best: The version of the best full evaluation, if it is older than ``durable``; else empty.
        views: The views to evaluate (:mod:`sepal.protocol.views`).
        keep: For ADAPT: whether the client stores the new state.
    """

    run: str
    kind: Kind
    plan: Plan
    base: str = ""
    durable: str = ""
    views: tuple[str, ...] = ()
    keep: bool = False
    best: str = ""


def sums_up(order: Order) -> bool:
    """Return whether what an order leads to goes into a sum, in a run with secure sums: an update, or figures."""
    return order.kind is Kind.TRAIN or bool(order.views)


@dataclass(frozen=True)
class Reply:
    """The head of a client's reply.

    Attributes:
        run: UUID of the run.
        round: The round of the order.
        kind: The kind of the order.
        client: The client's roster entry, repeated in every reply.
        base: The version that it started from.
        download: Digest of the content that it received.
        version: Name of the new state; empty if none was stored.
        state: Digest of the new state; only set in the closing round.
        metrics: Counts and figures by name (``received.correct``, ``seconds``, …).
        facts: Further text about the client, in replies to QUERY.
        sums: Sums of metrics by ``VIEW.sums`` and ``VIEW.validation-sums`` (:mod:`sepal.tasks.scoring`); none
            for a classification by accuracy, whose counts are among the metrics.
    """

    run: str
    round: int
    kind: Kind
    client: ClientInfo
    base: str = ""
    download: str = ""
    version: str = ""
    state: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    sums: Mapping[str, tuple[float, ...]] = field(default_factory=dict, metadata=SPARING)

    @property
    def figures(self) -> Mapping[str, Any]:
        """Metrics and sums by name."""
        return {**self.metrics, **self.sums}


def _sender(kind: Kind) -> dict[str, int | str]:
    """Return what a message says about its sender; its release stands in the query alone, which comes first."""
    this = peer.ourselves()
    return {"protocol": this.protocol, **({"sepal": this.sepal} if kind is Kind.QUERY else {})}


def sender_of(records: RecordDict) -> Peer:
    """Return what the sender of a message says about itself, also in an error; untrusted."""
    if isinstance(records, Enclosed) and not records.written:
        return peer.ourselves()
    return Peer.of(fields.config(records, "error" if "error" in records else "sepal"))


def write_order(order: Order, content: Content) -> RecordDict:
    """Return the records of an order."""
    return _records(light_parts(order_parts(order), content), content)


def order_parts(order: Order) -> Parts:
    """Return what the records of an order contain, but for its content."""
    plan = order.plan
    return {
        "sepal": (
            ConfigRecord,
            {
                **_sender(order.kind),
                "run": order.run,
                "kind": order.kind.value,
                "round": order.plan.round,
                "phase": order.plan.phase,
                "who": order.plan.who,
                "base": order.base,
                "durable": order.durable,
                "views": ",".join(order.views),
                "keep": order.keep,
                "novel": order.plan.novel,
                **({"halvings": order.plan.halvings} if order.plan.halvings else {}),
                **({"best": order.best} if order.best else {}),
                **({"clip": order.plan.clip} if order.plan.clip else {}),
            },
        ),
        "plan": (ConfigRecord, plan.scalars),
    }


def read_order(records: RecordDict) -> tuple[Order, Content]:
    """Return the order and content of a message.

    Raises:
        ProtocolError: A record is missing or of the wrong type, or this side does not work with the server's protocol.
    """
    if isinstance(records, Enclosed) and not records.written and isinstance(records.head, Order):
        order = records.head  # with a plan of the client's own, as if it had been sent
        return replace(order, plan=replace(order.plan, scalars=dict(order.plan.scalars))), records.content
    fields.check_counts_of(records)
    head, content = _read(records, "server")
    who = fields.text(head, "who")
    if who not in ("sampled", "all", "none"):
        raise ProtocolError("who", "sampled, all or none", who)
    number = fields.number(head, "round", 0, _ROUNDS)
    scalars = fields.scalars(records, "plan")
    halvings = fields.number(head, "halvings", 0, MOST_HALVINGS) if "halvings" in head else 0
    novel = fields.truth(head, "novel")
    clip = fields.positive(head, "clip") if "clip" in head else 0.0
    plan = Plan(number, fields.text(head, "phase"), who, scalars, novel, halvings, clip)  # type: ignore[arg-type]
    views = tuple(view for view in fields.text(head, "views", 1024).split(",") if view)
    refuse_unknown(views)
    keep = fields.truth(head, "keep")
    base, durable = fields.text(head, "base"), fields.text(head, "durable")
    best = fields.text(head, "best") if "best" in head else ""
    version_round(base), version_round(durable), version_round(best)
    return Order(fields.name(head, "run"), fields.kind(head), plan, base, durable, views, keep, best), content


def write_reply(reply: Reply, content: Content) -> RecordDict:
    """Return the records of a reply."""
    return _records(light_parts(reply_parts(reply), content), content)


def reply_parts(reply: Reply) -> Parts:
    """Return what the records of a reply contain, but for its content."""
    return {
        "sepal": (
            ConfigRecord,
            {
                **_sender(reply.kind),
                "run": reply.run,
                "round": reply.round,
                "kind": reply.kind.value,
                "client": reply.client.name,
                "examples": reply.client.examples,
                "capacity": float(reply.client.capacity),
                "device": reply.client.device,
                "data": reply.client.data,
                "base": reply.base,
                "download": reply.download,
                "version": reply.version,
                "state": reply.state,
            },
        ),
        "metrics": (MetricRecord, reply.metrics),
        "facts": (ConfigRecord, reply.facts),
        "sums": (ConfigRecord, {key: fields.packed(numbers) for key, numbers in reply.sums.items()}),
    }


def read_reply(records: RecordDict, keys: Collection[str] = ()) -> tuple[Reply, Content]:
    """Return the reply and content of a message.

    Args:
        records: The message.
        keys: Keys of the run config that an error may name, beside those that every run has.

    Raises:
        ProtocolError: A record is missing or of the wrong type, or this side does not work with the client's protocol.
        SepalError: The client reported this error.
    """
    if isinstance(records, Enclosed) and not records.written and isinstance(records.head, Reply):
        return records.head, records.content
    fields.check_counts_of(records)
    if error := fields.config(records, "error"):
        check_peer(Peer.of(error), "client")
        raise _read_error(error, keys)
    head, content = _read(records, "client")
    kind = fields.kind(head)
    name, examples, capacity = (
        fields.name(head, "client"),
        fields.number(head, "examples", int(kind is Kind.TRAIN), 2**40),  # without examples, a client only evaluates
        head.get("capacity"),
    )
    if not isinstance(capacity, float) or not 0 < capacity <= 1:
        raise ProtocolError("capacity", "a number in (0, 1]", capacity)
    device = fields.text(head, "device")
    if not _DEVICE.match(device):
        raise ProtocolError("device", "a kind of device such as cpu, cuda or mps", device)
    metrics = fields.metrics(records)
    fact_record = fields.config(records, "facts")
    facts = {key: fields.text(fact_record, key, MOST_FACT) for key in list(fact_record)[: fields.MOST_METRICS]}
    reply = Reply(
        fields.text(head, "run"),
        fields.number(head, "round", 0, _ROUNDS),
        kind,
        ClientInfo(name, examples, capacity, device, fields.text(head, "data")),
        fields.text(head, "base"),
        fields.text(head, "download"),
        fields.text(head, "version"),
        fields.text(head, "state"),
        metrics,
        facts,
        fields.sums(records),
    )
    version_round(reply.version)
    return reply, content


def write_error(error: SepalError, client: str) -> RecordDict:
    """Return the records of a reply that reports an error."""
    parts = {"key": error.key, "expected": error.expected, "got": error.got, "client": client}
    return RecordDict({"error": ConfigRecord({**_sender(Kind.QUERY), "type": type(error).__name__, **parts})})


def write_client_error(error: Exception, client: str, code: str, keys: Collection[str] = ()) -> RecordDict:
    """Return the records by which a deployed client reports an error: nothing of the error's text.

    A refusal of the server's own message is reported as it is, because the server knows what it sent. Of a
    ChangedDataError the server has words of its own.

    Args:
        error: Any exception.
        client: The client's name.
        code: Eight digits; they name the entry in the client's log that has the details.
        keys: Keys of the run config, which may be named (:func:`sepal.protocol.client_errors.parts_of`).
    """
    if isinstance(error, ProtocolError | WireError):
        return write_error(error, client)
    return RecordDict({"error": ConfigRecord({**_sender(Kind.QUERY), **parts_of(error, client, code, keys)})})


def error_word(records: RecordDict) -> Word | None:
    """Return the word of a client's error; None for any other reply, and for an error without a word."""
    record = records.get("error")
    return read_parts(record)[0] if isinstance(record, ConfigRecord) and "word" in record else None


def _read_error(record: ConfigRecord, keys: Collection[str]) -> SepalError:
    if "word" in record:
        return read_parts(record, keys)[1]
    kind = getattr(errors, str(record.get("type")), SepalError)
    is_sepal = isinstance(kind, type) and issubclass(kind, SepalError)
    client, key, expected, got = (str(record.get(part, "?"))[:200] for part in ("client", "key", "expected", "got"))
    return (kind if is_sepal else SepalError)(key if key.startswith(client) else f"{client}: {key}", expected, got)


def _records(parts: Parts, content: Content) -> RecordDict:
    out = RecordDict({name: kind(dict(items)) for name, (kind, items) in parts.items()})
    if content.data:
        out["payload"] = ArrayRecord({"payload": to_array(content.data)})
    return out


def light_parts(parts: Parts, content: Content) -> Parts:
    """Return what a message contains besides its payload's bytes: the parts and the content's scalars, if not empty."""
    return {name: part for name, part in {**parts, "scalars": (ConfigRecord, content.scalars)}.items() if part[1]}


def _read(records: RecordDict, sender: Side) -> tuple[ConfigRecord, Content]:
    head = records.get("sepal")
    if not isinstance(head, ConfigRecord):
        raise ProtocolError("message", "a record named sepal", ", ".join(records) or "an empty message")
    check_peer(Peer.of(head), sender)
    if not HEADS[sender].issuperset(head):
        odd = ", ".join(name for name in head if name not in HEADS[sender])[:100]
        raise ProtocolError("message", f"a head of protocol {peer.PROTOCOL}", f"{odd} in it")
    if not RECORDS.issuperset(records):
        odd = ", ".join(name for name in records if name not in RECORDS)[:100]
        raise ProtocolError("message", f"no records but {', '.join(sorted(RECORDS))}", odd)
    arrays = records.get("payload")
    if not isinstance(arrays, ArrayRecord):
        return head, Content(b"", fields.scalars(records, "scalars"))
    if list(arrays) != ["payload"]:
        raise ProtocolError("payload", "one array named payload", ", ".join(arrays)[:100])
    data = from_array(arrays["payload"])
    return head, Content(data, fields.scalars(records, "scalars"))
