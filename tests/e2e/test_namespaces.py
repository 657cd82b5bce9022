"""A server and three clients in network namespaces with limited links: bytes on the wire, and a cut cable.

Needs root, ``ip`` and ``tc``. The long form, with time to accuracy and a cut of two minutes, is
``python -m tools.hosts --cut 120``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sepal.engines.flower.bundle import write_app
from sepal.engines.in_process import run_in_process
from sepal.flower.versions import speaks_http
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble
from tools.hosts.federation import Hosts, counted, cut_after
from tools.hosts.network import NamespaceNetwork, unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
SEGMENT, HEADERS = 1448, 66  # bytes of TCP payload in a packet; its Ethernet, IP and TCP headers with timestamps
# Bytes a message and direction: Flower's framing, over HTTP with headers of its own.
OVERHEAD = 60_000 if speaks_http() else 30_000
FLAT = {"dataset": "digits", "clients": 3, "partition.name": "iid", "partition.subsample": 300, "timeout": 300.0}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The app that ``sepal serve`` submits: no code in it."""
    return write_app(tmp_path_factory.mktemp("app"))[0].parent


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if reason := unavailable():
        pytest.skip(f"network namespaces: {reason}")
    home = tmp_path_factory.mktemp("hosts")
    environment = {
        "SEPAL_HOME": str(home / "home"),
        "SEPAL_USER_PATH": str(ROOT / "tools" / "load" / "models"),
        "OMP_NUM_THREADS": "1",
    }
    with NamespaceNetwork(3) as network:
        with Hosts(network, home / "flower", environment) as federation:
            federation.start()
            yield federation
        assert not federation.left(), "a process was left behind"


@pytest.mark.parametrize(
    ("method", "least", "most"),
    [pytest.param("fedavg", 988_000, 1_010_000, marks=pytest.mark.long), ("fedpse", 99_004, 116_920)],
)
def test_the_interfaces_count_what_the_ledger_says(hosts, app, tmp_path, method, least, most):
    """FedPSE sends 24,751 of 247,510 weights: 99,004 bytes, and 247,510 · H(.1) / 8 + 3 % for places spread evenly."""
    config = {**FLAT, "method": method, "model": "megabyte:build", "rounds": 3, "evaluate-every": 0}
    run, count = counted(hosts, app, {**config, "name": "bytes", "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert 9 * least <= count.payload[0] <= 9 * most, "three clients in three rounds"
    for side in (0, 1):
        payload, others = count.payload[side], count.payload[1 - side]
        wire = payload + HEADERS * (payload + others / 2) / SEGMENT  # one acknowledgement for two packets of the others
        most = 1.03 * wire + count.messages * OVERHEAD + 2 * count.idle[side]  # busy clients look at uneven times
        assert count.answered[side] <= count.interface[side] <= most, count


@pytest.mark.long
def test_a_cut_of_twenty_seconds_loses_nothing(hosts, app, tmp_path):
    """FedPSE's residuals stay with the clients: the run must end with the bits of the uninterrupted one."""
    config = {**FLAT, "method": "fedpse", "rounds": 4, "evaluate-every": 0, "seed": 3}
    assembly = assemble({**config, "name": "whole"})
    with RunDirectory(tmp_path / "whole", assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    cut = cut_after(hosts, 1, tmp_path / "cut", 1, 20.0)
    run = hosts.run_app(app, {**config, "name": "cut", "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert cut(), "the run ended before the cable was back"
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "cut")]
    for key in ("weights_sha256", "clients_sha256", "clients"):
        assert summaries[0][key] == summaries[1][key]
