"""Slurm's commands ``sbatch`` and ``squeue``, whatever the user's variables say of their defaults."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from sepal.errors import ConfigError, SepalError, one_line

PATIENCE = 120  # seconds for a command of Slurm
# Of a job in which this process may be, the size is no wish for others; what `squeue` shows a user must not hide a job;
# an array has other numbers, and a submission that waits for its job gives no answer. A job gets the variables of
# `sbatch`, on machines of others: no passphrase is among them.
DROPPED = re.compile(r"(SLURM|SQUEUE)_|SBATCH_(ARRAY_INX|WAIT)\Z|SEPAL_CA_PASSPHRASE\Z")
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
CLUSTERS = "SBATCH_CLUSTERS"
ONE_CLUSTER = "no other cluster than this machine's own, in whose queue jobs are looked for"
_CLUSTER = re.compile(r"\w[\w.-]*\Z", re.ASCII)


class QueuedJob(NamedTuple):
    """A job as ``squeue`` lists it."""

    job: str
    name: str
    state: str
    reason: str
    node: str


class SlurmError(SepalError):
    """A command of Slurm's failed."""


class Slurm:
    """Slurm's commands.

    Raises:
        ConfigError: They are not on this machine, or jobs would go to another cluster.
    """

    def __init__(self) -> None:
        if missing := [name for name in ("sbatch", "squeue") if not shutil.which(name)]:
            raise ConfigError("--on", "slurm on a machine with Slurm's commands", f"no {missing[0]} on PATH")
        if cluster := os.environ.get(CLUSTERS):
            raise ConfigError(CLUSTERS, ONE_CLUSTER, cluster)

    def submit(self, options: Sequence[str], arguments: Sequence[str]) -> str:
        """Submit a job, and return its number.

        Raises:
            SlurmError: Slurm does not take it.
            ConfigError: It went to another cluster; it is cancelled there, or the error says how to do that.
        """
        text = self._answer(["sbatch", "--parsable", *options, *arguments]).strip()
        number, _, cluster = text.partition(";")
        if not number.isdecimal():
            raise SlurmError("sbatch", "the number of a job", text)
        if cluster:
            raise ConfigError("sbatch", ONE_CLUSTER, f"job {number} on {cluster}, {self._cancel(number, cluster)}")
        return number

    def _cancel(self, number: str, cluster: str) -> str:
        """Cancel a job of another cluster; return in words what has become of it."""
        if not _CLUSTER.match(cluster):
            return "which goes on"
        command = ["scancel", f"--clusters={cluster}", number]
        try:
            self._answer(command)
        except SlurmError as error:
            return f"which goes on: `{' '.join(command)}` ends it ({error.got})"
        return "which was cancelled"

    def jobs(self) -> dict[str, QueuedJob]:
        """Return this user's jobs by number, also those that have ended in the last minutes.

        Raises:
            SlurmError: The controller does not answer.
        """
        form = "%i|%T|%N|%j|%r"
        command = ["squeue", "--noheader", "--all", "--states=all", f"--user={os.geteuid()}", f"--format={form}"]
        rows = [line.split("|", 4) for line in self._answer(command).splitlines()]
        return {row[0]: QueuedJob(row[0], row[3], row[1], row[4], row[2]) for row in rows if len(row) == 5}

    def _answer(self, command: list[str]) -> str:
        environment = {key: value for key, value in os.environ.items() if key in KEPT or not DROPPED.match(key)}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise SlurmError(command[0], "an answer", str(reason)) from None
        if done.returncode:
            raise SlurmError(command[0], "an answer", one_line(done.stderr) or f"exit code {done.returncode}")
        return done.stdout
