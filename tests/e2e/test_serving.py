"""README's three terminals: a server, two clients, and a look from a fourth."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from sepal.client_app.host import COSTS
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials
from sepal.engines.flower.probe import examine
from sepal.engines.flower.processes import free_port, listening
from sepal.engines.in_process import run_in_process
from sepal.export.portable import load
from sepal.flower.versions import speaks_http
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import assemble
from tests.test_readme import BLOCKS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
EVIL = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "evil"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "evil:app"
clientapp = "evil:app"
"""


def sepal(arguments: list[str], directory: Path, log: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(directory / "home")}
    with open(directory / log, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "sepal.cli", *arguments],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def left(home: Path) -> list[str]:
    command_lines = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SEPAL_HOME") == str(home):
                command_lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return command_lines


def here_inputs(number: int) -> np.ndarray:
    return np.array(assemble({"dataset": "digits", "clients": 2}).data.client(number, 2, "").test.x)


def test_three_terminals(tmp_path):
    """README's block as it stands, at other ports."""
    ports = [str(free_port()), str(free_port())]
    (block,) = (block for _, block in BLOCKS if "sepal serve" in block)
    first, *others = (shlex.split(line.removeprefix("sepal ")) for line in block.splitlines())
    assert (first[0], [words[:2] for words in others]) == ("serve", [["join", "127.0.0.1:9092"]] * 2)
    server = sepal([*first, "--port", ports[0], "--control", ports[1]], tmp_path, "serve.log")
    clients = [
        sepal(
            ["join", f"127.0.0.1:{ports[0]}", *words[2:], "--export", f"{number}.safetensors"],
            tmp_path,
            f"join{number}.log",
        )
        for number, words in enumerate(others)
    ]
    try:
        assert server.wait(300) == 0, (tmp_path / "serve.log").read_text()[-2000:]
        log_text = (tmp_path / "serve.log").read_text()
        assert "without --certs nothing is encrypted" in log_text
        assert "sepal: round 2/5: received" in log_text, "progress is to be seen in the first terminal"
        assert "sepal: closing evaluation" in log_text
        shown = [
            line
            for line in log_text.splitlines()
            if not line.startswith(("sepal: ", "+ ", "clients join", "app bundle"))
        ]
        assert shown == [], "Flower's lines are in the log file"
        assert "Successfully started run" in (tmp_path / "home" / "server" / "three" / "run.log").read_text()
        assert "num-supernodes" not in log_text, "no hint about the simulation"
        for number in range(2):
            log_text = (tmp_path / f"join{number}.log").read_text()
            assert "sepal: joined, and waits" in log_text
            assert "sepal: round 5: trained" in log_text
            assert [line for line in log_text.splitlines() if not line.startswith(("sepal: ", "+ "))] == []
            assert "SuperNode ID" in next((tmp_path / "home" / "clients").glob(f"*{number}/node.log")).read_text()
        summary = json.loads((tmp_path / "runs" / "three" / "summary.json").read_text())
        assert summary["complete"]
        assert summary["clients"] == 2
        for number in range(2):
            written = tmp_path / f"{number}-here.safetensors"
            command = sepal(["export", "three", str(number), "--out", str(written)], tmp_path, f"export{number}.log")
            assert command.wait(180) == 0, (tmp_path / f"export{number}.log").read_text()
            joined, exported = load(next(tmp_path.rglob(f"{number}.safetensors"))), load(written)
            assert joined.origin.client == exported.origin.client == "", "nobody asked for --with-client"
            assert joined(here_inputs(number)).tolist() == exported(here_inputs(number)).tolist()
        watched = sepal(["watch", "three"], tmp_path, "watch.log")
        assert watched.wait(180) == 0
        watched_lines = (tmp_path / "watch.log").read_text()
        assert "5/5" in watched_lines
        assert "three closing evaluation" in watched_lines
    finally:
        for process in [*clients, server]:
            process.send_signal(signal.SIGTERM)
            process.wait(180)
    end = time.monotonic() + 20
    while left(tmp_path / "home") and time.monotonic() < end:
        time.sleep(0.5)
    assert left(tmp_path / "home") == []


