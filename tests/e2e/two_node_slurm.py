"""A Slurm of two nodes on this machine, from Debian's packages, in one directory and without accounting.

Every daemon is a child of the test, which waits for it. Nodes are processes: ``slurmd -N n1`` and ``slurmd -N n2``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from sepal.engines.flower.processes import free_port

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
NODES = ("n1", "n2")
CONFIG = """
ClusterName=sepal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={directory}/munge/sock
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd-%n.log
SlurmdParameters=config_overrides
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdTimeout=10
KillWait=3
JobRequeue=1
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2 RealMemory=4000 Weight=10
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2 RealMemory=4000 Weight=1
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Return why there can be no Slurm on this machine, after trying to install it as root; empty if there can."""
    if os.geteuid():
        return "Slurm's daemons need root"
    if all(map(shutil.which, COMMANDS)):
        return ""
    if not shutil.which("apt-get"):
        return "Slurm is not installed, and there is no apt-get"
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    lines = done.stderr.strip().splitlines() or ["apt-get failed"]
    return "" if not done.returncode and all(map(shutil.which, COMMANDS)) else f"Slurm: {lines[-1]}"


class Slurm:
    """The daemons.

    Args:
        directory: For all their files; a short path, because of the sockets' names.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.conf = directory, directory / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("munge", "state", "log", "spool/n1", "spool/n2"):
            (directory / name).mkdir(parents=True)
        (directory / "munge").chmod(0o711)
        key = directory / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        ports = {name: free_port() for name in ("controller", *NODES)}
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(CONFIG.format(directory=directory, host=host, **ports))

    def start(self) -> None:
        """Start all daemons, and wait for both nodes."""
        munge = self.directory / "munge"
        options = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._start("munged", "-F", "--force", *(f"--{name}={munge / file}" for name, file in options.items()))
        self.wait((munge / "sock").exists, "munged's socket")
        self._start("slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        self.wait(
            lambda: set(self.answer("sinfo", "-hNo", "%N", "-p", "low", "-t", "idle").split()) == {*NODES}, "n1, n2"
        )

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._start("slurmd", "-D", "-N", node, name=node)

    def _start(self, *command: str, name: str = "") -> None:
        log = (self.directory / "log" / f"{name or command[0]}.out").open("ab")
        self._daemons[name or command[0]] = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's slurmd alone: its jobs go on."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()

    def kill_node(self, node: str) -> None:
        """Kill a node: its slurmd, what starts its jobs, and these."""
        self.kill_slurmd(node)
        self._kill_jobs(f"SLURMD_NODENAME={node}")

    def _kill_jobs(self, of: str = "") -> None:
        """Kill the processes of this cluster's jobs whose environment has the line ``of``, and what started them."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if not process.name().startswith("slurmstepd"):
                    continue
                for child in process.children(recursive=True):
                    lines = {f"{key}={value}" for key, value in child.environ().items()}
                    if {f"SLURM_CONF={self.conf}", of} - {""} <= lines:
                        process.kill()  # first: it would report the end
                        child.kill()

    def answer(self, *command: str) -> str:
        """Return what a command prints; empty if it fails."""
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout

    def node_of(self, job: str) -> str:
        """Return the node on which a job runs; empty if it does not."""
        return self.answer("squeue", "-ho", "%N", "-t", "running", "-j", job).strip()

    @staticmethod
    def wait(true: Callable[[], object], what: str, seconds: float = 180.0) -> None:
        """Wait until ``true()`` is."""
        until = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End jobs and daemons."""
        if "slurmctld" in self._daemons:
            self.answer("scancel", "-u", "root")
            with suppress(AssertionError):
                self.wait(lambda: not self.answer("squeue", "-h"), "no jobs", 30)
        self._kill_jobs()
        for name in (*NODES, "slurmctld", "munged"):
            if daemon := self._daemons.pop(name, None):
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
