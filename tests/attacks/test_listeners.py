"""What callers can do to the listeners of the project: the figures of a run or a client, and the page of a report."""

from __future__ import annotations

import http.client
import re
import socket
import threading

import pytest

from sepal.engines.flower.processes import free_port
from sepal.operation import figures as operation
from sepal.operation import listener
from sepal.server.status import Status
from sepal.server_app.metrics import ServerFigures
from tests.sepal.cli.runs_for_tests import write_run
from tests.test_imports import PACKAGES, ROOT

OPENS = r"from http\.server|socketserver|uvicorn|create_server|start_server|\.listen\(\)|add_\w*secure_port"
LISTENERS = {
    "sepal/operation/listener.py",  # what this file tries
    "sepal/flower/superlink.py",  # the SuperLink: tests/e2e/test_refusals.py and test_control_api.py
    "sepal/engines/flower/processes.py",  # only asks whether a port is free
}


def figures(tmp_path, host="127.0.0.1"):
    pytest.importorskip("prometheus_client")
    status = Status(1, "round", 1, 1, 1, 0)
    return operation.serve(f"{host}:{free_port()}", ServerFigures(lambda: status)), "/metrics", b"sepal_round"


def page(tmp_path, host="127.0.0.1"):
    pytest.importorskip("altair", reason="the extra report is not installed")
    from sepal.report.live import ReportServer

    server = ReportServer([str(write_run(tmp_path / "run"))], 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"/{server.secret}/data", b'"curve"'


@pytest.fixture(params=[figures, page], ids=lambda start: start.__name__)
def served(request, tmp_path):
    server, path, words = request.param(tmp_path)
    yield server.server_address[1], path, words
    server.shutdown()
    server.server_close()


def get(port, path, host="127.0.0.1", named="localhost"):
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", path, headers={"Host": named})
    answer = connection.getresponse()
    return answer.status, answer.read()


def drip(port, count, stop):
    """Open connections that say a byte every tenth of a second, and never have done; return them."""
    connections = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(count)]
    for connection in connections:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")

    def go_on():
        left = list(connections)
        while left and not stop.wait(0.1):
            for live in list(left):
                try:
                    live.sendall(b"x")
                except OSError:
                    left.remove(live)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    return connections, thread


def test_dripping_connections_keep_nobody_from_an_answer_and_are_cut_off(served, monkeypatch):
    monkeypatch.setattr(listener, "PATIENCE", 1.0)
    port, path, words = served
    stop = threading.Event()
    connections, thread = drip(port, listener.CALLERS, stop)
    try:
        status, answer = get(port, path)
        assert status == 200
        assert words in answer
        thread.join(timeout=30)
        assert not thread.is_alive(), "each was cut off, though it went on talking"
    finally:
        stop.set()
        thread.join()
        for connection in connections:
            connection.close()


def test_the_caller_that_has_dripped_for_longest_gives_way_at_once(served, monkeypatch):
    """Otherwise each new caller would wait until the deadline of those that drip, or be turned away."""
    monkeypatch.setattr(listener, "PATIENCE", 600.0)
    port, path, words = served
    stop = threading.Event()
    connections, thread = drip(port, listener.CALLERS, stop)
    try:
        for _ in range(3):
            assert words in get(port, path)[1]
    finally:
        stop.set()
        thread.join()
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0"])
def test_no_loopback_address_answers_under_a_foreign_name(tmp_path, host):
    server, path, _ = figures(tmp_path, host)
    port, dialled = server.server_address[1], "127.0.0.1" if host == "0.0.0.0" else host
    try:
        for named in (
            "localhost",
            f"LOCALHOST:{port}",
            f"127.0.0.1:{port}",
            f"127.0.0.2:{port}",
            "[::1]",
            f"[::1]:{port}",
        ):
            assert get(port, path, dialled, named)[0] == 200, named
        for named in (
            f"rebound.example:{port}",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example",
            "10.0.0.1",
            "",
        ):
            assert get(port, path, dialled, named)[0] == 403, named
    finally:
        server.shutdown()
        server.server_close()


def test_a_caller_that_leaves_writes_nothing_into_the_log(served, capfd):
    port, path, _ = served
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    assert get(port, path)[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_every_listener_of_the_project_is_known():
    installed = [package for package in PACKAGES if package not in ("referee", "tools")]
    files = [path for package in installed for path in (ROOT / package).rglob("*.py")]
    opening = {path.relative_to(ROOT).as_posix() for path in files if re.search(OPENS, path.read_text())}
    assert opening == LISTENERS
