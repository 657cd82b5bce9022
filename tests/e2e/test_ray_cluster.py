"""Twelve runs on a Ray cluster of two nodes: when a node dies, the table is the local one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sepal.engines.in_process import run_in_process
from sepal.runs.claims import read_claims
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble
from sepal.study.clusters.records import read_submission
from tests.e2e.test_slurm import _figures, _table

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.simulation, pytest.mark.timeout(1200)]

PLAN = """
methods = ["fedavg-ft", "fedpse", "local"]
seeds = [0, 1, 2, 3]
[settings]
dataset = "digits"
clients = 3
rounds = 20
evaluate-every = 5
checkpoint-every = 2
"partition.subsample" = 300
[resources]
cores = 1
"""
ROOT = Path(__file__).parents[2]
NAMES = [f"{name}-seed{seed}" for seed in range(4) for name in ("fedavg-ft", "fedpse", "local")]


def sepal(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "sepal.cli", "compare", str(directory / "plan.toml"), "--no-report", *arguments]


def test_the_table_is_the_local_one_though_a_node_dies(ray_cluster, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    out, local = tmp_path / "out", tmp_path / "local"
    printed = tmp_path / "compare.txt"
    with printed.open("wb") as file:
        command = subprocess.Popen(
            ray_cluster.inside(*sepal(tmp_path, "--on", "ray", "--out", str(out))),
            cwd=tmp_path,
            env=ray_cluster.command_environment(),
            stdout=file,
            stderr=file,
        )
    try:
        killed = _kill_a_node_that_runs_something(ray_cluster, out, command)
        assert command.wait(900) == 0, printed.read_text()
    finally:
        command.kill()
        command.wait()
        print(printed.read_text())
    text = printed.read_text()
    assert all(f"{name}: its task has ended (" in text for name in killed)
    assert all(len(read_claims(out / name)) > 1 for name in killed), "it went on from its directory"
    assert all(claim.job.startswith("ray ") for name in NAMES for claim in read_claims(out / name))
    done = subprocess.run(
        sepal(tmp_path, "--status", "--out", str(out)), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "12 done" in done.stdout
    subprocess.run(sepal(tmp_path, "--out", str(local)), cwd=tmp_path, capture_output=True, check=True)
    assert _table(out) == _table(local)
    for name in NAMES:
        assert _figures(out / name) == _figures(local / name), name


def _kill_a_node_that_runs_something(cluster, out: Path, command: subprocess.Popen[bytes]) -> list[str]:
    """Kill the second node once a run on it has a checkpoint; return the runs that were on it, and bring it back."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert command.poll() is None, "the command has ended before a node was killed"
        of_node = {process.pid for process in cluster.processes("n2")}
        going = [
            name
            for name in NAMES
            if (claims := read_claims(out / name)) and claims[-1].pid in of_node and is_going_on(out / name)
        ]
        if going:
            for process in cluster.processes("n2"):
                process.suspend()  # so that no run ends before its node does
            going = [name for name in going if is_going_on(out / name)]
            cluster.kill_node("n2")
            cluster.start_node("n2")
            if going:
                return going
        time.sleep(0.2)
    raise AssertionError("no run on the second node")


def is_going_on(run: Path) -> bool:
    return any((run / "checkpoints").glob("round-*")) and not (run / "summary.json").exists()


SIMULATION = """
import json
import sys
from pathlib import Path
from sepal.engines.flower.engine import Flower

app, config, home = sys.argv[1:]
with Flower(Path(home)) as flower:
    flower.start_simulation()
    run = flower.run_app(Path(app), json.loads(config), "num-supernodes=4 client-resources-num-cpus=1")
    print("\\n".join(run.log[-60:]))
    sys.exit(0 if run.complete else 1)
"""


def simulate(cluster, config, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Flower's simulation on the cluster, with ditto, whose clients keep a state."""
    environment = {**cluster.command_environment(), "SEPAL_HOME": str(cluster.directory / "n1")}
    command = cluster.inside(sys.executable, "-c", SIMULATION, str(ROOT), json.dumps(config), str(home))
    return subprocess.run(
        command, env=environment, cwd=home.parent, capture_output=True, text=True, check=False, timeout=600
    )


def test_a_simulation_on_two_nodes_needs_states_that_both_see_and_then_has_the_bits_of_one_process(
    ray_cluster, tmp_path
):
    config = {
        "method": "ditto",
        "dataset": "digits",
        "clients": 4,
        "rounds": 3,
        "partition.subsample": 200,
        "out": str(tmp_path / "runs"),
        "name": "two-nodes",
    }
    done = simulate(ray_cluster, config, tmp_path / "first")
    assert done.returncode, "each node has a home of its own"
    assert "state-dir: expected a directory that all nodes of the Ray cluster share" in done.stdout + done.stderr
    done = simulate(ray_cluster, {**config, "state-dir": str(tmp_path / "states")}, tmp_path / "second")
    assert not done.returncode, done.stdout + done.stderr
    assert len(list((tmp_path / "states").glob("*/*"))) >= 4
    here = {**config, "out": str(tmp_path / "here")}
    with RunDirectory(tmp_path / "here" / "two-nodes", assembly := assemble(here), IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    assert _figures(tmp_path / "runs" / "two-nodes")[0] == _figures(tmp_path / "here" / "two-nodes")[0]


def test_without_the_clusters_token_the_command_is_one_line(ray_cluster, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    other = tmp_path / "token"
    other.touch(mode=0o600)
    other.write_text("0" * 64)
    environment = {**ray_cluster.command_environment(), "RAY_AUTH_TOKEN_PATH": str(other)}
    done = subprocess.run(
        ray_cluster.inside(*sepal(tmp_path, "--on", "ray", "--out", str(tmp_path / "out"))),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode
    assert "RAY_ADDRESS: expected a cluster that answers to this token" in done.stderr
    assert read_submission(tmp_path / "out", NAMES[0]) is None
