"""Starts Flower on this machine: a SuperLink with the simulation engine or with SuperNodes, and runs of an app.

``flwr run`` exits with 0 even if the run failed, and leaves a SuperLink running in the background. Here the SuperLink
has its own home and ports, the run's status is queried, and all processes are stopped at the end of the block.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tomli_w

from sepal.engines.flower.commands import Ports, needs_cold, simulation_command, superlink_command, supernode_command
from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials
from sepal.engines.flower.processes import FlowerError, Processes, dialled, free_port, healthy, listening
from sepal.errors import one_line
from sepal.flower.versions import require_supported
from sepal.protocol.types import Scalar

COMPLETED = "finished:completed"
UNDER_WAY = ("pending", "starting", "running")
CONNECTION = "sepal"
SLOW_RAY = "The current node timed out during startup"  # ray._private.node: after 30 s, which no option changes
RAY_STARTS = 4
RAISED = "ServerApp failed with exception: "  # flwr.superlink.runtime.run_serverapp


@dataclass(frozen=True)
class AppRun:
    """A run that has ended.

    Attributes:
        run_id: Flower's id of the run.
        status: ``finished:completed``, ``finished:failed``, ``finished:stopped``.
        log: Output of ``flwr run --stream``, by line.
        reason: Why it failed, in one line; empty if Flower does not say.
    """

    run_id: str
    status: str
    log: tuple[str, ...]
    reason: str = ""

    @property
    def complete(self) -> bool:
        """Whether it came to its end."""
        return self.status == COMPLETED

    def check(self, log: Path | None = None) -> None:
        """Raise unless the run is complete; the error names the file ``log``.

        Raises:
            FlowerError: With the reason.
        """
        if not self.complete:
            got = f"{self.status}: {self.reason}" if self.reason else self.status
            raise FlowerError("run", COMPLETED, f"{got} (log: {log})" if log else got)


def last_words(lines: Sequence[str], nothing: str) -> str:
    """Return the last of ``lines`` that says something, without the frame that Flower's commands draw around it."""
    return next((text for line in reversed(lines) if (text := line.strip(" │╭╮╰╯─"))), nothing)


def each_line(process: subprocess.Popen[bytes], take: Callable[[str], None]) -> None:
    """Call ``take`` with each line that a process of :meth:`Processes.pipe` prints, until its output ends."""
    for line in process.stdout or ():
        take(line.decode(errors="replace").rstrip())


