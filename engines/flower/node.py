"""A SuperNode: Flower's ``flower-supernode``, by default with the resident process :mod:`sepal.engines.flower.warm`.

``python -m sepal.engines.flower.node`` takes the options of ``flower-supernode`` and differs from it in eight ways;
with ``--cold`` only in the first six, and in the last if ``--poll`` is given:

- A late reply is pushed even if no further message arrives.
- A reply whose content does not arrive is abandoned.
- A message whose task has ended without a reply is answered with an error.
- A bundle with code is refused, unless ``--allow-code`` is given.
- It ends, with exit code ``LOST``, if its client loop ends by an error that Flower does not retry, such as
  RESOURCE_EXHAUSTED from a server at its limit of calls. Flower 1.39 keeps the process alive without its loop.
- It talks to its client process over TLS, with a certificate made at the start.
- The executor is our resident process, which is restarted whenever it ends.
- The SuperNode's fixed pauses (3 s between polls for a message, .5 s between checks for the client's reply) start
  short and grow to that length while nothing happens; the first one grows to ``--poll`` seconds, if that is given.
  Flower 1.39 has no option for them, so the clock of its module ``start_client_internal`` is replaced, unless that
  module is not as expected.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from logging import WARNING
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, Status
from flwr.supercore import log

from sepal.engines.flower.processes import listening
from sepal.engines.flower.protection import own_tls, refuse_bundles_with_code
from sepal.errors import one_line

MESSAGE, REPLY = 3.0, 0.5  # Flower's pauses: between polls for a message, and checks for the client's reply
SHORTEST = {MESSAGE: 0.1, REPLY: 0.02}
GROWTH = 1.25
CONTENT = 30.0  # seconds for the next piece of a reply's content, which a living process writes within milliseconds
LOST = 75  # exit code: the client loop ended by an error (EX_TEMPFAIL in sysexits.h)
RESTART = 1.0  # seconds before an executor that has ended is started again


class Pauses:
    """A clock whose ``sleep`` starts short and grows to Flower's pauses while nothing happens.

    Args:
        wake: File descriptor to write to when a message has arrived.
        poll: Longest pause between two polls for a message, in seconds.
    """

    def __init__(self, wake: int, poll: float = MESSAGE) -> None:
        self._wake = wake
        self._next = dict(SHORTEST)
        self._longest = {MESSAGE: poll, REPLY: REPLY}
        self._last = MESSAGE

    def sleep(self, seconds: float) -> None:
        """Sleep; Flower's two pauses are told apart by their length."""
        if seconds not in self._next:
            time.sleep(seconds)
            return
        if seconds != self._last:  # from waiting for a message to waiting for a reply, or back
            self._next = dict(SHORTEST)
            self._last = seconds
        if seconds == REPLY:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b".")
        pause = self._next[seconds]
        self._next[seconds] = min(self._longest[seconds], pause * GROWTH)
        time.sleep(pause)


def shorten(module: ModuleType, pauses: Pauses) -> bool:
    """Make ``module`` sleep with ``pauses``; return False if it does not use ``time`` as Flower 1.39 does."""
    if getattr(module, "time", None) is not time:
        return False
    module.time = SimpleNamespace(sleep=pauses.sleep)  # type: ignore[attr-defined]
    return True


def push_late_replies(module: ModuleType) -> bool:
    """Make ``module`` push replies even if no message has arrived; return False if it has no such function.

    Flower 1.39 only pushes replies after it has pulled a message, and then those that are ready. If a run ends while
    one of its messages is being received, the reply is late and is pushed in place of the next message's. From then on
    every reply would wait for another message, so a resumed run would always end by its timeout.
    """
    pull = getattr(module, "_pull_and_store_message", None)
    if pull is None:
        return False

    def pull_or_push(*, state: Any, **further: Any) -> int | None:
        run: int | None = pull(state=state, **further)
        return 0 if run is None and reply_waits(state) else run  # any number: continue to the push stage

    module._pull_and_store_message = pull_or_push  # type: ignore[attr-defined]
    return True


def reply_waits(state: Any) -> bool:
    """Return whether a reply has not been pushed yet. ``get_messages`` would tell, but returns each reply only once."""
    if not hasattr(state, "msg_store"):
        return False
    with state.lock_msg_store:
        entries = list(state.msg_store.values())
    return any(not entry.is_retrieved and entry.message.metadata.reply_to_message_id for entry in entries)


class PatientStore:
    """Flower's object store, with a limit on how long it may be asked for content that is not there.

    Args:
        store: The store.
        seconds: How long ``get`` may return nothing for one piece of content.
    """

    def __init__(self, store: Any, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._missing, self._since = "", 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, object_id: str) -> bytes | None:
        """Return the content; ``b""`` if it has not arrived yet.

        Raises:
            TimeoutError: It has not arrived within ``seconds``.
        """
        content: bytes | None = self._store.get(object_id)
        if content == b"" and object_id != self._missing:
            self._missing, self._since = object_id, time.monotonic()
        elif content == b"" and time.monotonic() - self._since > self._seconds:
            raise TimeoutError(f"a reply's content: expected within {self._seconds:g} s, got none")
        return content


def give_up_lost_content(module: ModuleType) -> bool:
    """Make ``module`` abandon replies whose content does not arrive; return False if it has no such function.

    A client process first writes its reply and then the content. If it is killed in between, Flower 1.39 waits for the
    content forever and answers no further message.
    """
    push = getattr(module, "_push_messages", None)
    if push is None:
        return False

    def push_or_give_up(*, object_store: Any, **further: Any) -> None:
        push(object_store=PatientStore(object_store, CONTENT), **further)

    module._push_messages = push_or_give_up  # type: ignore[attr-defined]
    return True


