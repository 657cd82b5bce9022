"""Certificates are renewed within a run (docs/operating.md): the authority's at all machines, and the server's.

No machine is without a certificate that the others trust, so the run goes on, to the bits of one in process.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials
from sepal.engines.flower.probe import examine
from sepal.operation.expiry import expiry
from tests.e2e.machines import Machines

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

NAMES = ("client-00000", "client-00001")


@pytest.fixture
def machines(tmp_path):
    """Machines, each with a copy of its directory of `sepal certs`; the authority ends in 20 days."""
    make_certificates(tmp_path / "fl-certs", nodes=NAMES, authority_days=20)
    options = {"serve": ("--certs", "serve-certs")}
    for number in range(len(NAMES)):
        part = ("--partition", str(number), "--of", "2")
        options[f"join{number}"] = (*part, "--certs", f"join{number}-certs")
    machines = Machines(tmp_path, {"dataset": "digits", "rounds": 8, "evaluate-every": 0}, options, patience=300.0)
    yield machines
    machines.stop_all()


def copied(machines, name):
    """Copy what `sepal certs` has for a machine to that machine, and start it, or start it again."""
    source = "server" if name == "serve" else f"nodes/{NAMES[int(name[-1])]}"
    target = machines.directory / f"{name}-certs"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(machines.directory / "fl-certs" / source, target)
    machines.start(name)


def shown(machines, number):
    """Return what a client finds of the certificate that the server shows."""
    credentials = NodeCredentials.of(machines.directory / f"join{number}-certs", NAMES[number])
    findings = examine(f"127.0.0.1:{machines.ports[0]}", credentials)
    return [finding.words for finding in findings if finding.check == "certificate" and finding.good]


def test_the_authority_and_the_server_are_renewed_within_a_run(machines):
    for name in ("serve", "join0", "join1"):
        copied(machines, name)
    machines.await_rounds(1)
    for name in ("serve", "join0"):
        machines.await_line(name, "-certs/ca.crt expires on ")
    make_certificates(machines.directory / "fl-certs", renew_authority=True)
    for name in ("join0", "serve", "join1"):  # a client before the server, and one after it
        before = len(machines.rounds())
        copied(machines, name)
        machines.await_rounds(before + 1)
        if name == "serve":
            certificate, *warning = shown(machines, 1)
            assert certificate == "valid for 127.0.0.1 for 365 more days"
            assert "join1-certs/ca.crt expires on" in warning[0]
    assert shown(machines, 1) == ["valid for 127.0.0.1 for 365 more days"]
    assert len({expiry(path) for path in machines.directory.glob("*-certs/ca.crt")}) == 1
    machines.check_finished()


def test_a_server_whose_certificate_expires_says_so_and_goes_on_with_another(machines):
    """Flower's commands call it the network. A busy machine takes a minute until a run has begun."""
    certs = machines.directory / "fl-certs"
    shutil.rmtree(certs)
    machines.keys |= {"rounds": 4}
    make_certificates(certs, nodes=NAMES, days=1, now=datetime.now(UTC) + timedelta(seconds=120) - timedelta(days=1))
    for name in ("serve", "join0"):  # the run waits for the second client, so that it does not end before
        copied(machines, name)
    assert machines.running["serve"].wait(400) == 2
    file = machines.directory / "serve-certs" / "server.pem"
    assert machines.log("serve").splitlines()[-1].startswith(f"sepal: {file}: expected a certificate that is valid on ")
    make_certificates(certs)
    for name in ("serve", "join1"):
        copied(machines, name)
    machines.check_finished()
