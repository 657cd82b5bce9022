"""Clients as jobs of Slurm (``deploy/slurm/clients.sh``): a job that is requeued rejoins as the same client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.processes import free_port
from sepal.engines.in_process import run_in_process
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "clients.sh"
FLAT = {
    "dataset": "digits",
    "method": "fedper",
    "clients": 2,
    "rounds": 40,
    "evaluate-every": 0,
    "partition.subsample": 200,
    "timeout": 600.0,
}
NAMES = ("client-00000", "client-00001")


def outcome(run: Path) -> tuple[str, str]:
    summary = json.loads((run / "summary.json").read_text())
    return summary["weights_sha256"], summary["clients_sha256"]


def test_a_job_that_is_requeued_rejoins_as_the_same_client(slurm, tmp_path):
    """One job gets the signal that Slurm sends before a time limit, the other is requeued as by a preemption."""
    make_certificates(tmp_path / "certs", nodes=list(NAMES))
    fleet, control = free_port(), free_port()
    environment = {
        **slurm.environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SEPAL_HOME": str(tmp_path / "home"),
        "SEPAL_SERVER": f"localhost:{fleet}",
        "SEPAL_CERTS": str(tmp_path / "certs" / "nodes"),
        "SEPAL_STATES": str(tmp_path / "states"),
    }
    keys = [word for key, value in FLAT.items() for word in ("--set", f"{key}={value}")]
    ports = ["--port", str(fleet), "--control", str(control)]
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "sepal.cli", "serve", "--certs", "certs/server", "--name", "jobs", *ports, *keys],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )

    def rounds() -> int:
        metrics = tmp_path / "runs" / "jobs" / "metrics.jsonl"
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    def joined(number: int) -> int:
        log = tmp_path / f"sepal-client-{number}.log"
        return log.read_text().count("sepal: joined, and waits") if log.exists() else 0

    try:
        submitted = subprocess.run(
            ["sbatch", "--parsable", "--array=0-1", "--time=60", str(SCRIPT), "--poll", "1"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        job = submitted.stdout.strip()
        slurm.wait(lambda: rounds() > 2, "three rounds", 300)
        slurm.answer("scancel", "--batch", "--signal=USR1", f"{job}_0")
        slurm.wait(lambda: joined(0) == 2, "the first client to come back", 120)
        slurm.answer("scontrol", "requeue", f"{job}_1")
        slurm.wait(lambda: joined(1) == 2, "the second client to come back", 120)
        assert rounds() < FLAT["rounds"], "the run had ended before both were back"
        assert server.wait(300) == 0, (tmp_path / "serve.log").read_text()[-2000:]
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assembly = assemble({**FLAT, "name": "here", "out": str(tmp_path)})
    with RunDirectory(tmp_path / "here", assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    assert outcome(tmp_path / "runs" / "jobs") == outcome(tmp_path / "here")
