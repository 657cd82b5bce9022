"""An order, a reply and a content with every field filled, and a way to change one field."""

from __future__ import annotations

from flwr.app import RecordDict

from sepal.protocol.messages import Content, Order, Reply, version
from sepal.protocol.types import ClientInfo, Kind, Plan

RUN = "0123456789abcdef" * 2
BASE = version(3, "", "d", "u")
ORDER = Order(
    RUN, Kind.TRAIN, Plan(4, "share", "all", {"lr": 0.5, "n": 3, "on": True}), BASE, BASE, ("received",), True
)
REPLY = Reply(
    RUN,
    4,
    Kind.TRAIN,
    ClientInfo("client-1", 10, 0.5, "cuda"),
    BASE,
    "d" * 64,
    version(4, BASE, "d", "u"),
    "s" * 64,
    {"received.correct": 3.0, "seconds": 0.25},
    {"store": "x"},
)
CONTENT = Content(b"\x00\xffpayload", {"loss": -0.5, "n": 3, "on": False, "text": "é"})


def changed(records: RecordDict, record: str = "sepal", **values) -> RecordDict:
    head = records[record]
    for key, value in values.items():
        if value is None:
            del head[key]
        else:
            head[key] = value
    return records
