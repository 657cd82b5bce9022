"""Child processes that are stopped at the end of a block, together with their descendants.

Flower's processes start others and leave some of them running. Every process started here has a mark in its
environment, which its children inherit. At the end of the block, all processes with the mark are stopped.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import shutil
import signal
import site
import socket
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

import sepal
from sepal.engines.flower.lines import RotatingLog
from sepal.errors import SepalError
from sepal.operation.addresses import is_host
from sepal.storage.files import private_directory, write_atomically
from sepal.storage.regular import read_text

MARK = "SEPAL_PROCESSES"
LOOPBACK = "localhost,127.0.0.1,::1"  # never through a proxy: Flower's processes talk over it in plain HTTP

_returned: set[int] = set()  # by free_port


class FlowerError(SepalError):
    """A process of Flower did not start, or a run did not complete."""


class Processes:
    """Flower's child processes. A context manager that stops them at the end, also on SIGTERM.

    Args:
        home: ``FLWR_HOME``, also for logs; by default a temporary directory, deleted at the end.
        environment: Additional environment variables for all processes.
        directory: Working directory of the processes; by default the home.
        tell: Called with the command line of each process that :meth:`spawn` or :meth:`pipe` is to start.
    """

    def __init__(
        self,
        home: Path | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._temporary = home is None
        self.home = home or Path(tempfile.mkdtemp(prefix="sepal-flower-"))
        private_directory(self.home)
        self._directory = directory or self.home
        self._mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PATH": joined(str(Path(sys.executable).parent), os.environ.get("PATH", "")),  # Flower starts by name
            "PYTHONPATH": joined(os.environ.get("PYTHONPATH", ""), code_path()),
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower's default is 1
            "FLWR_TELEMETRY_ENABLED": "0",
            **{name: joined_by_commas(os.environ.get(name, ""), LOOPBACK) for name in ("NO_PROXY", "no_proxy")},
            **(environment or {}),
            MARK: self._mark,
        }
        self._tell = tell
        self._started: list[subprocess.Popen[bytes]] = []
        self._pumps: dict[int, threading.Thread] = {}  # by process id; each copies a process's output to its log
        self._starting = threading.Lock()
        self._stopped = False
        self._handled = False

    def __enter__(self) -> Self:
        if in_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            self._handled = True
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()
        if self._handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def spawn(self, *command: str, log: str | None = None) -> subprocess.Popen[bytes]:
        """Start a process.

        Args:
            command: The command and its arguments.
            log: File under the home for its output, which is bounded; None for this process's output.

        Raises:
            FlowerError: :meth:`stop` was called.
        """
        self._tell(shlex.join(command))
        if not log:
            return self._start(command, None, None)
        process = self._start(command, subprocess.PIPE, subprocess.STDOUT)
        (self.home / log).touch()  # also before its first line
        pump = threading.Thread(target=_copy, args=(process, RotatingLog(self.home / log)), daemon=True)
        self._pumps[process.pid] = pump
        pump.start()
        return process

    def logged(self, process: subprocess.Popen[bytes], timeout: float = 2.0) -> None:
        """Wait until the log of a process that has ended has all of its output, unless others still hold that open."""
        self._pumps[process.pid].join(timeout)

    def pipe(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process and return it, with its output as ``stdout``; errors as in :meth:`spawn`."""
        self._tell(shlex.join(command))
        return self._start(command, subprocess.PIPE, subprocess.STDOUT)

    def ask(self, *command: str) -> tuple[str, str]:
        """Run a command and return its output and its error output; errors as in :meth:`spawn`."""
        output, errors = self._start(command, subprocess.PIPE, subprocess.PIPE).communicate()
        return output.decode(errors="replace"), errors.decode(errors="replace")

    def _start(self, command: Sequence[str], output: int | None, errors: int | None) -> subprocess.Popen[bytes]:
        with self._starting:  # another thread may call stop()
            if self._stopped:
                raise FlowerError(" ".join(command[:2]), "to be started before the others are stopped", "after it")
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C reaches it only once, through stop()
            )
            self._started.append(process)
        return process

    def stop(self, grace: float = 10.0) -> None:
        """Stop every process with SIGTERM, and after ``grace`` seconds with SIGKILL; then delete a temporary home.

        After this, no thread can start a process.
        """
        with undisturbed():
            with self._starting:
                self._stopped = True
            for process in reversed(self._started):
                if process.poll() is None:
                    process.terminate()
            deadline = time.monotonic() + grace
            for process in self._started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
            end(self.left, psutil.Process.terminate)
            end(self.left, psutil.Process.kill)
            for process in self._started:
                process.kill()  # does nothing if it has ended
                process.wait()
            self._started.clear()
            for pump in self._pumps.values():
                pump.join(2)
            self._pumps.clear()
            if self._temporary:
                shutil.rmtree(self.home, ignore_errors=True)

    def left(self) -> list[psutil.Process]:
        """Return all running processes that were started here, and their descendants."""
        return marked_processes(self._mark)

    def take_over(self, record: Path) -> int:
        """End the processes that the last holder of ``record`` has left, and make this one its holder.

        Who is killed (``kill -9``) stops nothing: its processes go on and keep their ports.

        Args:
            record: A file of this user's that at most one process holds at a time.

        Returns:
            The number of processes that were ended.

        Raises:
            StateError: ``record`` is no regular file of text.
        """
        mark = ""
        with contextlib.suppress(FileNotFoundError):
            mark = read_text(record)
        orphans: set[psutil.Process] = set()

        def running() -> list[psutil.Process]:
            processes = marked_processes(mark)
            orphans.update(processes)
            return processes

        if mark not in ("", self._mark):
            end(running, psutil.Process.terminate)
            end(running, psutil.Process.kill)
        write_atomically(record, self._mark.encode())
        return len(orphans)


