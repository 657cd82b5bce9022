"""``sepal certs`` and ``sepal deploy check``: what they say, and how they end."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sepal.cli.joining import shares
from sepal.cli.main import app
from sepal.cli.serving import how_to_join
from sepal.engines.flower import rejoining, submission
from sepal.engines.flower.engine import AppRun
from sepal.engines.flower.probe import Finding
from sepal.engines.flower.processes import FlowerError, free_port
from sepal.engines.flower.submission import MOST_AGAIN, UNNAMED, alone, run_bundle, state_of
from sepal.errors import ConfigError
from sepal.operation.addresses import loopback
from sepal.strategies.assembly import assemble


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_certs_say_what_goes_where(here):
    result = sepal("certs", "certs", "--host", "fl.example", "--nodes", "1", "--node", "site")
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.output.splitlines()] == [
        f"{here}/certs/{part}" for part in ("ca", "server", "nodes/client-00000", "nodes/site")
    ]
    again = sepal("certs", "certs", "--host", "fl.example")
    assert again.output.count("kept") == 2
    more = sepal("certs", "certs", "--node", "site", "--node", "other").output.splitlines()
    assert [line.split("; ")[0].removeprefix(f"{here}/certs/") for line in more[2:]] == [
        "nodes/site: kept",
        "nodes/other: made",
    ]


def test_the_passphrase_of_a_new_authority_is_asked_for_twice_and_then_where_it_is_needed(here, monkeypatch):
    result = CliRunner().invoke(app, ["certs", "fl", "--encrypt"], input="right\nright\n")
    assert result.exit_code == 0, result.output
    assert b"ENCRYPTED" in (here / "fl" / "ca" / "ca.key").read_bytes()
    assert "right" not in result.output
    assert sepal("certs", "fl", "--node", "a").exit_code == 0
    assert CliRunner().invoke(app, ["certs", "fl", "--host", "a.localhost"], input="wrong\n").exit_code == 2
    monkeypatch.setenv("SEPAL_CA_PASSPHRASE", "right")
    assert sepal("certs", "fl", "--host", "a.localhost").exit_code == 0


def test_a_key_is_revoked_by_its_name(here):
    sepal("certs", "fl", "--node", "site-a", "--node", "site-b")
    output = sepal("revoke", "site-a", "--certs", "fl/server").stdout
    assert "site-a: revoked" in output
    assert [path.name for path in (here / "fl/server/nodes").glob("*.pub")] == ["site-b.pub"]
    again = sepal("revoke", "site-a", "--certs", "fl/server")
    assert again.exit_code == 2
    assert "NAME: expected one of site-b in " in str(again.output) + str(again.exception)


def test_a_closed_port_is_said_in_one_line_and_the_exit_code_is_not_0(here):
    sepal("certs", "certs", "--node", "site")
    address = f"127.0.0.1:{free_port()}"
    result = sepal("deploy", "check", address, "--certs", "certs", "--name", "site")
    assert result.exit_code == 1
    assert f"BAD  port: {address}: closed: no server listens there" in result.output.splitlines()


def test_a_name_that_does_not_resolve_is_said(here):
    result = sepal("deploy", "check", "no-such-host.invalid:9092")
    assert result.exit_code == 1
    assert "BAD  port: no-such-host.invalid:9092: the name cannot be resolved" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--port", "99999"], "1<=x<=65535"),
        (["serve", "--port", "9191", "--control", "9191"], "--control: expected another port than --port, got 9191"),
        (["serve", "--host", "203.0.113.7"], "--port: expected a port of this machine that is free, got 203.0.113.7:"),
        (
            ["join", "h:1", "--data", "nomod:f"],
            "sepal: --data: expected package.module:function that can be imported, got nomod:f (No module",
        ),
        (["join", "h:1", "--data", "broken:f"], "broken:f (RuntimeError: no good (broken.py:1 in <module>))"),
        (["join", "h:1", "--export", "nowhere/m.safetensors"], "--export: expected a file in a directory that can be"),
        (["join", "h:1", "--claim", "--name", "a", "--certs", "c"], "--claim: expected no --name or --partition"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_started(here, monkeypatch, arguments, words):
    monkeypatch.setenv("SEPAL_USER_PATH", str(here))
    (here / "broken.py").write_text("raise RuntimeError('no good')")
    result = sepal(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize("command", [["serve", "--host", "0.0.0.0"], ["join", "fl.example:9092"]])
def test_plain_text_beyond_this_machine_must_be_asked_for(here, monkeypatch, command):
    result = sepal(*command)
    assert result.exit_code == 2
    assert f"--certs: expected a directory of `sepal certs` for {command[-1][:7]}" in result.stderr
    begun = []
    monkeypatch.setattr(rejoining, "stay", lambda *arguments: begun.append("join"))
    monkeypatch.setattr(submission, "alone", lambda path: begun.append("serve") or nullcontext().none)  # ends there
    sepal(*command, "--insecure")
    assert begun == command[:1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), {"partition-id": 0, "num-partitions": 1}),
        (("--data-dir", "own"), {}),
        (("--data-dir", "shared", "--partition", 0), {"partition-id": 0, "num-partitions": 1}),
        (("--data-dir", "shared", "--of", 3), {"partition-id": 0, "num-partitions": 3}),
        (("--partition", 2, "--of", 3), {"partition-id": 2, "num-partitions": 3}),
    ],
)
def test_a_client_with_files_of_its_own_has_no_number_unless_one_is_given(here, monkeypatch, options, part):
    node_configs = []
    monkeypatch.setattr(rejoining, "stay", lambda joined_client: node_configs.append(joined_client.node_config))
    result = sepal("join", "127.0.0.1:9092", "--name", "site", *options)
    assert result.exit_code == 0, result.output
    assert {key: value for key, value in node_configs[0].items() if key in ("partition-id", "num-partitions")} == part


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"dataset": "digits", "clients": 3}, "sepal join h:1 --partition K --of 3"),
        ({"dataset": "folder", "clients": 3}, "sepal join h:1 --name NAME --data-dir ITS_FILES"),
        ({"dataset": "hf", "clients": 3}, "sepal join h:1 --name NAME --data-dir ITS_FILES"),
        ({"dataset": "own", "clients": 3}, "sepal join h:1 --name NAME --data MODULE:FUNCTION"),
    ],
)
def test_the_server_says_how_clients_join_by_whose_the_data_are(flat, words):
    assert how_to_join("h", 1, flat) == words


def test_which_addresses_are_this_machine():
    local_hosts = ("127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST", "::1", "[::1]", "::ffff:127.0.0.1")
    others = (
        "",
        "0.0.0.0",
        "::",
        "::ffff:10.0.0.5",
        "10.0.0.5",
        "fl.example",
        "localhost.example",
        "127.0.0.1.example",
    )
    assert [loopback(host) for host in (*local_hosts, *others)] == [True] * len(local_hosts) + [False] * len(others)


def test_several_capacities_are_taken_in_turn():
    assert shares("1,0.5,0.25") == [1.0, 0.5, 0.25]
    with pytest.raises(ConfigError, match=r"^--capacity: expected a number, or several"):
        shares("much")


def test_a_second_server_of_the_same_home_is_refused(tmp_path):
    refused = pytest.raises(ConfigError, match="SEPAL_HOME: expected a directory of its own for each server")
    with alone(tmp_path / "server"), refused, alone(tmp_path / "server"):
        pass
    with alone(tmp_path / "server"):
        pass


def test_what_a_server_keeps_is_its_runs(tmp_path):
    """A second deployment spoke of the first one's nodes, and had its database."""
    first, second = state_of(tmp_path, "first"), state_of(tmp_path, "second")
    (first / "nodes.json").write_text("{}")
    assert not list(second.iterdir())
    assert state_of(tmp_path, "first") == first
    assert (first / "nodes.json").exists(), "the same run goes on with its nodes"
    assert {directory.stat().st_mode & 0o077 for directory in (first, second)} == {0}


