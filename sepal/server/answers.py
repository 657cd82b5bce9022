"""Whether a reply is the answer to its order. What an upload contains is checked by :mod:`sepal.server.uploads`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sepal.config import Settings
from sepal.config.base import flatten, method_name
from sepal.errors import ChangedDataError, ProtocolError, SepalError
from sepal.method.interface import RunSetup
from sepal.protocol.messages import Content, Order, Reply, sums_up, version
from sepal.protocol.summed import UPDATE
from sepal.protocol.types import ClientInfo, Kind
from sepal.protocol.views import check_counts
from sepal.secure.keys import halves
from sepal.secure.server import check_public
from sepal.tasks.scoring import BY_ACCURACY, Scoring, check_name

_DIGEST = re.compile(r"([0-9a-f]{64})?\Z")


@dataclass(frozen=True)
class Growth:
    """How far a client's data may grow (``data-changes = "accept"``).

    Attributes:
        began: The number of training examples with which it began.
        factor: ``data-growth``: it may have so many times as many.
    """

    began: int
    factor: float

    def check(self, client: ClientInfo, claimed: ClientInfo) -> ClientInfo:
        """Return the client's entry in the roster with the data that it claims to have now.

        Raises:
            ChangedDataError: They are too many, or their digest is none.
        """
        most = int(self.began * self.factor)
        if claimed.examples > most:
            expected = (
                f"at most {most} training examples (data-growth = {self.factor:g} times the {self.began} at first)"
            )
            got = f"{claimed.examples}: continue the run with a larger data-growth, or begin a new run"
            raise ChangedDataError(f"{client.name}: data", expected, got)
        if not claimed.data or not _DIGEST.fullmatch(claimed.data):
            raise ChangedDataError(f"{client.name}: data", "64 hexadecimal digits", claimed.data)
        return replace(client, examples=claimed.examples, data=claimed.data)


def keys_of(setup: RunSetup) -> frozenset[str]:
    """Return the keys of the run's method, which a client's error may name."""
    hyper = setup.hyper
    return frozenset(flatten(hyper, f"{method_name(setup.config.method)}.") if isinstance(hyper, Settings) else ())


def attributed(name: str, reason: SepalError) -> SepalError:
    """Return an error that client ``name`` has reported, in its own name: the name in it is the client's choice."""
    if reason.key.startswith(f"{name}:"):
        return reason
    return ProtocolError(name, "a reply", f"an error: {reason}")  # it names another client, or none


def check_answer(order: Order, reply: Reply) -> None:
    """Check a reply to a query.

    Raises:
        ProtocolError: It is of another run, round or kind.
    """
    pairs = {"run": (order.run, reply.run), "kind": (order.kind, reply.kind), "round": (order.plan.round, reply.round)}
    _compare({f"{reply.client.name}: {key}": pair for key, pair in pairs.items()})


def check_reply(
    order: Order,
    client: ClientInfo,
    download: str,
    reply: Reply,
    content: Content,
    scoring: Scoring = BY_ACCURACY,
    growth: Growth | None = None,
    secure: bool = False,
) -> None:
    """Check a reply to an order of a round.

    Args:
        order: What the client was asked.
        client: Its entry in the roster.
        download: Digest of the content that it was sent.
        reply: Its reply.
        content: Its upload.
        scoring: The metrics of the run's task.
        growth: How far the client's data may have changed; None if they may not.
        secure: Whether updates and figures go into a secure sum, and keys come in their place.

    Raises:
        ProtocolError: It is not the reply to this order, or says what no client has to say.
        ChangedDataError: The client has other data than in the roster, or more than it may have.
    """
    if reply.client.name == client.name and reply.client.data != client.data:
        if growth is None:
            raise ChangedDataError.of(client.name, client.data, reply.client.data)
        client = growth.check(client, reply.client)
    has_state = order.kind is Kind.TRAIN or (order.kind is Kind.ADAPT and order.keep)
    advertises = secure and sums_up(order)
    uploaded = check_advertised(content) if advertises else content.digest()
    reached = version(order.plan.round, order.base, download, uploaded) if has_state else ""
    expected = Reply(order.run, order.plan.round, order.kind, client, order.base, download, reached)
    pairs = {f"client.{key}": (value, getattr(reply.client, key)) for key, value in vars(client).items()}
    for key in ("run", "round", "kind", "base", "download", "version"):
        pairs[key] = getattr(expected, key), getattr(reply, key)
    _compare(pairs)
    if order.keep and not _DIGEST.match(reply.state):
        raise ProtocolError("state", "64 hexadecimal digits or nothing", reply.state)
    if reply.facts:  # they would be stored with each round's record
        raise ProtocolError("facts", "none but in answer to a query", f"{len(reply.facts)} of them")
    check_counts(reply.metrics, () if secure else order.views)
    if secure and (reply.sums or reply.state):
        raise ProtocolError("figures", "costs alone, with secure = sum", "others")
    for name, sums in reply.sums.items():
        if scoring.counted or not check_name(name, order.views):
            raise ProtocolError(f"sums.{name}", f"sums of {', '.join(order.views) or 'no view'}, if any", "others")
        scoring.check(f"sums.{name}", sums)
    if order.kind is not Kind.TRAIN and not advertises and (content.data or content.scalars):
        raise ProtocolError("payload", "none in answer to adapt", f"{len(content.data)} bytes")


def check_advertised(content: Content) -> str:
    """Return a client's commitment to its update, as the name of its version has it.

    Raises:
        ProtocolError: The reply has no two keys, or no commitment.
    """
    check_public(content.data)
    update = content.scalars.get(UPDATE)
    if set(content.scalars) != {UPDATE} or not isinstance(update, str):
        raise ProtocolError(UPDATE, "a commitment to the update", ", ".join(content.scalars))
    if not update or not _DIGEST.fullmatch(update):
        raise ProtocolError(UPDATE, "64 hexadecimal digits", update)
    return update


def check_other_keys(content: Content, others: Collection[bytes]) -> None:
    """Check that a client's public keys are nobody else's: where keys occur twice, all clients refuse the round.

    Args:
        content: Its reply.
        others: The keys that other clients have advertised.

    Raises:
        ProtocolError: One of them is among its own.
    """
    if any(half in others for half in halves(content.data)):
        raise ProtocolError("keys", "keys of its own", "those of another client")


def check_step(order: Order, client: ClientInfo, question: Content, reply: Reply, content: Content) -> None:
    """Check the reply to a step of a secure sum, but for its payload.

    Raises:
        ProtocolError: It is not the reply to this order, or says what no client has to say.
    """
    _compare({f"client.{key}": (getattr(client, key), getattr(reply.client, key)) for key in ("name", "examples")})
    expected = Reply(order.run, order.plan.round, order.kind, reply.client, download=question.digest())
    _compare({key: (value, getattr(reply, key)) for key, value in vars(expected).items()})
    if content.scalars:
        raise ProtocolError(order.kind.value, "no scalars", ", ".join(content.scalars))


def _compare(pairs: Mapping[str, tuple[Any, Any]]) -> None:
    for key, (expected, received) in pairs.items():
        if expected != received:
            raise ProtocolError(key, repr(expected), repr(received))
