"""Messages that grow when Flower puts them together: measured before that happens."""

from __future__ import annotations

import tracemalloc

import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.grid import http_grid

from sepal.errors import RosterError
from sepal.flower.replies import MOST_OBJECTS, arrays_bytes, bound_replies, enter_run
from sepal.server.downloads import largest_reply
from sepal.server.strategy import SepalStrategy
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for name in ("pull_objects", "inflate_object_from_contents"):
        monkeypatch.setattr(http_grid, name, getattr(http_grid, name))


def contents(*sizes):
    enter_run()
    record = ArrayRecord({f"a{n}": Array("uint8", (s,), "x", bytes([n]) * s) for n, s in enumerate(sizes)})
    message = Message(RecordDict({"payload": record}), dst_node_id=1, message_type="train")
    return message.object_id, {name: item.deflate() for name, item in get_all_nested_objects(message).items()}


def bomb(times):
    """One chunk of 1 MiB that the array lists ``times`` times; its id is that of its new content."""
    enter_run()
    array = Array("uint8", (MEBIBYTE,), "x", bytes(MEBIBYTE))
    plain = array.deflate()
    chunks = {n: item.deflate() for n, item in get_all_nested_objects(array).items() if n != array.object_id}
    head, _, body = plain.partition(b"\x00")
    places = b"[" + b",".join([b"0"] * times) + b"]"
    body = body.replace(b"[0]", places)
    kind, children, _ = head.decode().split(" ")
    return "array", {"array": f"{kind} {children} {len(body)}".encode() + b"\x00" + body, **chunks}


def test_a_bomb_of_repeated_chunks_is_refused_before_it_is_put_together():
    """5.2 MB became 2.1 GB."""
    bound_replies(16 * MEBIBYTE)
    name, objects = bomb(2000)
    assert sum(map(len, objects.values())) < 2 * MEBIBYTE
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected arrays of at most 16777216 bytes, got 20971"):
            http_grid.inflate_object_from_contents(name, objects)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_an_honest_array_with_equal_chunks_is_accepted():
    bound_replies(64 * MEBIBYTE)
    name, objects = contents(12 * MEBIBYTE, 10)
    assert arrays_bytes(objects) == pytest.approx(12 * MEBIBYTE, rel=1e-3)
    message = http_grid.inflate_object_from_contents(name, objects)
    assert len(message.content["payload"]["a0"].data) == 12 * MEBIBYTE


def test_a_reply_of_too_many_objects_or_bytes_is_not_pulled_to_the_end():
    bound_replies(MEBIBYTE)
    pulled = []

    def pull(name):
        pulled.append(name)
        return bytes(MEBIBYTE // 2)

    with pytest.raises(ValueError, match=f"at most {MOST_OBJECTS} objects"):
        http_grid.pull_objects([f"o{n}" for n in range(MOST_OBJECTS + 1)], pull_object_fn=pull)
    assert not pulled
    with pytest.raises(ValueError, match="at most 1048576 bytes, got more"):
        http_grid.pull_objects([f"o{n}" for n in range(200)], pull_object_fn=pull)
    assert len(pulled) < 100


def test_a_second_run_in_the_process_sets_its_own_bound():
    bound_replies(1)
    bound_replies(64 * MEBIBYTE)
    name, objects = contents(1000)
    assert http_grid.inflate_object_from_contents(name, objects)
    assert not hasattr(http_grid.inflate_object_from_contents.flowers, "flowers")


class Nobody(Grid):
    """A grid of a SuperLink to which no node is connected."""

    def set_run(self, run_id):
        pass

    run = None

    def create_message(self, *arguments, **keys):
        raise NotImplementedError

    def get_node_ids(self):
        return []

    def push_messages(self, messages):
        return []

    def pull_messages(self, message_ids):
        return []

    def send_and_receive(self, messages, *, timeout=None):
        return []


def test_a_run_on_a_superlink_is_bounded_from_its_start():
    assembly = assemble({"dataset": "digits", "clients": 1, "timeout": 0.1})
    with pytest.raises(RosterError):
        SepalStrategy(registry.get("fedavg"), assembly.setup).start(Nobody())
    name, objects = bomb(largest_reply(assembly.setup) // MEBIBYTE + 1)
    with pytest.raises(ValueError, match="expected arrays of at most"):
        http_grid.inflate_object_from_contents(name, objects)
