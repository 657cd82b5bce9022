"""Registers the public keys in a directory at a SuperLink, and unregisters those that are removed.

To add a client to a running server, put its public key into ``server/nodes``; to remove it, delete the file.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sepal.errors import one_line
from sepal.storage.files import write_atomically
from sepal_engines.flower.credentials import ServerCredentials, fingerprint
from sepal_engines.flower.engine import CONNECTION
from sepal_engines.flower.processes import FlowerError

IN_USE = "public key already in use"  # wording of flwr 1.39 (PUBLIC_KEY_ALREADY_IN_USE), in lower case
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # terminal colours in Flower's messages
EVERY = 5.0  # seconds between checks of the directory


class Registry:
    """Keeps a SuperLink's registered nodes in sync with a directory of public keys.

    Args:
        credentials: The server's.
        environment: Environment variables of Flower's commands; ``FLWR_HOME`` has the connection.
        memory: File with Flower's node ids by key, next to the SuperLink's database.
        tell: Called with a line for each node that is registered or unregistered.
    """

    def __init__(
        self,
        credentials: ServerCredentials,
        environment: Mapping[str, str],
        memory: Path,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._credentials, self._environment, self._memory, self._tell = credentials, environment, memory, tell
        self._ids: dict[str, str] = json.loads(memory.read_text()) if memory.exists() else {}
        self._seen: frozenset[str] | None = None  # keys at the last check; None: check again
        self._begun = False
        self._next = 0.0

    def sync(self) -> None:
        """Register new keys and unregister removed ones.

        Raises:
            FlowerError: Flower refuses a key.
        """
        if not self._begun and self._ids:
            self._forget_unknown()
        self._begun, self._seen = True, None
        keys = self._credentials.node_keys()
        wanted = {fingerprint(path): (name, path) for name, path in keys.items()}
        for digest, (name, path) in wanted.items():
            if digest not in self._ids:
                self._ids[digest] = self._register(name, path)
                self._remember()
        for digest in [digest for digest in self._ids if digest not in wanted]:
            node = self._ids[digest]
            said = self._flwr("unregister", node) if node else {}
            if isinstance(said, str):
                raise FlowerError(f"flwr supernode unregister {node}", "an unregistered key", said)
            if node:
                self._tell(f"unregistered: node {node}; its key is gone from {self._credentials.directory / 'nodes'}")
            del self._ids[digest]
            self._remember()
        self._seen = frozenset(wanted)

    def tick(self) -> None:
        """Call :meth:`sync` every few seconds if keys have changed. Report what Flower refuses, and try again."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        if frozenset(map(fingerprint, self._credentials.node_keys().values())) != self._seen:
            try:
                self.sync()
            except FlowerError as reason:
                self._tell(f"sepal: {reason}")

    def _forget_unknown(self) -> None:
        """Forget ids that the SuperLink does not list, because its database was replaced."""
        listed = self._flwr("list", CONNECTION)
        if not isinstance(listed, str):
            there = {str(node["node-id"]) for node in listed["nodes"]}  # type: ignore[attr-defined]
            self._ids = {digest: node for digest, node in self._ids.items() if node in there}

    def _register(self, name: str, path: Path) -> str:
        """Return the node's id; empty if the key was registered before and its id is not known."""
        said = self._flwr("register", str(path), CONNECTION, "--name", name)
        if isinstance(said, str):
            if IN_USE in said.lower():
                self._tell(
                    f"sepal: {name}: this key was registered before, and a removed key stays refused: make a new one"
                )
                return ""
            raise FlowerError(f"flwr supernode register {path}", "a registered key", said)
        self._tell(f"registered: {name}")
        return str(said["node-id"])

    def _flwr(self, verb: str, *arguments: str) -> dict[str, object] | str:
        """Run ``flwr supernode VERB`` and return its answer, or its message as text if it refuses."""
        arguments = arguments if CONNECTION in arguments else (*arguments, CONNECTION)
        command = ["flwr", "supernode", verb, *arguments, "--format", "json"]
        done = subprocess.run(command, env=dict(self._environment), capture_output=True, text=True, check=False)
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            return one_line(COLOURS.sub("", done.stdout + done.stderr))
        return answer if answer.get("success") else str(answer.get("error-message", answer))

    def _remember(self) -> None:
        write_atomically(self._memory, json.dumps(self._ids).encode())
