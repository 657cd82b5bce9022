"""Messages between server and client: an order and a reply, each written as a Flower RecordDict.

An order names the run, the round, the version of the client's state to start from (``base``) and the oldest version
that the server may still ask for (``durable``). All tensors are in one Array (:mod:`sepal.wire.records`), everything
else in config and metric records. A malformed record raises ProtocolError.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from sepal import errors
from sepal.errors import ConfigError, DeviceMemoryError, ProtocolError, SepalError, WireError
from sepal.protocol import fields
from sepal.protocol.method import ClientInfo, Kind, Plan, Scalar
from sepal.protocol.views import refuse_unknown
from sepal.storage.serialize import SPARING
from sepal.wire.records import from_array, to_array

PROTOCOL = 1
_KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}\Z")
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})-[0-9a-f]{24}\Z")
_DEVICE = re.compile(r"[a-z][a-z0-9]{1,15}\Z")
_ROUNDS = 10**9  # the name of a version has nine digits for the round
DIVERGED = "diverged"  # the metric of a reply by which a client says that its model is not finite after ADAPT
MOST_HALVINGS = 16  # of the learning rate in a repeated round
MOST_FACT = 16_384  # characters; the keys on which both sides must agree take about 2,000
RECORDS = frozenset({"sepal", "payload", "scalars", "plan", "metrics", "facts", "sums"})


@dataclass(frozen=True)
class Content:
    """An encoded payload: wire bytes and scalars."""

    data: bytes = b""
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    def digest(self) -> str:
        """Return SHA-256 (hex) over bytes and scalars."""
        text = json.dumps(dict(self.scalars), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(len(self.data).to_bytes(8, "little") + self.data + text.encode()).hexdigest()


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
        durable: Oldest version that the server may still ask for.
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
        sums: Sums of metrics by ``VIEW.sums`` and ``VIEW.validation-sums`` (:mod:`sepal.protocol.tasks.scoring`); none
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
    def found(self) -> Mapping[str, Any]:
        """Metrics and sums by name."""
        return {**self.metrics, **self.sums}


def write_order(order: Order, content: Content) -> RecordDict:
    """Return the records of an order."""
    head = ConfigRecord(
        {
            "protocol": PROTOCOL,
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
        }
    )
    return _write(head, content, plan=ConfigRecord(dict(order.plan.scalars)))


def read_order(records: RecordDict) -> tuple[Order, Content]:
    """Return the order and content of a message.

    Raises:
        ProtocolError: A record is missing or of the wrong type, or the protocol version differs.
    """
    head, content = _read(records)
    who = fields.text(head, "who")
    if who not in ("sampled", "all", "none"):
        raise ProtocolError("who", "sampled, all or none", who)
    number = fields.number(head, "round", 0, _ROUNDS)
    scalars = fields.scalars(records, "plan")
    halvings = fields.number(head, "halvings", 0, MOST_HALVINGS) if "halvings" in head else 0
    novel = fields.truth(head, "novel")
    plan = Plan(number, fields.text(head, "phase"), who, scalars, novel, halvings)  # type: ignore[arg-type]
    views = tuple(view for view in fields.text(head, "views", 1024).split(",") if view)
    refuse_unknown(views)
    keep = fields.truth(head, "keep")
    base, durable = fields.text(head, "base"), fields.text(head, "durable")
    version_round(base), version_round(durable)
    return Order(fields.name(head, "run"), fields.kind(head), plan, base, durable, views, keep), content


def write_reply(reply: Reply, content: Content) -> RecordDict:
    """Return the records of a reply."""
    head = ConfigRecord(
        {
            "protocol": PROTOCOL,
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
        }
    )
    extra = {"metrics": MetricRecord(dict(reply.metrics))} if reply.metrics else {}
    facts = {"facts": ConfigRecord(dict(reply.facts))} if reply.facts else {}
    sums = {"sums": ConfigRecord({key: fields.packed(each) for key, each in reply.sums.items()})} if reply.sums else {}
    return _write(head, content, **extra, **facts, **sums)


def read_reply(records: RecordDict) -> tuple[Reply, Content]:
    """Return the reply and content of a message.

    Raises:
        ProtocolError: A record is missing or of the wrong type, or the protocol version differs.
        SepalError: The client reported this error.
    """
    fields.check_counts_of(records)
    if "error" in records.config_records:
        raise _read_error(records.config_records["error"])
    head, content = _read(records)
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
    found = records.config_records.get("facts", ConfigRecord())
    facts = {key: fields.text(found, key, MOST_FACT) for key in list(found)[: fields.MOST_METRICS]}
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
    return RecordDict({"error": ConfigRecord({"type": type(error).__name__, **parts})})


def without_details(error: Exception, code: str) -> SepalError:
    """Return what the server is told about an error on a node: its class and ``code``, and nothing of its text.

    The text may contain private data, for example a row that a data function could not read. A refusal of the server's
    own message is returned as it is, because the server knows what it sent. For a ConfigError, the key is kept.

    Args:
        error: Any exception.
        code: Names the entry in the node's log that has the details.
    """
    if isinstance(error, ProtocolError | WireError | DeviceMemoryError):
        return error
    kind = type(error) if isinstance(error, SepalError) and hasattr(errors, type(error).__name__) else SepalError
    key = error.key if isinstance(error, ConfigError) and _KEY.match(error.key) else "node"
    got = f"{type(error).__name__[:64]}, code {code} (details in the node's own log)"
    return kind(key, "no error", got)


def _read_error(record: ConfigRecord) -> SepalError:
    kind = getattr(errors, str(record.get("type")), SepalError)
    known = isinstance(kind, type) and issubclass(kind, SepalError)
    client, key, expected, got = (str(record.get(part, "?"))[:200] for part in ("client", "key", "expected", "got"))
    return (kind if known else SepalError)(key if key.startswith(client) else f"{client}: {key}", expected, got)


def _write(head: ConfigRecord, content: Content, **records: ConfigRecord | MetricRecord) -> RecordDict:
    out = RecordDict({"sepal": head})
    for name, record in records.items():
        if len(record):
            out[name] = record
    if content.scalars:
        out["scalars"] = ConfigRecord(dict(content.scalars))
    if content.data:
        out["payload"] = ArrayRecord({"payload": to_array(content.data)})
    return out


def _read(records: RecordDict) -> tuple[ConfigRecord, Content]:
    fields.check_counts_of(records)
    if "sepal" not in records.config_records:
        raise ProtocolError("message", "a record named sepal", ", ".join(records) or "an empty message")
    head = records.config_records["sepal"]
    if head.get("protocol") != PROTOCOL:
        raise ProtocolError("protocol", f"version {PROTOCOL}", head.get("protocol"))
    if not RECORDS.issuperset(records):
        odd = ", ".join(name for name in records if name not in RECORDS)[:100]
        raise ProtocolError("message", f"no records but {', '.join(sorted(RECORDS))}", odd)
    arrays = records.array_records.get("payload")
    if arrays is not None and list(arrays) != ["payload"]:
        raise ProtocolError("payload", "one array named payload", ", ".join(arrays)[:100])
    data = b"" if arrays is None else from_array(arrays["payload"])
    return head, Content(data, fields.scalars(records, "scalars"))
