"""Real Flower processes: SuperLink and SuperNodes over gRPC, and the simulation, against the in-process engine.

One deployment serves all tests of this file; each run has its own name and directory. ``make e2e`` runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import tomli_w

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from sepal.engines.flower.processes import FlowerError
from sepal.engines.in_process import run_in_process
from sepal.runs.central_secret import SECRET
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.central_noise import of_seed
from sepal.storage.files import write_atomically
from sepal.strategies.assembly import assemble
from tests.e2e.test_user_files import crowd

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
MIXED = {"clients-per-round": 2, "capacity.profile": "0.05,0.25,1", "seed": 12}  # seed 12 draws all three capacities
CASES = {
    # Nothing is learnt at this rate; five rounds for the first mean, and two without a rise.
    "fedavg-stops": {"method": "fedavg", "lr": 1e-6, "stop-after": 2, "evaluate-every": 0, "rounds": 9},
    "fedavg-secure": {"method": "fedavg", "secure": "sum"},
    "fedavg-distributed": {
        "method": "fedavg",
        "secure": "sum",
        "privacy.mode": "distributed",
        "privacy.clip": 0.5,
        "privacy.noise": 0.05,
    },
    "fedper-central": {
        "method": "fedper",
        "clients-per-round": 2,
        "privacy.mode": "central",
        "privacy.sampling": "poisson",
        "privacy.clip": 0.5,
        "privacy.noise": 0.15,
        "privacy.quantile": 0.5,
    },
    "ditto-stc-two": {  # residuals on both sides; clients send sums, not counts
        "method": "ditto",
        "clients-per-round": 2,
        "compress.name": "stc",
        "metric": "balanced-accuracy",
    },
    "fedavg-ft-drift": {
        "method": "fedavg-ft",
        "clients-per-round": 2,
        "partition.name": "quantity-skew",
        "partition.noise": 0.2,
        "drift.name": "label",
    },
    "fedbuff-two": {"method": "fedbuff", "clients-per-round": 2, "fedbuff.buffer": 2},  # in the time of its own profile
    "fedpse-all": {"method": "fedpse"},
    "fedpse-two": {"method": "fedpse", "clients-per-round": 2},
    "subfedavg-un": {"method": "subfedavg", "clients-per-round": 2, "subfedavg.accuracy": 0.1},
    "subfedavg-hy": {
        "method": "subfedavg",
        "clients-per-round": 2,
        "subfedavg.variant": "hy",
        "subfedavg.accuracy": 0.1,
        "model": "digits-cnn-bn",
    },
    "pa3dfl-mixed": {"method": "pa3dfl", **MIXED},
    "fedrolex-mixed": {"method": "fedrolex", **MIXED},
    "dmpfl-two": {"method": "dmpfl", "clients-per-round": 2, "dmpfl.iterations": 1},
    "pfedgate-sample": {"method": "pfedgate", "pfedgate.keep": 0.3},  # at .5 every block is on for some example
    "pfedgate-batch-two": {
        "method": "pfedgate",
        "clients-per-round": 2,
        "pfedgate.gating": "batch",
        "pfedgate.keep": 0.5,
        "pfedgate.keep-optimizer": True,
        "momentum": 0.9,
    },
    "pfedgate-client": {"method": "pfedgate", "pfedgate.gating": "client", "capacity.profile": "0.15,0.6"},
}
WIDTHS = {"pa3dfl-mixed": [1, 1 / 2, 3 / 16], "fedrolex-mixed": [1, 1 / 2, 1 / 8]}  # multiples of 1/16; of 1/2ⁿ
DISTURBED = ("fedpse-all", "fedpse-two")  # deployed by the tests that kill a process of theirs
UNREPEATABLE = ("fedavg-distributed",)  # deployed, each client has noise of its own, which nothing can inject
# Of these a deployment adds nothing to another case: the same kinds of messages and states.
LONG = ("subfedavg-un", "fedrolex-mixed", "dmpfl-two", "pfedgate-sample", "pfedgate-client")
# Ray starts anew for each, 35 s and more
SIMULATED = (
    "pa3dfl-mixed",
    "fedavg-secure",
    "fedavg-distributed",
    "fedavg-stops",
    "ditto-stc-two",
    "pfedgate-client",
    "fedper-central",
    "fedavg-ft-drift",
    "fedbuff-two",
)
FLAT = {
    "dataset": "digits",
    "clients": 3,
    "rounds": 4,
    "evaluate-every": 3,
    "partition.name": "lambda-mix",
    "partition.subsample": 300,
    "timeout": 240.0,
    "seed": 11,
}


def hashes(directory: Path) -> tuple[str, str]:
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["rounds"] == (7 if "stops" in directory.name else FLAT["rounds"])
    return summary["weights_sha256"], summary["clients_sha256"]


def assert_widths(directory: Path, case: str) -> None:
    """In the cases of mixed capacity each client has a width of its own, and two rounds of two train all three."""
    if case in WIDTHS:
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        for round_lines in (lines[:2], lines[-1:]):
            widths = {client["name"]: client["metrics"]["width"] for line in round_lines for client in line["clients"]}
            assert [widths[name] for name in sorted(widths)] == WIDTHS[case]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The in-process engine's hashes, computed once a case."""
    hashes_by_case = {}

    def of(case):
        if case not in hashes_by_case:
            path = tmp_path_factory.mktemp("expected") / case
            assembly = assemble({**FLAT, **CASES[case], "name": case})
            with RunDirectory(path, assembly, IN_PROCESS) as directory:
                run_in_process(assembly, store=directory.store(), observers=[directory])
            assert_widths(path, case)
            hashes_by_case[case] = hashes(path)
        return hashes_by_case[case]

    return of


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The app that ``sepal serve`` submits: no code in it. The simulation runs the checkout's, with code."""
    return write_app(tmp_path_factory.mktemp("app"))[0].parent


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("sepal-home")
    with Flower(environment={"SEPAL_HOME": str(home)}) as deployed:
        deployed.start_superlink()
        for number in range(3):
            deployed.start_node(f"node{number}", {"partition-id": number, "num-partitions": 3})
        yield deployed
    assert not deployed.left(), "a process was left behind"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.long] * (case in LONG))
        for case in CASES
        if case not in (*DISTURBED, *UNREPEATABLE)
    ],
)
def test_a_deployment_over_grpc_gives_the_same_bits(case, app, deployment, expected, tmp_path):
    if CASES[case].get("privacy.mode") == "central":  # a deployed server's secret is its own; here it is the seed's
        (tmp_path / case).mkdir(mode=0o700)
        write_atomically(tmp_path / case / SECRET, of_seed(FLAT["seed"]), mode=0o600)
    run = deployment.run_app(app, {**FLAT, **CASES[case], "name": case, "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert hashes(tmp_path / case) == expected(case)
    assert_widths(tmp_path / case, case)


@pytest.mark.parametrize("case", UNREPEATABLE)
def test_deployed_shares_of_noise_are_each_clients_own_and_charged(case, app, deployment, expected, tmp_path):
    run = deployment.run_app(app, {**FLAT, **CASES[case], "name": case, "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert hashes(tmp_path / case) != expected(case)
    assert any("against a server that follows the protocol" in line for line in run.log)
    summary = json.loads((tmp_path / case / "summary.json").read_text())
    assert (summary["privacy"]["releases"], summary["privacy"]["simulated"]) == (FLAT["rounds"], False)
    assert not list(tmp_path.rglob(SECRET))


def test_an_app_with_code_is_refused_by_every_client_in_one_line(deployment, tmp_path):
    """``flwr run .`` in a checkout sends its code; on the old clients it ran."""
    config = {**FLAT, "name": "code", "out": str(tmp_path), "timeout": 60.0, "rounds": 1}
    run = deployment.run_app(ROOT, config)
    assert run.status == "finished:failed"
    assert "app bundle: expected no code" in run.reason + "\n".join(run.log)
    for number in range(3):
        assert "app bundle: expected no code" in (deployment.home / f"node{number}.log").read_text()


def simulate(cases, expected, tmp_path):
    with Flower(environment={"SEPAL_HOME": str(tmp_path / "home")}) as flower:
        crowd(
            flower.home
        )  # Ray puts the driver's working directory, here the SuperLink's home, first on an actor's path
        flower.start_simulation()
        for case in cases:
            config = {**FLAT, **CASES[case], "name": case, "out": str(tmp_path)}
            run = flower.run_app(ROOT, config, "num-supernodes=3 client-resources-num-cpus=1")
            assert run.status == "finished:completed", "\n".join(run.log[-80:])
            assert hashes(tmp_path / case) == expected(case)
            assert_widths(tmp_path / case, case)
    assert not flower.left(), "a process was left behind"


@pytest.mark.simulation
def test_the_simulation_gives_the_same_bits_beside_a_users_files_of_our_names(expected, tmp_path):
    simulate(SIMULATED[:1], expected, tmp_path)


@pytest.mark.simulation
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_simulation_gives_the_same_bits_to_other_methods(expected, tmp_path):
    simulate(SIMULATED[1:], expected, tmp_path)


class At:
    """Does something once, as soon as the run has written the line of ``round``."""

    def __init__(self, path: Path, round: int, action):
        self._thread = threading.Thread(target=self._watch, args=(path / "metrics.jsonl", round, action), daemon=True)
        self.done = False
        self._thread.start()

    def _watch(self, path, round, action):
        end = time.monotonic() + 300
        while time.monotonic() < end:
            if path.exists() and len(path.read_text().splitlines()) >= round:
                action()
                self.done = True
                return
            time.sleep(0.1)


@pytest.mark.long  # chaos-quick kills such a process, too
def test_a_supernode_killed_in_mid_run_and_restarted_changes_nothing(app, deployment, expected, tmp_path):
    """kill -9 after round 2, started again three seconds later: it comes back under another node id."""

    def kill():
        process = deployment.nodes["node1"]
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(3)
        deployment.start_node("node1", {"partition-id": 1, "num-partitions": 3})

    killer = At(tmp_path / "node-killed", 2, kill)
    config = {**FLAT, **CASES["fedpse-all"], "name": "node-killed", "out": str(tmp_path)}
    run = deployment.run_app(app, config)
    assert killer.done
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert hashes(tmp_path / "node-killed") == expected("fedpse-all")


def server_app_process(deployment) -> psutil.Process:
    for process in deployment.left():
        if any("flwr-serverapp" in part for part in process.cmdline()):
            return process
    raise AssertionError("no ServerApp process")


@pytest.mark.long  # chaos-quick kills such a process, too
def test_a_server_killed_in_mid_run_and_started_again_changes_nothing(app, deployment, expected, tmp_path):
    """kill -9 of the ServerApp after round 3; the same run name, submitted again, goes on and ends the same.

    Flower holds the first run for running for another minute. The second need not wait for it.
    """
    killer = At(tmp_path / "server-killed", 3, lambda: server_app_process(deployment).kill())
    config = {**FLAT, **CASES["fedpse-two"], "name": "server-killed", "out": str(tmp_path), "checkpoint-every": 2}

    def submit():
        with contextlib.suppress(FlowerError):  # the deployment ends while this still follows the killed run
            deployment.run_app(app, config)

    threading.Thread(target=submit, daemon=True).start()
    end = time.monotonic() + 240
    while not killer.done and time.monotonic() < end:
        time.sleep(0.1)
    assert killer.done
    assert not (tmp_path / "server-killed" / "summary.json").exists()
    second = deployment.run_app(app, config)
    assert second.status == "finished:completed", "\n".join(second.log[-80:])
    assert hashes(tmp_path / "server-killed") == expected("fedpse-two")
    lines = [json.loads(line) for line in (tmp_path / "server-killed" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5], "a line was lost or doubled"


@pytest.mark.long
def test_a_run_that_has_ended_deploys_its_best_models_if_asked(app, deployment, tmp_path):
    """The closing round is had again with the best round's state, of the server and of each node's client."""
    keys = {**FLAT, **CASES["fedpse-two"], "evaluate-every": 1, "out": str(tmp_path)}

    def closed(name, final):
        run = deployment.run_app(app, {**keys, "name": name, "final-model": final})
        assert run.status == "finished:completed", "\n".join(run.log[-80:])
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        return summary.get("best_round"), summary["accuracy"]["kept"], hashes(tmp_path / name)

    last, best = closed("last", "last"), closed("best", "best")
    assert best != last
    assert closed("last", "best") == best


def test_submit_continues_a_run_whose_server_app_was_killed(deployment, expected, tmp_path):
    """What the service ``run`` of docker-compose.yml does. Flower calls the killed run failed after about a minute."""
    killer = At(tmp_path / "submitted", 2, lambda: server_app_process(deployment).kill())
    keys = {**FLAT, **CASES["fedpse-two"]}
    (tmp_path / "keys.toml").write_text(tomli_w.dumps(keys))
    command = [sys.executable, "-m", "sepal.cli", "submit", "--control", str(deployment.ports.control)]
    command += ["--config", "keys.toml", "--name", "submitted", "--out", str(tmp_path), "--attempts", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(tmp_path / "home")}
    completed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert killer.done
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
    assert "submitted again, it goes on where it was" in completed.stderr
    assert hashes(tmp_path / "submitted") == expected("fedpse-two")
