"""Registers the public keys in a directory at a SuperLink, and unregisters those that are removed.

To add a client to a running server, put its public key into ``server/nodes``; to remove it, delete the file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sepal.engines.flower.credentials import ServerCredentials, fingerprint
from sepal.engines.flower.engine import CONNECTION
from sepal.engines.flower.processes import FlowerError
from sepal.errors import ConfigError, SepalError, one_line
from sepal.storage.files import write_atomically

IN_USE = "public key already in use"  # wording of flwr 1.39 (PUBLIC_KEY_ALREADY_IN_USE), in lower case
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # terminal colours in Flower's messages
EVERY = 5.0  # seconds between checks of the directory


class NodeRegistry:
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
        self._ids: dict[str, str] = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
        self._checked: frozenset[str] | None = None  # keys at the last check; None: check again
        self._problems: list[str] = []  # at the last check
        self._missing: frozenset[str] = frozenset()  # keys without a file at the last check
        self._revoked: frozenset[str] = frozenset()  # keys that were revoked, at the last check
        self._begun = False
        self._next = 0.0

    def sync(self) -> None:
        """Register new keys and unregister removed ones. A problem with one key is reported; the other keys go on."""
        problems = [str(problem) for problem in self._sync()]
        for problem in problems:
            if problem not in self._problems:
                self._tell(f"sepal: {problem}")
        self._problems = problems

    def tick(self) -> None:
        """Call :meth:`sync` every few seconds if keys have changed or there was a problem."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        keys, unreadable = self._keys()
        if unreadable or frozenset(keys) != self._checked:
            self.sync()

    def _keys(self) -> tuple[dict[str, tuple[str, Path]], list[ConfigError]]:
        """Return name and file by key, and a problem for each file, or for the directory, that cannot be read."""
        by_digest: dict[str, tuple[str, Path]] = {}
        problems = []
        path = self._credentials.directory / "nodes"
        try:
            revoked = self._revoked = self._credentials.revoked()
            for name, path in self._credentials.node_keys().items():
                try:
                    digest = fingerprint(path)
                    if digest in by_digest:  # whose key it is, nobody but the operator can tell
                        raise ValueError(f"the key of {by_digest[digest][0]}, too: remove one")
                    if digest not in revoked:
                        by_digest[digest] = name, path
                except (OSError, ValueError) as reason:
                    problems.append(_unreadable(path, reason))
        except (OSError, ValueError) as reason:
            problems.append(_unreadable(path, reason))
        return by_digest, problems

    def _sync(self) -> list[SepalError]:
        keys, unreadable = self._keys()
        problems: list[SepalError] = [*unreadable]
        begun, remembered = self._begun, bool(self._ids)
        self._begun, self._checked = True, None
        if remembered and not begun:
            self._compare(keys, forget=True)
        # Flower never takes back a key that was unregistered. So a key must be missing at two checks in a row,
        # as a file that is being replaced is not; at the first check after a start, once is enough. No file may be
        # unreadable at either: it may hold the key, unless that was revoked.
        missing = frozenset(self._ids) - frozenset(keys)
        missing = missing & self._revoked if problems else missing
        removed = missing & self._missing if begun else missing
        self._missing = missing
        for digest in sorted(removed):
            try:
                self._unregister(digest)
            except FlowerError as problem:
                problems.append(problem)
        for digest, (name, path) in keys.items():
            try:
                if digest not in self._ids:
                    self._register(digest, name, path, keys)
                    self._remember()
            except FlowerError as problem:
                problems.append(problem)
        if not remembered and not begun:  # new keys come first: their clients wait
            self._compare(keys, forget=False)
        if not problems and not self._ids.keys() - keys.keys():
            self._checked = frozenset(keys)
        return problems

    def _compare(self, keys: Collection[str], forget: bool) -> None:
        """Name nodes that neither we nor the directory know; with ``forget``, forget those that the SuperLink lacks.

        The SuperLink's database may have been replaced, or the memory lost. If it does not answer, nothing is changed.
        """
        try:
            registered = self._registered()
        except FlowerError as reason:
            self._tell(f"sepal: {reason}")
            return
        if forget:
            self._ids = {digest: node for digest, node in self._ids.items() if registered.get(digest, "") == node}
        if strange := sorted(node for digest, node in registered.items() if digest not in {*self._ids, *keys}):
            some = ", ".join(strange[:3]) + (", …" if len(strange) > 3 else "")
            folder = self._credentials.directory / "nodes"
            self._tell(f"sepal: {len(strange)} registered nodes whose keys are not in {folder}: {some}")

    def _registered(self) -> dict[str, str]:
        """Return the ids of the SuperLink's registered nodes by key.

        Raises:
            FlowerError: It does not answer.
        """
        answer = self._run([sys.executable, "-P", "-m", "sepal.flower.nodes", CONNECTION])
        if isinstance(answer, str):
            raise FlowerError("the SuperLink's nodes", "a list", answer)
        nodes: Any = answer["nodes"]
        return dict(nodes)

    def _register(self, digest: str, name: str, path: Path, keys: Collection[str]) -> None:
        """Register a key, or note the ids of all ``keys`` that are registered already.

        The id is empty if the key was unregistered before, which Flower does not forget.
        """
        answer = self._flwr("register", str(path), "--name", name)
        if not isinstance(answer, str):
            self._tell(f"registered: {name}")
            self._ids[digest] = str(answer["node-id"])
            return
        if IN_USE not in answer.lower():
            raise FlowerError(f"flwr supernode register {path}", "a registered key", answer)
        self._ids |= {key: node for key, node in self._registered().items() if key in keys}
        if digest not in self._ids:
            self._ids[digest] = ""
            self._tell(f"sepal: {name}: this key was removed before and stays refused: make a new one")

    def _unregister(self, digest: str) -> None:
        node = self._ids[digest]
        answer = self._flwr("unregister", node) if node else {}
        if isinstance(answer, str) and digest in self._registered():
            raise FlowerError(f"flwr supernode unregister {node}", "an unregistered key", answer)
        if node:
            self._tell(f"unregistered: node {node}; its key is gone from {self._credentials.directory / 'nodes'}")
        del self._ids[digest]
        self._remember()

    def _flwr(self, verb: str, *arguments: str) -> dict[str, object] | str:
        """Run ``flwr supernode VERB`` and return its answer, or its message as text if it refuses."""
        return self._run(["flwr", "supernode", verb, arguments[0], CONNECTION, *arguments[1:], "--format", "json"])

    def _run(self, command: list[str]) -> dict[str, object] | str:
        """Run a command that prints JSON and return its answer, or its message as text if it fails."""
        completed = subprocess.run(
            command, env=dict(self._environment), capture_output=True, text=True, check=False, encoding="utf-8"
        )
        try:
            answer = json.loads(completed.stdout[completed.stdout.index("{") :])
        except ValueError:
            return one_line(COLOURS.sub("", completed.stdout + completed.stderr))
        return answer if answer.get("success") else str(answer.get("error-message", answer))

    def _remember(self) -> None:
        write_atomically(self._memory, json.dumps(self._ids).encode())


def _unreadable(path: Path, reason: Exception) -> ConfigError:
    expected = "public keys that can be read; until then no key is unregistered"
    return ConfigError(str(path), expected, getattr(reason, "strerror", None) or one_line(str(reason), 120))
