"""Servers that never have done: what `deploy check`, `join` and `serve` read of them, and for how long."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import threading

import pytest

from sepal.engines.flower import probe, processes
from sepal.flower import fleet
from tests.test_imports import PACKAGES, ROOT

READS = r"urllib\.request|http\.client|httpx|create_connection|urlopen|import requests|hf_hub_download|secure_channel"
READERS = {
    "sepal/engines/flower/probe.py",  # what this file tries
    "sepal/engines/flower/processes.py",
    "sepal/flower/fleet.py",
    "sepal/data/sources/hub.py",  # downloads of a data set that the operator named: as long and as large as it is
}
OPENING = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BOMB = gzip.compress(bytes(60 << 20))
BOUND = 64 << 20  # bytes that a server sends at most


def endless(connection):
    """A body without an end, as fast as it is read."""
    connection.sendall(OPENING + b"\r\n")
    sent = 0
    while sent < BOUND:
        sent += connection.send(bytes(1 << 16))
    return sent


def compressed(connection):
    """A body of 60 kB that a decoder would make 60 MB of."""
    connection.sendall(OPENING + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)


def nested(connection):
    """JSON that is nested too deeply to be read."""
    connection.sendall(OPENING + b"Content-Length: 60000\r\n\r\n" + b"[" * 60000)


def redirect(connection):
    """A redirect to where nobody asked to go."""
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


def junk(connection):
    """No HTTP."""
    connection.sendall(b"hello\r\n\r\n")


def drip(opening, byte):
    """What begins well, and then goes on a byte at a time; for at most 60 s."""

    def answer(connection, stop):
        connection.sendall(opening)
        for _ in range(600):
            if stop.wait(0.1):
                return
            connection.sendall(byte)

    return answer


HEADERS, BODY = drip(OPENING + b"X: ", b"x"), drip(OPENING + b"\r\n", b" ")
TLS = drip(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb", b"\0")  # the first bytes of a long ServerHello


class Server:
    """Answers each connection on a port of 127.0.0.1 with ``answer``; ``sent`` is what the last one returned."""

    def __init__(self, answer, waits=True):
        self.answer, self.waits, self.sent = answer, waits, 0
        self.stop = threading.Event()
        self.cut = threading.Event()  # the other side has closed a connection before the answer's end
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection):
        with connection:
            try:
                if self.waits and not connection.recv(1 << 16):
                    return
                takes_stop = self.answer.__code__.co_argcount == 2
                self.sent = self.answer(connection, self.stop) if takes_stop else self.answer(connection)
            except OSError:
                self.cut.set()

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.stop.set()
        self.listening.close()


@pytest.fixture
def http(monkeypatch):
    """As with Flower 1.40 and later, whichever is installed."""
    later = fleet.importlib.import_module("flwr.supercore.constant")
    for name in ("FLEET_HTTP_PUBLIC_KEY_HEADER", "FLEET_HTTP_SIGNATURE_HEADER"):
        monkeypatch.setattr(later, name, f"x-{name.lower().replace('_', '-')}", raising=False)
    for module in (fleet, probe):
        monkeypatch.setattr(module, "speaks_http", lambda: True)


def last_finding(port):
    """The last finding of what a client of plain text asks before it joins."""
    return list(probe.examine(f"127.0.0.1:{port}", None, timeout=0.5))[-1]


@pytest.mark.parametrize("answer", [endless, compressed, nested, redirect, junk], ids=lambda answer: answer.__name__)
def test_an_answer_without_an_end_is_not_read_to_its_end(http, answer):
    with Server(answer) as server:
        finding = last_finding(server.port)
        assert not finding.good
        assert (finding.check, finding.words.isprintable()) == ("API", True)
        assert not server.sent, "the server could not send all that it wanted to"


@pytest.mark.parametrize("answer", [HEADERS, BODY], ids=["headers", "body"])
def test_an_answer_that_drips_is_cut_off(http, answer):
    with Server(answer) as server:
        finding = last_finding(server.port)
        assert (finding.check, finding.good) == ("port", False)
        assert finding.words.endswith(fleet.BUSY)
        assert server.cut.wait(30), "the connection is closed, too"


def test_a_clock_that_is_never_good_ends_the_search(http, monkeypatch):
    """The server refuses each timestamp, and takes its time."""
    refusal = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    now = [0.0]
    monkeypatch.setattr(probe.time, "monotonic", lambda: now[0])
    calls = []

    def slowly(connection):
        calls.append(1)
        now[0] += 30.0
        connection.sendall(refusal)

    with Server(slowly) as server:
        finding = last_finding(server.port)
    assert (finding.check, finding.good) == ("port", False)
    assert len(calls) < 12


def test_a_handshake_that_drips_is_cut_off():
    with Server(TLS) as server:
        failure = probe._handshake("127.0.0.1", server.port, None, 0.5)
        assert isinstance(failure, OSError)
        assert server.cut.wait(30)


OTHERS = {"endless": endless, "headers": HEADERS, "redirect": redirect, "junk": junk, "tls": TLS}


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "secured"])
@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS.keys())
def test_whether_a_superlink_is_well_is_asked_for_a_second(tmp_path, answer, secured):
    from sepal.engines.flower.certificates import make_certificates

    if secured:
        make_certificates(tmp_path)
    with Server(answer) as server:
        healthy = processes.healthy(server.port, tmp_path / "ca" / "ca.crt" if secured else None)
        assert healthy == (answer is endless and not secured), "its body is not read"
        assert not server.sent


def test_every_reader_of_the_network_is_known():
    installed = [package for package in PACKAGES if package not in ("referee", "tools")]
    files = [path for package in installed for path in (ROOT / package).rglob("*.py")]
    reading = {path.relative_to(ROOT).as_posix() for path in files if re.search(READS, path.read_text())}
    assert reading == READERS
