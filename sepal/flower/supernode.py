"""Changes to Flower's SuperNode loop, the module ``flwr.supernode.start_client_internal``.

No public API has a part in this loop: it is what ``flower-supernode`` runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from logging import WARNING, Logger, LogRecord, getLogger
from types import ModuleType, SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, Status
from flwr.supercore import log

from sepal.errors import SepalError, one_line
from sepal.flower.versions import FlowerChangedError, unchanged

MESSAGE, REPLY = 3.0, 0.5  # Flower's pauses: between polls for a message, and checks for the client's reply
SHORTEST = {MESSAGE: 0.1, REPLY: 0.02}
GROWTH = 1.25
CONTENT = 30.0  # seconds for the next piece of a reply's content, which a living process writes within milliseconds


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


def loop() -> ModuleType:
    """Return Flower's module, if it is as the functions below expect.

    Raises:
        FlowerChangedError: It is not.
    """
    module = importlib.import_module("flwr.supernode.start_client_internal")
    functions = ("start_client_internal", "_pull_and_store_message", "_push_messages", "_insert_message")
    unchanged(module, *functions)
    state = importlib.import_module("flwr.supernode.nodestate.in_memory_nodestate")
    unchanged(state, "InMemoryNodeState.store_message")
    if module.time is not time:
        raise FlowerChangedError("flwr.supernode.start_client_internal.time", "the module time", module.time)
    return module


def start(arguments: Sequence[str]) -> None:
    """Run ``flower-supernode`` with ``arguments`` in this process."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def log_one_line(logger: Logger = getLogger("flwr")) -> None:  # noqa: B008  (always the same)
    """Make Flower's logger write texts of a message, such as its group id, as one printable line.

    The server chooses them. With line ends it could write entries of its own into the node's log, and with escapes to
    the operator's terminal.
    """

    def clean(record: LogRecord) -> bool:
        if isinstance(record.args, tuple):
            printable_args = (part if isinstance(part, int | float) else str(part) for part in record.args)
            record.args = tuple(
                one_line(p) if isinstance(p, str) and not p.isprintable() else p for p in printable_args
            )
        return True

    logger.addFilter(clean)


def shorten(module: ModuleType, pauses: Pauses) -> None:
    """Make ``module`` sleep with ``pauses``."""
    module.time = SimpleNamespace(sleep=pauses.sleep)  # type: ignore[attr-defined]


def push_late_replies(module: ModuleType) -> None:
    """Make ``module`` push replies even if no message has arrived.

    Flower 1.39 only pushes replies after it has pulled a message, and then those that are ready. If a run ends while
    one of its messages is being received, the reply is late and is pushed in place of the next message's. From then on
    every reply would wait for another message, so a resumed run would always end by its timeout.
    """
    pull = module._pull_and_store_message

    def pull_or_push(*, state: Any, **further: Any) -> int | None:
        run: int | None = pull(state=state, **further)
        return 0 if run is None and reply_waits(state) else run  # any number: continue to the push stage

    module._pull_and_store_message = put_around(pull, pull_or_push)  # type: ignore[attr-defined]


def reply_waits(state: Any) -> bool:
    """Return whether a reply has not been pushed yet. ``get_messages`` would tell, but returns each reply only once."""
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


def give_up_lost_content(module: ModuleType) -> None:
    """Make ``module`` abandon replies whose content does not arrive.

    A client process first writes its reply and then the content. If it is killed in between, Flower 1.39 waits for the
    content forever and answers no further message.
    """
    push = module._push_messages

    def push_or_give_up(*, object_store: Any, **further: Any) -> None:
        push(object_store=PatientStore(object_store, CONTENT), **further)

    module._push_messages = put_around(push, push_or_give_up)  # type: ignore[attr-defined]


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
        """Return the requested messages; with ``is_reply``, the errors, too. Flower's name up to 1.40."""
        return self._get(self._state.get_messages, query)

    def get_messages_legacy(self, **query: Any) -> Sequence[Message]:
        """Do the same as :meth:`get_messages`. Flower's name from 1.41 on."""
        return self._get(self._state.get_messages_legacy, query)

    def _get(self, ask: Callable[..., Sequence[Message]], query: dict[str, Any]) -> Sequence[Message]:
        messages = ask(**query)
        if messages or not query.get("is_reply"):
            return messages
        lost = abandoned(self._state)
        for message in lost:
            log(WARNING, "message %.8s: its task ended without a reply", message.metadata.message_id)
            error = Error(ErrorCode.CLIENT_APP_CRASHED, "the client's process ended without a reply")
            self._insert(Message(error, reply_to=message))
        return self._get(ask, query) if lost else messages


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


def answer_abandoned(module: ModuleType) -> None:
    """Make ``module`` answer messages whose tasks have ended without a reply.

    Flower 1.39 creates a task for each message and waits indefinitely for the reply. If the task's process is killed
    between the task's input and its message, or fails there, Flower ends the task but sends no error in its place.
    """
    push, insert = module._push_messages, module._insert_message

    def push_or_answer(*, state: Any, object_store: Any, **further: Any) -> None:
        store = AnsweringState(state, lambda reply: insert(reply, state, object_store))
        push(state=store, object_store=object_store, **further)

    module._push_messages = put_around(push, push_or_answer)  # type: ignore[attr-defined]


def refuse_bundles(module: ModuleType, refuse: Callable[[bytes], None]) -> None:
    """Make ``module`` answer messages of a run whose app has code with an error, before its bundle is stored.

    So neither the resident process nor one of Flower's own ever unpacks or imports it.

    Args:
        module: Flower's.
        refuse: Raises a SepalError if a bundle, a ZIP file, has code.
    """
    pull, insert = module._pull_and_store_message, module._insert_message

    def pull_or_refuse(*, state: Any, object_store: Any, receive: Any, get_fab: Any, **further: Any) -> int | None:
        received: list[Message] = []

        def noted() -> Any:
            pulled = receive()
            received[:] = [pulled[0]] if pulled else []
            return pulled

        def checked(*which: Any) -> Any:
            fab = get_fab(*which)
            refuse(fab.content)
            return fab

        try:
            run: int | None = pull(state=state, object_store=object_store, receive=noted, get_fab=checked, **further)
            return run
        except SepalError as reason:
            (message,) = received
            log(WARNING, "run %s: %s", message.metadata.run_id, reason)
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(reason))
            insert(Message(error, reply_to=message), state, object_store)
            return message.metadata.run_id

    module._pull_and_store_message = put_around(pull, pull_or_refuse)  # type: ignore[attr-defined]


def put_around(flowers: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``replacement``, with Flower's function noted for :func:`sepal.flower.versions.unchanged`."""
    replacement.flowers = getattr(flowers, "flowers", flowers)  # type: ignore[attr-defined]
    return replacement
