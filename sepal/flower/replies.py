"""What servers and the in-process engine use from Flower's private API.

All modules below are loaded by ``flwr.app`` anyway, so importing this one costs nothing more.

- ``TaskIdentity``: Flower refuses to create a ``Message`` in a process that has no run id. If it changes, in-process
  runs cannot create messages. A public constructor would replace it.
- ``ErrorCode``: tells a client that failed from one that was unreachable. If the codes change meaning, a client that
  failed is asked again until the round ends. Documented codes would replace it.
- ``Metadata._message_id``: Flower sets it when a message is sent through a SuperLink. If it changes, in-process replies
  match no message.
- ``http_grid.pull_objects`` and ``inflate_object_from_contents``: wrapped, so that a reply is measured before its
  arrays are assembled. If they or ``HttpGrid.pull_messages`` change, ``bound_replies`` raises when a run starts. A
  limit on a reply's size in ``Grid`` would replace it.
- ``HttpGrid._client``, ``_runtime_client`` and ``PullMessages``: one request for many replies, and one reply at a time
  after it. If ``_client`` is renamed, ``at_hand`` returns None, and replies are requested one by one, which is slower.
  A ``pull_messages`` that yields each reply as it is decoded would replace it.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.task_identity import TaskIdentity

from sepal.flower.versions import unchanged

Pull: TypeAlias = Callable[[], Iterable[Message]]

CLIENT_APP_RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
REPLY_GONE = frozenset({ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE})
CLIENT_APP_FAILED = frozenset({ErrorCode.LOAD_CLIENT_APP_EXCEPTION, CLIENT_APP_RAISED})

MOST_OBJECTS = 4096  # of a reply: its records, arrays and chunks of 5 MiB
MOST_BODY = 1 << 20  # bytes of an array's list of chunks


def enter_run(run_id: int = 1, node_id: int = 1) -> None:
    """Give this process the identity without which Flower creates no Message."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, node_id


def set_message_id(message: Message, name: str) -> None:
    """Set the message's id, as a SuperLink does when it accepts the message."""
    message.metadata.__dict__["_message_id"] = name


@dataclass
class _Answered:
    """A SuperLink client that already has the answer to its request for replies; all else goes to ``client``."""

    client: Any
    answer: Any

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 (Flower's name)
        return self.answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


def at_hand(grid: Grid, names: Sequence[str]) -> list[tuple[str, Pull]] | None:
    """Ask a SuperLink, in one call, which of the messages ``names`` have a reply.

    A call for many messages costs a SuperLink hardly more than one for a single message. But Flower's ``pull_messages``
    decodes all replies of a call before it returns the first, so one that cannot be decoded would lose the others: here
    each is pulled alone. A SuperLink deletes messages and replies before it sends the answer, so an answer that is lost
    loses all its replies: ask for a few dozen at a time.

    Returns:
        For each reply the id of the message that it answers, and the call that pulls it; that call can raise any
        exception. None where ``grid`` is not a SuperLink's.
    """
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    if module is None or not isinstance(grid, module.HttpGrid):
        return None
    if grid._runtime_client is not getattr(grid, "_client", None):
        return None
    client: Any = grid._runtime_client
    response = module.PullAppMessagesResponse
    answer = client.PullMessages(module.PullAppMessagesRequest(message_ids=names))

    def pull(message: Any, tree: Any) -> list[Message]:
        grid_copy = copy.copy(grid)
        grid_copy._client = _Answered(client, response(messages_list=[message], message_object_trees=[tree]))
        return list(grid_copy.pull_messages([message.metadata.reply_to_message_id]))

    pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
    return [(message.metadata.reply_to_message_id, partial(pull, message, tree)) for message, tree in pairs]


def bound_replies(most: int) -> None:
    """Let this process refuse replies from a SuperLink that would take more than ``most`` bytes of memory.

    Flower assembles an array from chunks that the sender lists, and the sender may list the same chunk many times:
    5 MB can become gigabytes. So the sizes are added up first. A refused reply raises ValueError while it is pulled.

    Args:
        most: Bytes of a reply's objects as sent, and bytes of its arrays.

    Raises:
        FlowerChangedError: Flower's functions are not as expected.
    """
    from flwr.superlink.grid import http_grid  # only where there is a SuperLink

    unchanged(http_grid, "HttpGrid.pull_messages", "pull_objects", "inflate_object_from_contents")
    names = vars(http_grid)
    pull, inflate = (
        getattr(names[name], "flowers", names[name]) for name in ("pull_objects", "inflate_object_from_contents")
    )

    def bounded_pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **keys: Any) -> dict[str, bytes]:
        if len(object_ids) > MOST_OBJECTS:
            raise ValueError(f"expected a reply of at most {MOST_OBJECTS} objects, got {len(object_ids)}")
        pulled = [0]

        def counted(name: str) -> bytes:
            if pulled[0] > most:  # a worker thread or two may be a chunk late
                raise ValueError(f"expected a reply of at most {most} bytes, got more")
            content = pull_object_fn(name)
            pulled[0] += len(content)
            return content

        return dict(pull(object_ids, counted, **keys))

    def bounded_inflate(object_id: str, object_contents: dict[str, bytes], **keys: Any) -> Any:
        size = arrays_bytes(object_contents)
        if size > most:
            raise ValueError(f"expected arrays of at most {most} bytes, got {size}")
        return inflate(object_id, object_contents, **keys)

    bounded_pull.flowers, bounded_inflate.flowers = pull, inflate  # type: ignore[attr-defined]
    names.update(pull_objects=bounded_pull, inflate_object_from_contents=bounded_inflate)


def arrays_bytes(contents: Mapping[str, bytes]) -> int:
    """Return the bytes of all arrays of a message whose objects are ``contents``, without assembling them.

    Raises:
        ValueError: An array lists a chunk that it does not have.
    """
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind != "Array":
            continue
        body = content[content.index(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) :]
        if len(body) > MOST_BODY:
            raise ValueError(f"expected an array of at most {MOST_BODY} bytes without its chunks, got {len(body)}")
        indices = json.loads(body)["arraychunk_ids"]
        if not all(isinstance(index, int) and 0 <= index < len(children) for index in indices):
            raise ValueError("expected chunks of the array, got others")
        total += sum(len(contents[children[index]]) for index in indices)
    return total
