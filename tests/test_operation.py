"""What operators see: /metrics and /healthz of a server and a client, and logs as JSON lines."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import time
import urllib.error
import urllib.request

import psutil
import pytest
from typer.testing import CliRunner

from sepal.cli import notices
from sepal.cli.main import app
from sepal.engines.flower.figures import ClientFigures
from sepal.engines.flower.processes import free_port
from sepal.errors import ConfigError
from sepal.operation import figures as operation
from sepal.operation import listener
from sepal.server.status import Status
from sepal.server_app.metrics import MOST_REASONS, OTHER, ServerFigures
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes


def get(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


def figures(text):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


@pytest.fixture
def served():
    pytest.importorskip("prometheus_client")
    servers = []

    def start(collector, *rest):
        port = free_port()
        servers.append(operation.serve(str(port), collector, *rest))
        return port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_servers_figures_follow_the_run(served):
    subject = Federation(FAKES["queue"][0], rounds=4, settings={"evaluate_every": 0, "on_missing": "skip"})
    subject.lost = {(2, "client-1")}
    strategy, scraped = subject.server(), {}
    began = time.time()
    figures_served = ServerFigures(strategy.status)
    port = served(figures_served)
    assert figures(get(port))['sepal_phase{phase="waiting"}'] == 1

    class During(Nodes):
        def answer(self, message):
            if message.metadata.group_id in ("3", "5"):
                scraped.setdefault(message.metadata.group_id, figures(get(port)))
            return super().answer(message)

    strategy._observers = [figures_served]
    strategy.start(During(subject))
    during, closing, after = scraped["3"], scraped["5"], figures(get(port))
    assert (during["sepal_round"], during["sepal_rounds"]) == (3, 4)
    assert closing['sepal_phase{phase="closing"}'] == 1
    assert (closing["sepal_round"], after["sepal_round"]) == (4, 4), "the closing evaluation is no round of the user's"
    states = ("roster", "present", "asked", "working", "missing")
    assert [during[f'sepal_clients{{state="{state}"}}'] for state in states] == [4, 4, 4, 4, 0]
    assert began <= during["sepal_last_round_timestamp_seconds"] <= after["sepal_last_round_timestamp_seconds"]
    assert after['sepal_replies_total{reason="",status="missing"}'] == 1
    assert after['sepal_replies_total{reason="",status="accepted"}'] == 4 * 4 - 1 + 4
    assert after['sepal_message_bytes_total{direction="up",purpose="training"}'] > 0
    assert after['sepal_round_seconds_total{part="total"}'] > 0
    assert after["process_resident_memory_bytes"] > 1e6
    assert after['sepal_phase{phase="closed"}'] == 1


def test_the_servers_certificates_are_shown_with_their_end():
    server_figures = ServerFigures(lambda: Status(1, "waiting"), {"server.pem": 1_800_000_000.0})
    (expiry,) = [metric for metric in server_figures.collect() if metric.name == "sepal_certificate_expiry_seconds"]
    assert [(sample.labels, sample.value) for sample in expiry.samples] == [({"file": "server.pem"}, 1_800_000_000.0)]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status(1, "waiting", 5, 2), "waiting for clients: 2 are connected, 5 are known"),
        (Status(3, "training", 5, 3, 5, 0, 2), "round 3 waits for 2 of 5 clients, which are not connected"),
        (Status(3, "training", 5, 4, 5, 1, 1), ""),  # one of them still works
        (Status(3, "training", 5, 5, 5, 2, 0), ""),
        (Status(9, "closed", 5, 0), ""),
    ],
)
def test_a_run_is_ready_while_its_work_goes_on(status, words, served):
    port = served(ServerFigures(lambda: status), str, operation.METRICS, lambda: status.waits_for)
    assert get(port, "/healthz") == "ok", "the process need not be started again"
    if not words:
        assert get(port, "/readyz") == "ok"
        return
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(port, "/readyz")
    assert (caught.value.code, caught.value.read().decode()) == (503, words)


def test_a_round_tells_those_who_work_from_those_who_are_away():
    """Client 1 is not connected in round 2: it is missing, and the others work."""
    subject = Federation(FAKES["queue"][0], rounds=2, settings={"evaluate_every": 0, "on_missing": "skip"})
    strategy, statuses, away = subject.server(), [], list(subject.nodes)[1]

    class Away(Nodes):
        def get_node_ids(self):
            return [node for node in super().get_node_ids() if strategy.progress.round < 1 or node != away]

        def answer(self, message):
            if message.metadata.group_id == "2":
                statuses.append(strategy.status())
            return super().answer(message)

    strategy.start(Away(subject))
    assert [(status.asked, status.working, status.missing) for status in statuses[:1]] == [(4, 3, 1)]


def test_a_commands_own_lines_are_json_like_the_others(monkeypatch, capsys):
    monkeypatch.setenv(operation.LOG, "json")
    notices.tell("sepal: warning: a.pem expires")
    notices.tell("clients join with: sepal join")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("WARNING", "a.pem expires"),
        ("INFO", "clients join with: sepal join"),
    ]
    assert all(line["time"].endswith("Z") for line in lines)


def _prepare():
    with notices.starting("to join", stays=True):
        pass


PRINTED = {
    "what is prepared": _prepare,
    "a line of the command": lambda: notices.tell("sepal: warning: a"),
    "a command line": lambda: notices.tell_command("flower"),
    "what is unprotected": lambda: notices.check_plain_text("127.0.0.1", allowed=False),
    "an error": lambda: CliRunner().invoke(app, ["serve", "--port", "9", "--control", "9"], catch_exceptions=False),
}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("kind", PRINTED)
def test_all_that_a_command_says_itself_has_a_time(kind, form, monkeypatch, capsys):
    monkeypatch.setenv(operation.LOG, form)
    result = PRINTED[kind]()
    lines = (result.output if result else capsys.readouterr().err).splitlines()
    assert lines
    for line in lines:
        assert re.match(r'(\{"time": ")?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d', line), line
    if form == "json" and kind == "an error":
        assert json.loads(lines[-1])["level"] == "ERROR"


def test_lines_of_other_processes_have_a_time_too(monkeypatch, capsys):
    for form in ("", "text", "json"):
        monkeypatch.setenv(operation.LOG, form)
        notices.show("sepal: round 1\nsepal: round 2")
    lines = capsys.readouterr().out.splitlines()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
    for number, pattern in enumerate(["", "", time, time, "", ""]):  # with json, they are JSON with a time already
        assert re.fullmatch(f"{pattern}sepal: round {number % 2 + 1}", lines[number])


def test_hostile_reasons_do_not_make_a_series_each():
    server_figures = ServerFigures(lambda: None)
    for number in range(200):
        server_figures._uploads["refused", server_figures._reason("refused", f"key-{number}: expected a, got b")] += 1
    assert len(server_figures._uploads) <= MOST_REASONS + 1
    assert server_figures._uploads["refused", OTHER] == 200 - MOST_REASONS


def test_a_clients_figures_add_up_what_its_processes_wrote(served, tmp_path, monkeypatch):
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from sepal.client_app import app
    from sepal.flower.replies import enter_run

    enter_run()
    path = tmp_path / "messages.jsonl"
    alive = [True]
    port = served(ClientFigures(path, lambda: alive[0], lambda: [psutil.Process()]), lambda: "" if alive[0] else "gone")
    monkeypatch.setenv(operation.STATS, str(path))
    message = Message(RecordDict({"x": ConfigRecord({"y": 1})}), dst_node_id=1, message_type="train", group_id="7")
    app.handle(message, Context(1, 1, {}, RecordDict(), {}))
    samples = figures(get(port))
    assert samples['sepal_messages_total{kind="train",result="error"}'] == 1
    assert (samples["sepal_round"], samples["sepal_client_up"]) == (7, 1)
    assert samples["sepal_client_memory_bytes"] > 1e6
    for odd in ("9" * 400, "9" * 5000, "-1"):  # a server's group id may be any text
        app.handle(
            Message(RecordDict(), dst_node_id=1, message_type="train", group_id=odd),
            Context(1, 1, {}, RecordDict(), {}),
        )
        assert figures(get(port))["sepal_round"] == 7
    with path.open("a") as file:
        file.write('{"kind": "train", "result": "answered", "round": 8, "up": 5, "down": 6, "seconds": 0.5}\n{"cut')
    samples = figures(get(port))
    assert (samples["sepal_round"], samples['sepal_payload_bytes_total{direction="up"}']) == (8, 5)
    assert get(port, "/healthz") == "ok"
    alive[0] = False
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(port, "/healthz")
    assert (caught.value.code, caught.value.read()) == (503, b"gone")


def test_it_listens_on_the_loopback_address_unless_told_otherwise():
    assert operation.place_of("9100", "--metrics") == ("127.0.0.1", 9100)
    assert operation.place_of("0.0.0.0:9100", "--metrics") == ("0.0.0.0", 9100)
    assert operation.place_of("[::1]:9100", "--metrics") == ("::1", 9100)
    for text in ("", "nine", "1.2.3.4", "0", "70000"):
        with pytest.raises(ConfigError, match=r"--metrics: expected \[HOST:\]PORT"):
            operation.place_of(text, "--metrics")


def test_a_web_page_is_not_answered_on_the_loopback_address(served):
    """Under DNS rebinding, a page's site resolves to 127.0.0.1, but its name is the ``Host``."""
    port = served(ServerFigures(lambda: None))
    for host, expected in {
        "localhost": 404,
        f"127.0.0.1:{port}": 404,
        "[::1]:1": 404,
        f"rebound.example:{port}": 403,
    }.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/", headers={"Host": host})
        assert connection.getresponse().status == expected, host


