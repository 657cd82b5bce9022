"""Keeps a SuperNode running: waits for its server, joins it, and joins it again after a failure."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sepal.engines.flower.credentials import NodeCredentials
from sepal.engines.flower.engine import Flower
from sepal.engines.flower.figures import ClientFigures
from sepal.engines.flower.lines import Lines
from sepal.engines.flower.node import RESTARTABLE
from sepal.engines.flower.probe import examine
from sepal.engines.flower.processes import FlowerError
from sepal.engines.flower.submission import alone
from sepal.engines.flower.unpacking import clear
from sepal.errors import ConfigError
from sepal.operation.figures import STATS, serve
from sepal.protocol.types import Scalar
from sepal.storage.home import private_home

LAPSE, AGAIN = 90.0, 5.0  # seconds for which a refused node is retried, and between two attempts
ENDING = 10.0  # seconds that the process of before may take to end
ALIVE = "alive"  # file of a client's home
BEAT = 10.0  # the most seconds before it is written again while a node runs
# Seconds that a server that has just started, or was restored, may take to register its nodes. A key takes a command of
# Flower's, of 1.4 s of a processor, and 11 s on one that was busy with 20 other things: three hours for 1,000 keys.
REGISTERED = 10_800.0
MOST_PAUSE = 15.0  # seconds between two looks whether a key is registered: a thousand clients may look at once


def _ignore(line: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class JoinedClient:
    """What `sepal join` keeps running: the SuperNode of one client, and who is told of it.

    Attributes:
        client: The client's name.
        node_config: The keys of the node.
        address: HOST:PORT of the server.
        credentials: For TLS and a registered key; None for plain text.
        cold: Start a new process for each message, as Flower's own SuperNode does.
        poll: Longest pause between two polls for a message, in seconds.
        allow_code: Whether app bundles with code are run.
        metrics: ``[HOST:]PORT`` at which its figures are served (:func:`sepal.operation.figures.serve`); empty: none.
        verbose: Whether ``show`` gets all lines of the SuperNode's log, not only Sepal's.
        tell: Called with each line about the process itself.
        tell_command: Called with each command line before it is run.
        show: Called with lines of the SuperNode's log.
    """

    client: str
    node_config: Mapping[str, Scalar]
    address: str
    credentials: NodeCredentials | None = None
    cold: bool = False
    poll: float = 3.0
    allow_code: bool = False
    metrics: str = ""
    verbose: bool = False
    tell: Callable[[str], None] = _ignore
    tell_command: Callable[[str], None] = _ignore
    show: Callable[[str], None] = _ignore


def stay(joined_client: JoinedClient) -> None:
    """Keep a SuperNode running.

    Its output goes to ``node.log``. The file ``alive`` beside it says ``running`` or ``waiting``, and is never older
    than three minutes: for probes, which then need no port that others reach, too.

    Flower refuses a key whose node it believes to be online, as a second copy; a killed node counts as online for about
    48 seconds. So a registered key that is refused is retried for a while. A SuperNode whose call is not authenticated
    ends with exit code 0: after a jump of a clock, after the server's database was replaced, or when its key was
    removed. One whose loop ended by an error that Flower does not retry, such as that of a server at its limit of
    calls, ends with ``node.LOST``. Both are started again, with growing pauses.

    Whoever knows a public key can declare its node connected, for up to an hour; then the client itself is refused. So
    a client with a key that has joined before tries again for ever, with growing pauses.

    Raises:
        ConfigError: As in :func:`wait_until_welcome`; or another process keeps this client running.
        FlowerError: The SuperNode still ends with an error, and has no key or has never joined.
    """
    client, credentials, tell = joined_client.client, joined_client.credentials, joined_client.tell
    deadline, pause, rejoining, joined = time.monotonic() + LAPSE, AGAIN, False, False
    home = private_home() / "clients" / client
    with (
        alone(home, f"client {client}", depth=2, patience=ENDING),
        Flower(home, directory=Path.cwd(), tell=joined_client.tell_command) as flower,
    ):
        if orphans := flower.take_over(home / "processes"):
            tell(f"sepal: ended {orphans} processes of a `sepal join` that was killed")
        file, alive = flower.home / "node.log", flower.home / ALIVE
        lines = Lines(file, joined_client.show, joined_client.verbose)
        tell(f"sepal: log of the SuperNode: {file}")
        if joined_client.metrics:
            serve_figures(flower, client, joined_client.metrics)
        while True:
            beat = partial(_write, alive, "waiting\n")
            wait_until_welcome(joined_client.address, credentials, REGISTERED, rejoining, tell, beat)
            clear(flower.home)
            began = time.monotonic()
            node = flower.start_node(
                client,
                joined_client.node_config,
                joined_client.address,
                lines,
                credentials,
                joined_client.cold,
                joined_client.poll,
                joined_client.allow_code,
            )
            code = _ended(node, partial(_write, alive, "running\n"))
            beat()
            again = code in RESTARTABLE
            if again or time.monotonic() - began > LAPSE:  # it had joined, so this is a new failure
                deadline, joined = time.monotonic() + LAPSE, True
            if again:
                pause = _next(pause, began)
                why = "a call was not answered" if code else "as it does if a call is not authenticated"
                tell(f"sepal: the SuperNode ended, {why}: again in {pause:g} s")
                time.sleep(pause)
                rejoining = True
                continue
            late = time.monotonic() > deadline
            if credentials is None or (late and not joined):
                raise FlowerError("flower-supernode", "exit code 0", code)
            pause = _next(pause, began) if late else AGAIN
            who = "another node with this key, or an earlier session of it, counts as online"
            tell(f"sepal: refused, as if {who}: again in {pause:g} s")
            time.sleep(pause)


def _write(alive: Path, state: str) -> None:
    """Write what a client does for probes. A full disk does not end the client: the file grows old meanwhile."""
    with suppress(OSError):
        alive.write_text(state, encoding="utf-8")


def _ended(node: subprocess.Popen[bytes], beat: Callable[[], object]) -> int:
    """Return the exit code of a SuperNode once it has ended; meanwhile, call ``beat`` again and again."""
    while True:
        beat()
        try:
            return node.wait(BEAT)
        except subprocess.TimeoutExpired:
            continue


def _next(pause: float, began: float) -> float:
    """Return the next pause: longer, unless the last attempt went well for a while."""
    return min(60.0, 2 * pause) if time.monotonic() - began < LAPSE else AGAIN


def serve_figures(flower: Flower, client: str, address: str) -> None:
    """Serve the figures of a client whose SuperNode ``flower`` starts."""
    path = flower.home / "messages.jsonl"
    flower.environment[STATS] = str(path)

    def up() -> bool:
        return client in flower.nodes and flower.nodes[client].poll() is None

    figures = ClientFigures(path, up, flower.left)
    serve(address, figures, lambda: "" if up() else "the SuperNode is not running", "--metrics")


def wait_until_welcome(
    address: str,
    credentials: NodeCredentials | None,
    patience: float = REGISTERED,
    rejoining: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    beat: Callable[[], object] = lambda: None,
) -> None:
    """Wait indefinitely for the server, and up to ``patience`` seconds for it to register this client's key.

    Flower's SuperNode would try forever to talk plain text to a server with TLS; here this is a one-line error. A
    client that has been welcome before also waits for a server that answers wrongly, as one that just starts may, and
    without end for one whose clock was set. With
    a key it waits indefinitely until somebody shows the server's certificate: anybody on the way can answer without.
    ``beat`` is called before each attempt.

    Flower answers a key that was removed as one that is not registered yet, so a client waits with either.

    Raises:
        ConfigError: The server speaks another protocol, has another certificate, or does not know the key. Or the
            client's own certificates are gone.
    """
    begin, reported, last, pause = time.monotonic(), set[str](), "", 1.0
    unproved = ("port", "TLS", "certificate") if credentials and rejoining else ("port",)
    endless = (*unproved, "clock") if rejoining else unproved
    while True:
        beat()
        finding = next((finding for finding in examine(address, credentials) if not finding.good), None)
        if finding is None:
            return
        waits = finding.check in endless or finding.check == "key"
        if waits and finding.check not in reported:
            what = "this machine's clock is " if finding.check == "clock" else ""
            most = f", for up to {patience / 60:.0f} minutes" if finding.check == "key" else ""
            tell(f"sepal: {what}{finding.words}; waiting for it{most}")
            reported.add(finding.check)
        if waits and finding.check != last:
            begin, last, pause = time.monotonic(), finding.check, 1.0
        if finding.check in endless:
            begin = time.monotonic()
        elif not (rejoining or waits) or time.monotonic() - begin > (patience if waits else min(patience, LAPSE)):
            raise ConfigError(f"{address}: {finding.check}", "one with which a client can join", finding.words)
        pause = min(MOST_PAUSE, 1.5 * pause) if finding.check == "key" else 1.0
        time.sleep(pause)