@pytest.mark.parametrize(
    "alone", [pytest.param(False, id="with its processes", marks=pytest.mark.long), pytest.param(True, id="alone")]
)
def test_a_server_that_was_killed_continues_under_its_name_and_its_clients_come_back(tmp_path, alone):
    """With all that `sepal serve` had started, as when its machine stops, or alone, so that the others keep its ports.
    One client's SuperNode ends as well, as Flower's does when a call is not authenticated.
    """
    ports = [str(free_port()), str(free_port())]
    keys = ["--set", "dataset=digits", "--set", "rounds=4", "--set", "evaluate-every=0", "--name", "back"]
    arguments = ["serve", *keys, "--port", ports[0], "--control", ports[1]]
    servers = [sepal(arguments, tmp_path, "first.log")]
    clients = [
        sepal(["join", f"127.0.0.1:{ports[0]}", "--partition", str(number), "--of", "2"], tmp_path, f"join{number}.log")
        for number in range(2)
    ]
    lines = tmp_path / "runs" / "back" / "metrics.jsonl"
    try:
        end = time.monotonic() + 120
        while not (lines.exists() and lines.read_text().count("\n")) and time.monotonic() < end:
            time.sleep(0.05)
        parent = psutil.Process(servers[0].pid)
        family = [parent] if alone else [*parent.children(recursive=True), parent]
        for process in family:
            process.kill()
        psutil.wait_procs(family, 30)
        children = psutil.Process(clients[0].pid).children(recursive=True)
        next(child for child in children if "sepal.engines.flower.node" in child.cmdline()).send_signal(signal.SIGINT)
        before = lines.read_text().splitlines()
        assert 1 <= len(before) < 5
        servers.append(sepal(arguments, tmp_path, "second.log"))
        assert servers[1].wait(240) == 0, (tmp_path / "second.log").read_text()[-2000:]
    finally:
        for process in [*clients, *servers]:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert ("of a `sepal serve` that was killed" in (tmp_path / "second.log").read_text()) is alone
    assert "the SuperNode ended" in (tmp_path / "join0.log").read_text()
    after = lines.read_text().splitlines()
    assert after[: len(before)] == before
    assert [json.loads(line)["round"] for line in after] == [1, 2, 3, 4, 5]
    whole = run_in_process(assemble({"dataset": "digits", "rounds": 4, "evaluate-every": 0, "clients": 2}))
    digest = json.loads((lines.parent / "summary.json").read_text())["weights_sha256"]
    assert digest == digest_arrays(whole.algorithm.model(whole.progress.server))


def test_a_served_run_goes_back_to_an_earlier_round_and_its_clients_with_it(tmp_path):
    """The clients stay joined: they still have the versions that the checkpoint names."""
    ports = [str(free_port()), str(free_port())]
    keys = ["--set", "dataset=digits", "--set", "rounds=4", "--set", "checkpoint-every=1", "--set", "method=fedpse"]
    arguments = ["serve", *keys, "--name", "back", "--port", ports[0], "--control", ports[1]]
    join = ["join", f"127.0.0.1:{ports[0]}", "--of", "2", "--partition"]
    clients = [sepal([*join, str(number)], tmp_path, f"join{number}.log") for number in range(2)]
    lines, summary = (tmp_path / "runs" / "back" / name for name in ("metrics.jsonl", "summary.json"))
    try:
        results = []
        for attempt, option in enumerate(((), ("--from-round", "3"))):
            server = sepal([*arguments, *option], tmp_path, f"{attempt}.log")
            assert server.wait(240) == 0, (tmp_path / f"{attempt}.log").read_text()[-2000:]
            results.append((lines.read_text().splitlines(), json.loads(summary.read_text())["weights_sha256"]))
        refused = sepal([*arguments, "--from-round", "1"], tmp_path, "refused.log")
        assert refused.wait(60) == 2
    finally:
        for process in clients:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    (before, digest), (after, again) = results
    assert after[:3] == before[:3]
    assert after[3] != before[3], "its seconds differ: round 4 was done again"
    assert [json.loads(line)["round"] for line in after] == [1, 2, 3, 4, 5]
    assert again == digest
    words = "--from-round: expected the round of a checkpoint: 3, 4, 5, got 1"
    assert words in (tmp_path / "refused.log").read_text()
    assert lines.read_text().splitlines() == after, "what is refused changes nothing"


