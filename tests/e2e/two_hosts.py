"""Two hosts for SSH on this machine: an OpenSSH server each, on ports of 127.0.0.1, with keys of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

SERVER = "/usr/sbin/sshd"
NODES = ("n1", "n2")


def missing() -> str:
    """Return why there can be no hosts on this machine; empty if there can."""
    if shutil.which("ssh") is None or not os.path.exists(SERVER):
        return "ssh and sshd are not installed (Debian: openssh-client, openssh-server)"
    if os.geteuid():
        return "a server that lets its user in needs root"
    return ""


class TwoHosts:
    """The hosts ``n1`` and ``n2``.

    Args:
        directory: For all their files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers = dict[str, subprocess.Popen[bytes]]()
        self.ports = {node: _free_port() for node in NODES}
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("user", *NODES):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
        keys = [f"[127.0.0.1]:{self.ports[node]} {(directory / f'{node}.pub').read_text()}" for node in NODES]
        (directory / "known").write_text("".join(keys))
        hosts = [f"Host {node}\n HostName 127.0.0.1\n Port {self.ports[node]}\n" for node in NODES]
        common = f"Host *\n IdentityFile {directory}/user\n UserKnownHostsFile {directory}/known\n"
        (directory / "config").write_text("".join([*hosts, common]))
        (directory / "bin").mkdir()
        command = directory / "bin" / "ssh"  # OpenSSH takes the user's own file from the user's entry, not from $HOME
        command.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/config "$@"\n')
        command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{directory}/bin{os.pathsep}{os.environ['PATH']}",
            "SEPAL_HOSTS": " ".join(NODES),
        }

    def start(self, node: str) -> None:
        """Start a host, and wait until it listens."""
        lines = [
            f"Port {self.ports[node]}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.directory}/{node}",
            f"AuthorizedKeysFile {self.directory}/user.pub",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
        ]
        if path := os.environ.get("PYTHONPATH"):
            lines.append(f"SetEnv PYTHONPATH={path}")
        config = self.directory / f"{node}.config"
        config.write_text("\n".join([*lines, ""]))
        with (self.directory / f"{node}.log").open("ab") as log:
            self.servers[node] = subprocess.Popen([SERVER, "-D", "-e", "-f", config], stdout=log, stderr=log)
        until = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1):
                return
            assert self.servers[node].poll() is None, (self.directory / f"{node}.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)

    def processes(self, node: str) -> list[psutil.Process]:
        """Return all processes of a host, its server first."""
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.servers[node].pid)
            return [server, *server.children(recursive=True)]
        return []

    def kill(self, node: str) -> None:
        """Kill all that a host has, at once."""
        processes = self.processes(node)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.servers[node].wait()
        psutil.wait_procs(processes, timeout=30)

    def stop(self) -> None:
        """Kill both hosts."""
        for node in self.servers:
            self.kill(node)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