class Flower(Processes):
    """A SuperLink, its SuperNodes and its runs. Arguments are those of :class:`Processes`."""

    @cached_property
    def ports(self) -> Ports:
        """The SuperLink's ports; free ports, unless others are assigned before it starts."""
        return Ports(free_port(), free_port())

    @cached_property
    def nodes(self) -> dict[str, subprocess.Popen[bytes]]:
        """The SuperNodes started so far, by name."""
        return {}

    def start_simulation(self, timeout: float = 60.0) -> None:
        """Start a SuperLink with Flower's simulation engine, and wait until it answers.

        Raises:
            FlowerError: It does not answer within ``timeout`` seconds.
        """
        (self.home / "ray").mkdir(exist_ok=True)
        self.environment["RAY_TMPDIR"] = str(self.home / "ray")
        self._start_superlink(simulation_command(self.ports), [], timeout)

    def start_superlink(
        self, host: str = "127.0.0.1", timeout: float = 60.0, credentials: ServerCredentials | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a SuperLink for SuperNodes, and wait until it answers.

        Args:
            host: Address for SuperNodes; 0.0.0.0 to accept other machines.
            timeout: Seconds.
            credentials: For TLS and registered node keys.

        Raises:
            FlowerError: It does not answer in time.
        """
        command = superlink_command(self.ports, host, self.home, credentials)
        authority = credentials.authority if credentials else None
        return self._start_superlink(command, [self.ports.fleet], timeout, authority, dialled(host))

    def connect(self, authority: Path | None = None) -> None:
        """Let Flower's commands find the SuperLink on this machine's control port.

        Args:
            authority: CA certificate that verifies the SuperLink's; None for plain text.
        """
        address = f"127.0.0.1:{self.ports.control}"
        trust = {"root-certificates": str(authority)} if authority else {"insecure": True}
        config = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **trust}}}
        (self.home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")

    def _start_superlink(
        self,
        command: list[str],
        grpc: Iterable[int],
        timeout: float,
        authority: Path | None = None,
        host: str = "127.0.0.1",
    ) -> subprocess.Popen[bytes]:
        require_supported()
        control, log = self.ports.control, self.home / "superlink.log"
        self.connect(authority)
        process = self.spawn(*command, log=log.name)
        deadline = time.monotonic() + timeout
        while not (healthy(control, authority) and all(listening(port, host) for port in grpc)):
            if process.poll() is not None or time.monotonic() > deadline:
                self.logged(process)
                words = log.read_text(errors="replace", encoding="utf-8").strip().splitlines()
                got = f"{last_words(words, 'none')} (see {log})"
                raise FlowerError("flower-superlink", f"an answer on port {control}", got)
            time.sleep(0.1)
        return process

    def start_node(
        self,
        name: str,
        node_config: Mapping[str, Scalar],
        address: str = "",
        show: Callable[[str], None] | None = None,
        credentials: NodeCredentials | None = None,
        cold: bool = False,
        poll: float = 0.0,
        allow_code: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start or restart a SuperNode.

        Its client process stays resident (:mod:`sepal.engines.flower.warm`), unless :func:`needs_cold` says otherwise.

        Args:
            name: Its name in ``nodes`` and of its log file.
            node_config: The node's own keys.
            address: HOST:PORT of the SuperLink; by default the one started here.
            show: Called with each line of its output; None to write it to ``NAME.log`` under the home.
            credentials: For TLS and a registered key.
            cold: Start a new process for each message, as Flower's own SuperNode does.
            poll: Longest pause between two polls for a message, in seconds; 0: Flower's 3.
            allow_code: Whether it runs app bundles with code.
        """
        command = supernode_command(address or f"127.0.0.1:{self.ports.fleet}", free_port(), node_config, credentials)
        cold = cold or needs_cold(node_config)
        options = [*["--cold"] * cold, *["--allow-code"] * allow_code, *(["--poll", str(poll)] if poll else [])]
        command = [sys.executable, "-P", "-m", "sepal.engines.flower.node", *options, *command[1:]]
        if show is None:
            self.nodes[name] = self.spawn(*command, log=f"{name}.log")
        else:
            self.nodes[name] = self.pipe(*command)
            threading.Thread(target=each_line, args=(self.nodes[name], show), daemon=True).start()
        return self.nodes[name]

    def run_app(
        self,
        app: Path,
        run_config: Mapping[str, Scalar],
        federation_config: str = "",
        timeout: float = 600.0,
        tick: Callable[[], None] = lambda: None,
        show: Callable[[str], None] = lambda line: None,
    ) -> AppRun:
        """Run the app at ``app`` with ``flwr run --stream`` and return the result.

        The stream can break while the run continues, for example if many clients keep the SuperLink busy; then it is
        resumed. A simulation whose Ray did not start within the 30 seconds that Ray gives its own processes has done
        nothing, and is started again, :data:`RAY_STARTS` times in all.

        Args:
            app: Directory with its pyproject.toml.
            run_config: Flat keys.
            federation_config: Space-separated ``KEY=VALUE``, for the simulation.
            timeout: Seconds for each start; may be infinite.
            tick: Called several times a second while the app runs.
            show: Called with each line of output.

        Raises:
            FlowerError: It could not be submitted, or did not end within ``timeout``.
        """
        keys = self.home / "run-config.toml"
        keys.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
        command = ["flwr", "run", str(app), CONNECTION, "--stream", "--run-config", str(keys)]
        command += ["--federation-config", federation_config] if federation_config else []
        for _ in range(RAY_STARTS):
            run = self._run(command, timeout, tick, show)
            if run.complete or not any(SLOW_RAY in line for line in run.log):
                break
        return run

    def _run(self, command: list[str], timeout: float, tick: Callable[[], None], show: Callable[[str], None]) -> AppRun:
        deadline = time.monotonic() + timeout
        lines = self.output(command, timeout, tick, show)
        run = next((line.split()[-1] for line in lines if "Successfully started run" in line), "")
        if not run:
            raise FlowerError("flwr run", "a run to be started", last_words(lines, "no answer"))
        while (ended := self.status(run))[0] in UNDER_WAY:
            seconds_left = deadline - time.monotonic()
            if seconds_left < 0:
                raise FlowerError("flwr run", f"an end within {timeout:g} s", ended[0])
            shown = set(lines)  # the log starts over from its beginning

            def unseen(line: str, shown: set[str] = shown) -> None:
                if line not in shown:
                    show(line)

            more = self.output(["flwr", "log", run, CONNECTION, "--stream"], seconds_left, tick, unseen)
            lines += [line for line in more if line not in shown]
        return AppRun(run, ended[0], tuple(lines), ended[1])

    def output(
        self,
        command: list[str],
        timeout: float = math.inf,
        tick: Callable[[], None] = lambda: None,
        show: Callable[[str], None] = lambda line: None,
    ) -> list[str]:
        """Run a command and return its lines of output; arguments as in :meth:`run_app`.

        Raises:
            FlowerError: It did not end within ``timeout``.
        """
        lines: list[str] = []
        process = self.pipe(*command)

        def take(line: str) -> None:
            lines.append(line)
            show(line)

        reader = threading.Thread(target=each_line, args=(process, take), daemon=True)
        reader.start()
        deadline = time.monotonic() + timeout
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise FlowerError(" ".join(command[:2]), f"an end within {timeout:g} s", last_words(lines, "no output"))
            tick()
            time.sleep(0.2)
        reader.join(5)
        return lines

    def status(self, run_id: str, ending: float = 3.0, timeout: float = 30.0) -> tuple[str, str]:
        """Return the status of a run whose stream has ended, and the reason if it failed.

        Args:
            run_id: Flower's id of the run.
            ending: Seconds for a run that is ``running`` to become ``finished``.
            timeout: Seconds for the SuperLink to answer; then the status is ``unknown: REASON``.

        Raises:
            FlowerError: :meth:`stop` was called in another thread.
        """
        command = ["flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json"]
        begun = time.monotonic()
        while True:
            answer, errors = self.ask(*command)
            try:
                run = json.loads(answer)["runs"][0]
                status, patience = str(run["status"]), ending
                reason = str(run.get("status-details") or "").removeprefix(RAISED)
            except (ValueError, KeyError, IndexError):
                status, reason = f"unknown: {answer.strip() or errors.strip()}", ""
                patience = timeout
            if status.startswith("finished") or time.monotonic() - begun > patience:
                return status, "" if reason == "N/A" else one_line(reason)
            time.sleep(0.2)