def test_one_option_on_each_side_gives_tls_and_node_keys(tmp_path):
    """What docs/deployment.md does on three hosts, each with its directory of `sepal certs`.

    With `--log text` on all of them, and `--no-accuracies` at site-b.
    """
    make_certificates(tmp_path / "fl-certs", nodes=["site-a", "site-b"])
    fleet, control = free_port(), free_port()
    arguments = ["--name", "sites", "--port", str(fleet), "--control", str(control), "--certs", "fl-certs/server"]
    sets = ["--set", "dataset=digits", "--set", "rounds=1", "--set", "evaluate-every=1", "--log", "text"]
    server = sepal(["serve", *arguments, *sets], tmp_path, "serve.log")
    clients = []
    try:
        end = time.monotonic() + 90
        while not listening(fleet) and time.monotonic() < end:
            time.sleep(0.2)
        (refused,) = [finding.check for finding in examine(f"127.0.0.1:{fleet}", None) if not finding.good]
        assert refused == "TLS", "plain text is not taken"
        while "clients join with" not in (tmp_path / "serve.log").read_text() and time.monotonic() < end:
            time.sleep(0.01)
        credentials = NodeCredentials.of(tmp_path / "fl-certs" / "nodes" / "site-b", "site-b")
        assert not [finding for finding in examine(f"127.0.0.1:{fleet}", credentials) if not finding.good], (
            "keys come first"
        )
        for number, (name, more) in enumerate((("site-a", []), ("site-b", ["--no-accuracies"]))):
            keys = ["--certs", f"fl-certs/nodes/{name}", "--name", name, "--partition", str(number), "--of", "2"]
            keys += ["--log", "text", *more]
            clients.append(sepal(["join", f"127.0.0.1:{fleet}", *keys], tmp_path, f"{name}.log"))
        assert server.wait(300) == 0, (tmp_path / "serve.log").read_text()[-2000:]
    finally:
        for process in [*clients, server]:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    entries = (tmp_path / "runs" / "sites" / "ledger.jsonl").read_text().splitlines()
    assert {json.loads(line)["client"] for line in entries} == {"site-a", "site-b"}
    assert "registered: site-a" in (tmp_path / "serve.log").read_text()
    for log in ("serve.log", "site-a.log", "site-b.log"):
        log_text = (tmp_path / log).read_text()
        assert "nothing is encrypted" not in log_text
        assert "--insecure" not in log_text, "the commands are printed"
        for line in log_text.splitlines():
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [s+car]", line), line
    lines = [json.loads(line) for line in (tmp_path / "runs" / "sites" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        open_site, quiet_site = line["clients"]
        assert open_site["trained"] > 0
        assert [quiet_site[view] for view in ("received", "trained", "kept", "pooled")] == [None] * 4
        assert set(quiet_site["metrics"]) == COSTS
        assert line["not_accepted"] == []


def sockets(process: int) -> dict[int, str]:
    """Port to address of what a process and its descendants listen on."""
    parent, connections = psutil.Process(process), []
    for member in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            connections += member.net_connections("tcp")
    return {c.laddr.port: c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def test_only_the_fleet_api_listens_beyond_this_machine(tmp_path):
    fleet, control = free_port(), free_port()
    arguments = ["serve", "--insecure", "--host", "0.0.0.0", "--port", str(fleet), "--control", str(control)]
    server = sepal([*arguments, "--set", "dataset=digits", "--name", "open"], tmp_path, "serve.log")
    try:
        log = tmp_path / "serve.log"
        end = time.monotonic() + 90
        while "waiting for clients" not in log.read_text() and time.monotonic() < end:
            time.sleep(0.2)
        listening = sockets(server.pid)
        assert listening[fleet] in ("0.0.0.0", "::")  # gRPC takes both families
        assert {port: ip for port, ip in listening.items() if port != fleet and ip not in ("127.0.0.1", "::1")} == {}
        # 127.0.0.2 is this machine as a neighbour sees it: only what is bound to all addresses answers there
        with socket.socket() as neighbour:
            assert neighbour.connect_ex(("127.0.0.2", fleet)) == 0
        stranger = tmp_path / "stranger"
        (stranger / "evil").mkdir(parents=True)
        (stranger / "config.toml").write_text(
            f'[superlink]\ndefault = "victim"\n[superlink.victim]\naddress = "127.0.0.2:{control}"\ninsecure = true\n'
        )
        (stranger / "evil" / "pyproject.toml").write_text(EVIL)
        (stranger / "evil" / "evil.py").write_text(f"open({str(tmp_path / 'harmed')!r}, 'w').close()\n")
        environment = {**os.environ, "FLWR_HOME": str(stranger), "FLWR_DISABLE_UPDATE_CHECK": "1"}
        command = [str(Path(sys.executable).parent / "flwr"), "run", str(stranger / "evil"), "victim"]
        attack = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        output = attack.stdout + attack.stderr
        assert "Successfully started run" not in output
        assert attack.returncode != 0, output
        assert not (tmp_path / "harmed").exists()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_a_taken_port_is_one_line(tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        server = sepal(["serve", "--port", port, "--control", str(free_port())], tmp_path, "serve.log")
        assert server.wait(60) == 2
    words = f"sepal: --port: expected a port of this machine that is free, got 127.0.0.1:{port}: Address already in use"
    assert words in (tmp_path / "serve.log").read_text()


def test_a_stranger_who_takes_all_calls_of_the_server_stops_no_client_for_good(tmp_path):
    """1,000 calls without a body, which Flower admits before it asks for a key: others get RESOURCE_EXHAUSTED, which
    Flower's SuperNode does not retry. It was alive without its loop, and `sepal join` waited for ever. Over HTTP there
    is no such limit: with 500 requests without a body, the run goes on.
    """
    ports = [str(free_port()), str(free_port())]
    keys = ["--set", "dataset=digits", "--set", "rounds=3", "--name", "stall"]
    server = sepal(["serve", *keys, "--port", ports[0], "--control", ports[1]], tmp_path, "serve.log")
    client = ["join", f"127.0.0.1:{ports[0]}", "--of", "2", "--partition"]
    clients = [sepal([*client, "0"], tmp_path, "join0.log")]
    log = tmp_path / "join0.log"

    def until(words: str, count: int = 1) -> None:
        end = time.monotonic() + 120
        while log.read_text().count(words) < count:
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.2)

    def silence():
        stop.wait()
        yield b""

    def request():
        connection = socket.create_connection(("127.0.0.1", int(ports[0])))
        connection.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n")
        return stalled.enter_context(connection)

    stop, stalled = threading.Event(), contextlib.ExitStack()
    try:
        until("sepal: joined")
        if speaks_http():
            assert len([request() for _ in range(500)]) == 500
        else:
            with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
                call = channel.stream_unary("/flwr.proto.Fleet/PullMessages")
                calls = [call.future(silence()) for _ in range(1000)]
                until("the SuperNode ended, a call was not answered")
                stop.set()
                for pending in calls:
                    pending.cancel()
            until("sepal: joined", 2)
        clients.append(sepal([*client, "1"], tmp_path, "join1.log"))
        assert server.wait(240) == 0, (tmp_path / "serve.log").read_text()[-2000:]
    finally:
        stop.set()
        stalled.close()
        for process in [*clients, server]:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert json.loads((tmp_path / "runs" / "stall" / "summary.json").read_text())["complete"]


def test_a_registered_client_cannot_take_the_name_of_one_that_has_not_come_yet(tmp_path):
    make_certificates(tmp_path / "fl-certs", nodes=["site-a", "site-b"])
    ports = [str(free_port()), str(free_port())]
    credentials = tmp_path / "fl-certs" / "nodes" / "site-b"
    join = ["join", f"127.0.0.1:{ports[0]}", "--certs", str(credentials), "--name", "site-a"]
    honest = sepal(join, tmp_path, "honest.log")
    try:
        assert honest.wait(60) == 2
    finally:
        honest.kill()
    log_text = (tmp_path / "honest.log").read_text()
    assert f"sepal: --name: expected site-b, the name of the key in {credentials}, got site-a" in log_text
    (credentials / "key.pub").unlink()  # who lies has no such check
    keys = ["--set", "dataset=digits", "--set", "rounds=1", "--set", "clients=1", "--certs", "fl-certs/server"]
    server = sepal(["serve", *keys, "--port", ports[0], "--control", ports[1]], tmp_path, "serve.log")
    client = sepal(join, tmp_path, "join.log")
    try:
        assert server.wait(240) == 2, (tmp_path / "serve.log").read_text()[-2000:]
    finally:
        for process in (client, server):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert "client site-a: expected site-b, the name of its node's key" in (tmp_path / "serve.log").read_text()