class AnsweringState:
    """Flower's state of a SuperNode, with error replies to the messages that no process will answer.

    Args:
        state: The state.
        insert: Stores a reply in the SuperNode.
    """

    def __init__(self, state: Any, insert: Callable[[Message], None]) -> None:
        self._state, self._insert = state, insert

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages(self, **query: Any) -> Sequence[Message]:
        """Return the requested messages; with ``is_reply``, the errors, too."""
        found: Sequence[Message] = self._state.get_messages(**query)
        if found or not query.get("is_reply"):
            return found
        lost = abandoned(self._state)
        for message in lost:
            log(WARNING, "message %.8s: its task ended without a reply", message.metadata.message_id)
            error = Error(ErrorCode.CLIENT_APP_CRASHED, "the client's process ended without a reply")
            self._insert(Message(error, reply_to=message))
        return self.get_messages(**query) if lost else found


def abandoned(state: Any) -> list[Message]:
    """Return the messages without a reply whose runs have no task left that could send one."""
    # Read the tasks first: a process stores its reply before it ends its task.
    open_runs = {task.run_id for task in state.get_tasks(statuses=(Status.PENDING, Status.STARTING, Status.RUNNING))}
    with state.lock_msg_store:
        messages: list[Message] = [entry.message for entry in state.msg_store.values()]
    answered = {message.metadata.reply_to_message_id for message in messages}
    return [
        message
        for message in messages
        if not message.metadata.reply_to_message_id
        and message.metadata.message_id not in answered
        and message.metadata.run_id not in open_runs
    ]


def answer_abandoned(module: ModuleType) -> bool:
    """Make ``module`` answer messages whose tasks have ended without a reply; return False if it has no such functions.

    Flower 1.39 creates a task for each message and waits indefinitely for the reply. If the task's process is killed
    between the task's input and its message, or fails there, Flower ends the task but sends no error in its place.
    """
    push, insert = getattr(module, "_push_messages", None), getattr(module, "_insert_message", None)
    if push is None or insert is None:
        return False

    def push_or_answer(*, state: Any, object_store: Any, **further: Any) -> None:
        store = AnsweringState(state, lambda reply: insert(reply, state, object_store))
        push(state=store, object_store=object_store, **further)

    module._push_messages = push_or_answer  # type: ignore[attr-defined]
    return True


def keep_executor(command: Sequence[str], port: int, wake: int) -> None:
    """Start the executor once the SuperNode listens, and restart it whenever it ends; does not return."""
    while not listening(port):
        time.sleep(0.1)
    while True:
        begun = time.monotonic()
        subprocess.run(command, pass_fds=(wake,), check=False)
        time.sleep(max(0.0, RESTART - (time.monotonic() - begun)))


def executor_command(options: argparse.Namespace, secret: Path, wake: int) -> list[str]:
    """Return the command of the resident client process."""
    command = [sys.executable, "-P", "-m", "sepal.engines.flower.warm", "--node", str(os.getpid()), "--wake", str(wake)]
    host = "localhost" if options.ssl_ca_certfile and options.host == "127.0.0.1" else options.host  # as certified
    command += ["--runtime-api-address", f"{host}:{options.port}", "--superexec-auth-secret-file", str(secret)]
    return command + (["--root-certificates", options.ssl_ca_certfile] if options.ssl_ca_certfile else [])


def main() -> None:
    """Run the SuperNode in this process; end the process if its client loop ends by an error."""
    why = "an error that Flower does not retry"
    try:
        run()  # an error of gRPC ends the loop without an exception
    except Exception as error:
        why = one_line(str(error), 300)
    print(f"sepal: the SuperNode's loop ended: {why}", file=sys.stderr, flush=True)
    os._exit(LOST)  # Flower's HTTP thread would keep the process alive


def run() -> None:
    """Run the SuperNode in this process."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--cold", action="store_true")
    ours.add_argument("--allow-code", action="store_true")
    ours.add_argument("--poll", type=float, default=MESSAGE)
    chosen, flowers = ours.parse_known_args()
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--host", default="127.0.0.1")
    shared.add_argument("--port", type=int, required=True)
    shared.add_argument("--ssl-ca-certfile")
    shared.add_argument("--superexec-auth-secret-file")
    options, _ = shared.parse_known_args(flowers)
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    if not chosen.allow_code:
        refuse_bundles_with_code(internal)
    push_late_replies(internal)
    give_up_lost_content(internal)
    answer_abandoned(internal)
    received, wake = os.pipe()
    os.set_blocking(wake, False)
    own_pauses = not chosen.cold or chosen.poll != MESSAGE
    if own_pauses and not shorten(internal, Pauses(wake, chosen.poll)):
        print("sepal: Flower's SuperNode keeps its own pauses", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="sepal-node-") as text:
        more = [] if options.ssl_ca_certfile else own_tls(Path(text))
        options.ssl_ca_certfile = options.ssl_ca_certfile or more[-1]
        if chosen.cold:
            sys.argv = ["flower-supernode", *flowers, *more]
            flower_supernode()
            return
        secret = Path(options.superexec_auth_secret_file or Path(text) / "secret")
        more += ["--isolation", "process"]
        if options.superexec_auth_secret_file is None:
            secret.write_bytes(secrets.token_bytes(32))
            secret.chmod(0o600)
            more += ["--superexec-auth-secret-file", str(secret)]
        sys.argv = ["flower-supernode", *flowers, *more]
        command = executor_command(options, secret, received)
        threading.Thread(target=keep_executor, args=(command, options.port, received), daemon=True).start()
        flower_supernode()


if __name__ == "__main__":
    main()
