"""Twelve runs on a Slurm of two nodes: whatever happens to jobs, nodes and the command, the table is the local one."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sepal.runs.claims import read_claims
from sepal.study.clusters.records import log_file, read_submission
from tests.e2e.two_node_slurm import Slurm

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

# Methods are tied to nodes, so that it is known whom an event meets: fedpse runs on n2, limited on n1.
PLAN = """
methods = ["fedavg-ft", "fedpse", "limited"]
seeds = [0, 1, 2, 3]
one-processor = true
[settings]
dataset = "digits"
clients = 3
rounds = 30
evaluate-every = 5
checkpoint-every = 2
"partition.subsample" = 300
[settings.limited]
method = "fedavg"
[resources]
cores = 1
memory = "900M"
[resources.fedpse]
nodelist = "n2"
[resources.limited]
nodelist = "n1"
time = "00:01:00"
"""


class Study:
    """The plan's runs in a directory, and the command that watches them."""

    def __init__(self, directory: Path, slurm: Slurm) -> None:
        self.slurm, self.plan, self.out = slurm, directory / "plan.toml", directory / "out"
        self.plan.write_text(PLAN)
        self.printed, self._command = directory / "compare.txt", None
        self.names = [f"{name}-seed{seed}" for seed in range(4) for name in ("fedavg-ft", "fedpse", "limited")]

    def sepal(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sepal.cli", "compare", str(self.plan), *arguments]

    def compare(self) -> None:
        with self.printed.open("ab") as file:
            command = self.sepal("--on", "slurm", "--out", str(self.out), "--no-report")
            self._command = subprocess.Popen(
                command, cwd=self.plan.parent, env=self.slurm.environment, stdout=file, stderr=file
            )

    def kill_compare(self) -> None:
        self._command.kill()
        self._command.wait()

    def end(self) -> None:
        if self._command and self._command.poll() is None:
            self.kill_compare()

    def ended(self, timeout: float) -> int:
        return self._command.wait(timeout)

    def records(self, name: str) -> int:
        directory = self.out / name / "checkpoints" / "records"
        return len([path for path in directory.iterdir() if path.name.isdecimal()]) if directory.is_dir() else 0

    def claims(self, name: str) -> int:
        return len(read_claims(self.out / name))

    def job(self, name: str) -> str:
        submission = read_submission(self.out, name)
        return submission.job if submission else ""

    def pause(self, prefix: str, node: str) -> tuple[str, psutil.Process]:
        """Stop the process of a run on ``node`` that has recorded a round and not ended, so that it cannot end now."""
        paused: list[tuple[str, psutil.Process]] = []

        def found() -> bool:
            for name in self.names:
                run = self.out / name
                if name.startswith(prefix) and not (run / "summary.json").exists() and self.records(name) > 3:
                    with suppress(psutil.Error, IndexError):
                        process = psutil.Process(read_claims(run)[-1].pid)
                        if self.slurm.node_of(self.job(name)) != node:
                            continue
                        process.suspend()
                        if (run / "summary.json").exists() or self.claims(name) != self.claims_of(process, name):
                            process.resume()
                            continue
                        paused.append((name, process))
                        return True
            return False

        self.slurm.wait(found, f"a running job of {prefix} on {node}")
        return paused[0]

    def claims_of(self, process: psutil.Process, name: str) -> int:
        return next((c.number for c in read_claims(self.out / name) if c.pid == process.pid), 0)


def test_the_table_is_the_local_one_whatever_happens(slurm, tmp_path):
    study = Study(tmp_path, slurm)
    try:
        study.compare()
        slurm.wait(lambda: all(map(study.job, study.names)), "twelve jobs")
        study.kill_compare()
        study.compare()
        slurm.wait(lambda: b"limited-seed3 goes on as job" in study.printed.read_bytes(), "the command to look again")
        names = slurm.answer("squeue", "-ht", "all", "-o", "%j").split()
        assert Counter(name.rpartition(".")[0] for name in names) == Counter(study.names), "no run was submitted twice"

        limited, _ = study.pause("limited", "n1")  # until its time limit of a minute
        # slurmd alone dies, while its job goes on, which Slurm starts again on the other node.
        doubled, old = study.pause("fedavg-ft", "n2")
        before = study.claims(doubled)
        slurm.kill_slurmd("n2")
        slurm.wait(lambda: study.claims(doubled) > before, f"{doubled} on another node")
        assert old.status() == psutil.STATUS_STOPPED, "the first process has outlived its node"
        records = study.records(doubled)
        old.resume()
        slurm.wait(lambda: not psutil.pid_exists(old.pid) or old.status() == psutil.STATUS_ZOMBIE, "its end")
        assert "another job continues this run" in log_file(study.out, doubled).read_text()
        assert study.records(doubled) >= records
        slurm.start_node("n2")

        requeued, _ = study.pause("fedpse", "n2")
        before = study.claims(requeued)
        slurm.answer("scontrol", "requeue", study.job(requeued))
        slurm.wait(lambda: study.claims(requeued) > before, f"{requeued} after scontrol requeue")

        preempted, _ = study.pause("fedpse", "n2")
        before = study.claims(preempted)
        slurm.answer("sbatch", "-p", "high", "-w", "n2", "-c", "2", "-o", "/dev/null", "--wrap", "sleep 2")
        slurm.wait(lambda: study.claims(preempted) > before, f"{preempted} after a job of the higher partition")

        lost, _ = study.pause("fedpse", "n2")
        before = study.claims(lost)
        slurm.kill_node("n2")
        slurm.wait(lambda: "down" in slurm.answer("sinfo", "-hNo", "%t", "-n", "n2"), "n2 to be down")
        slurm.start_node("n2")
        slurm.wait(lambda: study.claims(lost) > before, f"{lost} after the loss of its node")

        slurm.wait(lambda: study.claims(limited) > 1, f"{limited} after its time limit", 240)
        assert study.ended(600) == 0, study.printed.read_text()
        assert "its time limit was reached" in study.printed.read_text()
    finally:
        study.end()
        print(study.printed.read_text())

    done = subprocess.run(
        study.sepal("--status", "--out", str(study.out)), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "12 done" in done.stdout
    local = tmp_path / "local"
    subprocess.run(study.sepal("--out", str(local), "--no-report"), cwd=tmp_path, capture_output=True, check=True)
    assert _table(study.out) == _table(local)
    for name in study.names:
        on_slurm, here = (_figures(out / name) for out in (study.out, local))
        assert on_slurm == here, name


def _table(out: Path) -> list[dict[str, str]]:
    with (out / "comparison.csv").open() as file:
        return list(csv.DictReader(file))


def _figures(run: Path) -> tuple[object, ...]:
    """Return a run's lines and summary without what tells when, for how long and where it was made."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ledger = (run / "ledger.jsonl").read_text()
    summary = json.loads((run / "summary.json").read_text())
    for line in lines:
        line.pop("seconds")
        for client in line["clients"]:
            client["metrics"].pop("seconds")
    kept = {key: value for key, value in summary.items() if key not in ("run", "seconds", "versions", "written")}
    return lines, ledger, kept
