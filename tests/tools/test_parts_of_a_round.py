"""How the bench breaks a deployed round down: along the way of the message whose reply arrives last."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from sepal.flower.versions import source_digest
from tools.bench.deployed import MOMENTS, PARTS, Moment, parts_of


def round_of(number, begin, slow, fast):
    """Return the moments of a round: node ``slow`` takes 10 s for each part, node ``fast`` 1 s."""
    moments = [Moment(begin, "server", "order", number)]
    for node, step in ((slow, 10.0), (fast, 1.0)):
        for position, stage in enumerate(PARTS.values(), 1):
            process = "server" if stage == "taken" else f"{stage in ('received', 'sent')}-{node}-{number}"
            moments.append(Moment(begin + position * step, process, stage, "-" if stage == "running" else node))
    return moments


def test_the_last_reply_s_way_is_counted_and_neither_the_first_nor_the_closing_round():
    moments = [Moment(0.0, "server", "order", "1")]
    moments += round_of("1", 1.0, "a", "b") + round_of("2", 100.0, "b", "a") + round_of("3", 200.0, "a", "b")
    moments += round_of("4", 300.0, "a", "b")  # the closing round
    moments.append(Moment(150.0, "server", "order", "2"))  # a message that was sent a second time
    parts = parts_of(moments)
    assert parts == [pytest.approx({**dict.fromkeys(PARTS, 10.0), "server_between_rounds": 40.0})] * 2


def test_what_is_put_around_flowers_functions_keeps_their_source():
    """Otherwise each SuperNode of the bench ends at its start: Sepal refuses a Flower whose source it does not know."""
    spec = importlib.util.spec_from_file_location("moments", MOMENTS / "sitecustomize.py")
    patched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(patched)

    def plain():
        pass

    node = SimpleNamespace(_pull_and_store_message=plain, _push_messages=plain)
    process = SimpleNamespace(run_clientapp=plain)
    patched.in_node(node)
    patched.in_process(process)
    for around in (*vars(node).values(), *vars(process).values()):
        assert around is not plain
        assert source_digest(around) == source_digest(plain)