def test_many_connections_take_no_files_of_the_process(served, monkeypatch):
    """Another user's idle connections once took all files that the process may open, and so ended the run."""
    monkeypatch.setattr(listener, "PATIENCE", 1.0)
    port, process = served(ServerFigures(lambda: Status(1, "round", 1, 1, 1, 0))), psutil.Process()
    before = process.num_threads()
    connections = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(3 * listener.CALLERS)]
    assert process.num_threads() <= before + listener.CALLERS
    assert "sepal_round" in get(port), "those that came first and say nothing give way"
    for connection in connections:
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "is closed, the last ones after a while"
        connection.close()
    assert "sepal_round" in get(port)


def test_a_port_in_use_and_a_missing_package_are_one_line(served, monkeypatch):
    words = "SEPAL_METRICS: expected a port of this machine that is free"
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(ConfigError, match=words):
        operation.serve(str(listening.getsockname()[1]), ServerFigures(lambda: None))
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="pip install prometheus-client"):
        operation.serve("9100", ServerFigures(lambda: None))


def test_logs_are_json_lines_on_request(monkeypatch, capsys):
    logger = logging.getLogger("sepal")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.delenv(operation.LOG, raising=False)
    assert not operation.log_as_json()
    monkeypatch.setenv(operation.LOG, "json")
    assert operation.log_as_json()
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception('round %d: "quoted"', 3)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "sepal", 'round 3: "quoted"')
    assert line["error"].endswith("ValueError: bad")
    assert line["time"].endswith("Z")
    logger.error("a\u2028b\x9b2J\ud800\n")
    written = capsys.readouterr().err
    assert (written.isascii(), written.splitlines(), written.count("\n")) == (True, [written.strip()], 1)