def test_a_run_without_a_name_begins_with_nothing_but_the_logs(tmp_path):
    state_directory = state_of(tmp_path, "")
    for name in ("nodes.json", "state.db", "run.log", "run.log.1"):
        (state_directory / name).write_text("")
    (state_directory / "app").mkdir()
    assert sorted(path.name for path in state_of(tmp_path, "").iterdir()) == ["run.log", "run.log.1"]
    with pytest.raises(ConfigError, match=r"^name: "):
        assemble({"name": state_directory.name})


def test_a_server_keeps_its_state_by_the_name_of_its_run(here, monkeypatch):
    homes = []

    class Stopping:
        def __init__(self, home, **rest):
            homes.append(home)
            raise ConfigError("here", "an end", "one")

    monkeypatch.setattr("sepal.engines.flower.engine.Flower", Stopping)
    ports = ["--port", str(free_port()), "--control", str(free_port())]
    for name in (["--name", "first"], ["--set", "name=second"], []):
        CliRunner().invoke(app, ["serve", *ports, *name])
    assert [home.relative_to(here / "home" / "server") for home in homes] == [*map(Path, ("first", "second", UNNAMED))]


def test_a_second_process_of_a_client_is_refused_before_it_touches_its_home(tmp_path, monkeypatch):
    """It emptied the first one's directory of apps and wrote into its log, before the server refused its key."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    monkeypatch.setattr(rejoining, "ENDING", 0.0)
    monkeypatch.setattr(rejoining, "wait_until_welcome", lambda *arguments: pytest.fail("it began"))
    app = tmp_path / "clients" / "site" / "apps" / "one"
    app.mkdir(parents=True, mode=0o700)
    refused = pytest.raises(ConfigError, match="SEPAL_HOME: expected a directory of its own for each client site, got")
    with alone(tmp_path / "clients" / "site"), refused:
        rejoining.stay(rejoining.JoinedClient("site", {}, "127.0.0.1:1"))
    assert app.exists()


def test_only_a_client_that_was_welcome_before_waits_for_a_server_that_answers_wrongly(monkeypatch):
    """As one that just starts may; at a first try it is another server, and the user has to know."""
    wrong, now = [Finding("API", False, "no gRPC")] * 3, [0.0]
    answers = iter([*([finding] for finding in wrong), []])
    monkeypatch.setattr(rejoining, "examine", lambda address, credentials: iter(next(answers)))
    monkeypatch.setattr(rejoining.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rejoining.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    rejoining.wait_until_welcome("h:1", None, 90.0, rejoining=True)
    assert now[0] == 3
    for patience, again in ((90.0, False), (1.0, True)):
        monkeypatch.setattr(rejoining, "examine", lambda address, credentials: iter(wrong))
        with pytest.raises(ConfigError, match="h:1: API: expected one with which a client can join, got no gRPC"):
            rejoining.wait_until_welcome("h:1", None, patience, again)


def test_a_client_whose_clock_differs_from_the_servers_waits_and_says_by_how_much(monkeypatch):
    """Once, it said nothing and ended after 90 s, with a run that waits for it. At a first try it does end."""
    now, lines = [0.0], []
    wrong = [Finding("clock", False, "3600.0 s ahead of the server's: set it")]
    answers = iter([*[wrong] * 500, []])
    monkeypatch.setattr(rejoining, "examine", lambda address, credentials: iter(next(answers)))
    monkeypatch.setattr(rejoining.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rejoining.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    rejoining.wait_until_welcome("h:1", None, 90.0, True, lines.append)
    assert now[0] == 500
    assert lines == ["sepal: this machine's clock is 3600.0 s ahead of the server's: set it; waiting for it"]
    monkeypatch.setattr(rejoining, "examine", lambda address, credentials: iter(wrong))
    with pytest.raises(ConfigError, match=r"h:1: clock: .* got 3600\.0 s ahead of the server's: set it"):
        rejoining.wait_until_welcome("h:1", None)


ENDED = {
    "expired": "Failed to push object with ID 'c7' for run 1. The push session may have expired or been replaced.",
    "silent": "No heartbeat received from the task",
    "refused": "Server error '500 Internal Server Error' for url 'http://127.0.0.1:9093/v1/runtime/push-messages'",
    "ours": "clients: expected 2 within 600 s, got 1",
}


class Runs:
    """In the place of Flower: runs that end for these reasons, then one that comes to its end."""

    def __init__(self, *reasons):
        self.statuses = [*(("finished:failed", reason) for reason in reasons), ("finished:completed", "")]
        self.started = 0

    def run_app(self, *arguments, **keys):
        self.started += 1
        status, reason = self.statuses[self.started - 1]
        return AppRun(str(self.started), status, (), reason)


@pytest.mark.parametrize(
    ("reasons", "name", "started"),
    [
        (("silent",), "a", 2),
        (("refused", "silent"), "a", 3),
        (("expired",), "a", 2),
        (("silent",) * 9, "a", MOST_AGAIN + 1),
        (("silent",), "", 1),
        (("ours",), "a", 1),
        (("silent", "ours"), "a", 2),
    ],
    ids=["once", "twice", "while it sent", "always", "without a name", "by Sepal", "by Sepal later"],
)
def test_a_run_that_flower_has_ended_is_started_again_from_its_record(tmp_path, monkeypatch, reasons, name, started):
    monkeypatch.setattr(submission.time, "sleep", lambda seconds: None)
    runs, lines = Runs(*(ENDED[reason] for reason in reasons)), []
    ended = run_bundle(runs, tmp_path, {"name": name}, None, lines.append, lines.append, MOST_AGAIN)
    assert runs.started == started
    assert ended.complete == (started == len(runs.statuses))
    assert len([line for line in lines if "Flower has ended the run" in line]) == started - 1


class Interrupted(BaseException):
    """Ctrl-C."""


class Nodes:
    """In the place of Flower: SuperNodes that end after so many seconds with a code; the last one by Ctrl-C."""

    def __init__(self, home, codes):
        self.codes, self.started, self.now = list(codes), 0, 0.0
        self.home = home

    def __call__(self, *arguments, **keys):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        return None

    def take_over(self, record):
        return 0

    def start_node(self, *arguments):
        self.started += 1
        return self

    def wait(self, timeout):
        if not self.codes:
            raise Interrupted
        seconds, code = self.codes.pop(0)
        self.now += seconds
        return code


@pytest.mark.parametrize(
    ("codes", "credentials", "ends"),
    [
        ([(500, 0), (500, 0)], None, Interrupted),  # a clock jumped, twice
        ([(500, 75), (1, 75), (1, 75)], None, Interrupted),  # the server was at its limit of calls, for a while
        ([(500, 0), (1, 2), (40, 2)], "keys", Interrupted),  # the session of before counts as online for a while
        ([(500, 0), (1, 2), *[(80, 2)] * 50], "keys", Interrupted),  # another has activated its key, for an hour
        ([(500, 2), *[(2, 2)] * 90], "keys", Interrupted),  # and it was that which ended it
        ([(1, 2), (80, 2), (80, 2)], "keys", FlowerError),  # it never joined
        ([(500, 2)], None, FlowerError),
    ],
)
def test_a_supernode_that_ends_by_itself_is_started_again(monkeypatch, tmp_path, codes, credentials, ends):
    """Flower's ends with code 0 if a call is not authenticated, as when a clock jumps between a call and its check."""
    nodes = Nodes(tmp_path, codes)
    (tmp_path / "apps" / "half").mkdir(parents=True)
    monkeypatch.setattr(rejoining, "Flower", nodes)
    monkeypatch.setattr(rejoining, "wait_until_welcome", lambda *arguments: None)
    monkeypatch.setattr(rejoining.time, "monotonic", lambda: nodes.now)
    monkeypatch.setattr(rejoining.time, "sleep", lambda seconds: None)
    with pytest.raises(ends):
        rejoining.stay(rejoining.JoinedClient("site", {}, "127.0.0.1:1", credentials))
    assert nodes.started == len(codes) + (ends is Interrupted)
    assert (tmp_path / rejoining.ALIVE).read_text() == ("running\n" if ends is Interrupted else "waiting\n")
    assert not (tmp_path / "apps").exists(), "a kill may have left a bundle half unpacked"


def test_serve_refuses_a_flower_that_is_not_supported_before_it_starts_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("sepal.flower.versions.version", lambda name: "1.43.0")
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sepal.engines.flower.engine.Flower.spawn", None)
    result = CliRunner().invoke(app, ["serve", "--set", "dataset=digits", "--set", "clients=2", "--port", "19092"])
    assert result.exit_code == 2, result.output
    assert result.stderr.strip().splitlines()[-1] == "sepal: flwr: expected 1.39 to 1.42, got 1.43.0"
    assert not (tmp_path / "home" / "server" / "superlink.log").exists()