def _copy(process: subprocess.Popen[bytes], log: RotatingLog) -> None:
    """Write each line that a process prints to its log, until its output ends.

    What cannot be written is read all the same, or the process would wait for a full pipe.
    """
    for line in process.stdout or ():
        log.write(line.decode(errors="replace").rstrip("\r\n"))
    log.close()


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the running processes, but this one, that have a mark in their environment."""

    def has_mark(process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == mark and process.pid != os.getpid())
        except psutil.Error:  # it has ended, or belongs to another user
            return False

    return [process for process in psutil.process_iter() if has_mark(process)]


def end(left: Callable[[], list[psutil.Process]], how: Callable[[psutil.Process], None], timeout: float = 5.0) -> None:
    """Apply ``how`` to all processes that ``left`` returns, until there are none, or for ``timeout`` seconds.

    A process can be missed while it is being forked, or while Ray writes its title over its environment. So the search
    must be empty three times in a row.
    """
    deadline, handled, empty = time.monotonic() + timeout, set[psutil.Process](), 0
    while empty < 3:
        running = left()
        empty = 0 if running else empty + 1
        for process in running:
            if process not in handled:
                with contextlib.suppress(psutil.Error):
                    how(process)
        handled |= set(running)
        if running and time.monotonic() > deadline:  # checked after a search, which may take long on a busy machine
            return
        if running:
            psutil.wait_procs(running, timeout=0.2)
        else:
            time.sleep(0.1)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM in the block."""
    if not in_main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def in_main_thread() -> bool:
    """Return whether this is the main thread, the only one that may set signal handlers."""
    return threading.current_thread() is threading.main_thread()


def code_path() -> str:
    """Return the directory of Sepal's packages if it is not in site-packages, else ``""``."""
    directory = str(Path(sepal.__file__).parents[1])
    return "" if directory in {sysconfig.get_path("purelib"), *site.getsitepackages()} else directory


def joined_by_commas(*texts: str) -> str:
    """Join comma-separated lists, without empty ones."""
    return ",".join(text for text in texts if text)


def joined(*paths: str) -> str:
    """Join search paths, without empty ones."""
    return os.pathsep.join(path for path in paths if path)


def free_port() -> int:
    """Return a TCP port that nothing listens on, and that this function has not returned before in this process.

    The system may name the same port twice, until somebody listens on it.
    """
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _returned:
            _returned.add(port)
            return port


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether something accepts connections on ``port`` of an address of this machine."""
    try:
        with socket.create_connection((host, port), 1):
            return True
    except OSError:
        return False


def unusable(host: str, port: int) -> str:
    """Return why no server can listen on ``port`` of ``host``; empty if one can."""
    if not is_host(host):
        return "no machine can have this name"
    try:
        kind, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as reason:  # socket.gaierror is one, too
        return reason.strerror or str(reason)
    return ""


def dialled(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(host, host.strip("[]"))


def healthy(port: int, authority: Path | None = None) -> bool:
    """Return whether a SuperLink answers on ``port``, over TLS if an ``authority``'s certificate is given.

    Whatever answers there has a second for the connection and one for its answer; its body is not read.
    """
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    if authority:
        context = ssl.create_default_context(cafile=authority)
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=1, context=context)
    try:
        with contextlib.closing(client):
            client.connect()
            with cut_off(client.sock, 1.0):
                client.request("GET", "/health")
                return client.getresponse().status == 200
    except (http.client.HTTPException, OSError):
        return False


@contextlib.contextmanager
def cut_off(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Shut a connection down after so many seconds; its own timeout starts again with each byte that comes.

    Raises:
        TimeoutError: It was shut down, so what was read of it may not be whole.
    """
    late = threading.Event()

    def shut() -> None:
        late.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError
