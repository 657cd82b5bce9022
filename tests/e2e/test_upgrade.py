"""A rolling upgrade (docs/operating.md): the clients one by one, then the server, in one run.

A release with another protocol is this one with another number (tests/shims/protocol).
"""

from __future__ import annotations

import pytest

from sepal import __version__
from sepal.engines.flower.certificates import make_certificates
from sepal.protocol.peer import PROTOCOL
from tests.e2e.machines import PARTS, Machines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


KEYS = {"dataset": "digits", "rounds": 12, "evaluate-every": 0}
NAMES = ("client-00000", "client-00001")


@pytest.fixture
def machines(tmp_path):
    machines = Machines(tmp_path, KEYS)
    yield machines
    machines.stop_all()


@pytest.fixture
def machines_with_keys(tmp_path):
    """Machines with TLS and a key for each client."""
    certs = tmp_path / "fl-certs"
    make_certificates(certs, nodes=NAMES)
    options = {"serve": ("--certs", str(certs / "server"))}
    for name, (machine, part) in zip(NAMES, PARTS.items(), strict=True):
        options[machine] = (*part, "--name", name, "--certs", str(certs / "nodes" / name))
    machines = Machines(tmp_path, KEYS, options, patience=300.0)
    yield machines
    machines.stop_all()


def start(machines, name, protocol):
    machines.start(name, "protocol", SEPAL_TEST_PROTOCOL=str(protocol))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with TLS and node keys"])
def test_clients_one_by_one_and_then_the_server_are_upgraded_within_a_run(request, keys):
    machines = request.getfixturevalue("machines_with_keys" if keys else "machines")
    for name in ("serve", "join0", "join1"):
        start(machines, name, PROTOCOL)
    machines.await_rounds(1)
    for name in ("join0", "join1", "serve"):
        start(machines, name, PROTOCOL + 1)
        before = len(machines.rounds())
        assert before < machines.keys["rounds"]
        machines.await_rounds(before + 1)
        if name != "serve":
            machines.await_line("run", f"client-0000{name[-1]} has protocol {PROTOCOL + 1}")
    machines.check_finished()


@pytest.mark.parametrize(("server", "client"), [(0, 2), (2, 0)], ids=["an older server", "an older client"])
def test_two_protocols_apart_both_sides_say_which_one_to_upgrade(machines, server, client):
    start(machines, "serve", PROTOCOL + server)
    start(machines, "join0", PROTOCOL + client)
    assert machines.running["serve"].wait(120) != 0
    steps = {"server": server, "client": client}
    older = min(steps, key=lambda side: steps[side])
    numbers = {side: f"protocol {PROTOCOL + step} (Sepal {__version__})" for side, step in steps.items()}
    for name, this, other in (("serve", "server", "client"), ("join0", "client", "server")):
        words = f"because this {this} has {numbers[this]}, got {numbers[other]} of the {other}: upgrade the {older}"
        machines.await_line(name, words)
