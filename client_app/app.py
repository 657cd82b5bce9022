"""The Flower ClientApp. A single handler builds the client and lets it answer any kind of message."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sepal import user_modules
from sepal.client_app.audit import Audit
from sepal.client_app.build import (
    Node,
    Shared,
    build_host,
    changing_data,
    has_whole,
    open_store,
    open_upload_count,
    open_vault,
    parts_of,
)
from sepal.client_app.frozen_data import FrozenData
from sepal.client_app.guard import (
    check_columns,
    check_noise,
    check_secure,
    check_sizes,
    check_split,
    limited_memory,
    local_config,
)
from sepal.client_app.host import ClientHost
from sepal.client_app.mods import Mod, refuse_array_mods
from sepal.client_app.simulation import protect_ray
from sepal.config.parse import without_unknown
from sepal.errors import ProtocolError, one_line
from sepal.flower.simulation import on_one_machine, starts_ray
from sepal.operation.figures import CLOSING, NO_ANSWER, STATS, log_as_json
from sepal.operation.repeats import Seldom
from sepal.protocol.client_errors import word_of
from sepal.protocol.fields import arrays_of
from sepal.protocol.messages import read_order, sender_of, write_client_error, write_error
from sepal.protocol.peer import Peer, ourselves
from sepal.protocol.types import STEPS, Kind
from sepal.strategies import registry
from sepal.training.devices import device_memory

user_modules.enable()


class _OwnLines(logging.Formatter):
    """Marks Sepal's lines, by which `sepal join` tells them from Flower's."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return f"sepal: {super().format(record)}" if record.name == "sepal" else super().format(record)


if not log_as_json() and logging.lastResort:  # the handler of a process that has set no other
    logging.lastResort.setFormatter(_OwnLines())
    logging.lastResort.addFilter(Seldom())
    logging.lastResort.setLevel(logging.INFO)  # of other loggers than ours, the root's level still holds
if starts_ray():
    protect_ray()
log = logging.getLogger("sepal")
if not log.level:
    log.setLevel(logging.INFO)


class SepalClientApp(ClientApp):
    """A ClientApp that Ray actors can unpickle safely.

    Ray puts the driver's working directory first on an actor's ``sys.path``, where a user's ``client_app.py`` or
    ``models.py`` would hide Sepal's. Unpickling removes the directory before it imports Sepal.
    """

    def __init__(self, mods: Sequence[Mod]) -> None:
        super().__init__(mods=list(mods))
        self._chosen = tuple(mods)

    def __reduce__(self) -> tuple[Callable[[], ClientApp], tuple[()]]:
        directory, mods = os.path.realpath(os.getcwd()), self._chosen
        installation = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))

        def restore() -> ClientApp:  # Ray pickles an inner function by value, without imports
            import os
            import sys

            if directory != installation:
                sys.path[:] = [path for path in sys.path if os.path.realpath(path) != directory]
            from sepal.client_app.app import make_app

            return make_app(mods)

        return restore, ()


def make_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Return Sepal's ClientApp with further mods around it.

    Args:
        mods: Flower mods that look at messages without rewriting arrays, such as ``message_size_mod``.

    Raises:
        ConfigError: A mod cannot read the sparse payload, so its protection would have no effect.
    """
    refuse_array_mods(mods)
    app = SepalClientApp(mods)
    for decorate in (app.query(), app.train(), app.train("adapt"), *(app.train(step.value) for step in STEPS)):
        decorate(handle)
    return app


def _trusted(context: Context, node: Node, server: Peer) -> dict[str, object]:
    """Return the run config, with this node's own paths and code in a deployment.

    A key that the server's protocol lacks has the value of before; what this protocol lacks is left out, and
    the server decides whether that changes anything (:func:`sepal.config.agreement.disagreement`).
    """
    if on_one_machine():
        return dict(context.run_config)
    flat = local_config(context.run_config, node)
    if server.protocol < ourselves().protocol:
        flat = registry.as_begun(flat)
    elif server.protocol > ourselves().protocol:
        flat = without_unknown(flat, registry.Hypers())
    check_sizes(flat)
    return flat


@lru_cache(maxsize=2)
def _shared(run_config: tuple[tuple[str, object], ...], device: str) -> Shared:
    """Return the run's parts, cached, because actors of a simulation answer many messages."""
    return Shared.of(dict(run_config), device)


def handle(message: Message, context: Context) -> Message:
    """Answer one message of any kind, and write a line about it to the file that ``SEPAL_STATS`` names."""
    begun, path = time.monotonic(), os.environ.get(STATS)
    reply = _handle(message, context)
    if path:
        down, up = _payload(message.content), _payload(reply.content)
        result, round = "error" if "error" in reply.content else "answered", message.metadata.group_id
        line = {
            "kind": message.metadata.message_type,
            "result": result,
            "round": int(round) if round.isdecimal() and len(round) < 10 else 0,
            "down": down,
            "up": up,
        }
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "seconds": time.monotonic() - begun}) + "\n")
    return reply


def _payload(records: RecordDict) -> int:
    return sum(len(array.data) for array in arrays_of(records))


def _handle(message: Message, context: Context) -> Message:
    """Answer one message of any kind for the client that ``context`` describes.

    If the node raises an error, the server gets a word for it, its class and a code; the details are in the node's log.
    """
    name, audit, began = "client", None, time.monotonic()
    try:
        node = Node.of(context.node_config)
        name, audit = node.client, Audit(Path(node.audit)) if node.audit else None
        with limited_memory() if limits_memory(node) else nullcontext(), device_memory():
            answer = _answer(message, context, node)
    except Exception as error:
        answer = _error(error, name, message, context)
    if audit:
        try:
            audit.write(name, message.content, answer, seconds=round(time.monotonic() - began, 3))
        except Exception as error:  # nothing leaves without its line
            answer = _error(error, name, message, context)
    return Message(answer, reply_to=message)


def _error(error: Exception, name: str, message: Message, context: Context) -> RecordDict:
    """Return an error's answer: Flower would send the text of an exception to the server. The log has that text."""
    if isinstance(error, ProtocolError) and error.key == "protocol":
        log.error("%s: %s", name, error)
        return write_error(error, name)
    code, kind = f"{secrets.randbelow(10**8):08d}", message.metadata.message_type
    why = one_line(f"{type(error).__name__}: {error}", 500)
    log.error("%s: %s %s (%s), code %s: %s", name, NO_ANSWER, kind, word_of(error), code, why, exc_info=error)
    return write_client_error(error, name, code, context.run_config)


def limits_memory(node: Node) -> bool:
    """Return whether answers have a limit of memory: in a deployment, without CUDA, which reserves all addresses."""
    return not on_one_machine() and (node.device == "cpu" or not torch.cuda.is_available())


def _answer(message: Message, context: Context, node: Node) -> RecordDict:
    order, content = read_order(message.content)  # first: of another protocol, nothing else can be understood
    config = _trusted(context, node, sender_of(message.content))
    shared = _shared(tuple(sorted(config.items())), node.device)
    if on_one_machine():  # in a deployment, owners' names stay where their data is
        node = node.named(shared.assembly)
    if order.kind is Kind.QUERY and order.plan.phase:
        log.warning("%s: refused by the server: %s", node.client, one_line(order.plan.phase, 256))
    if order.kind is Kind.ADAPT and order.keep and not on_one_machine():
        log.info("%s: %s", node.client, CLOSING)
    check_secure(node, shared.assembly.setup.config)
    check_split(node, shared.assembly.setup.config)
    check_columns(node, shared.assembly.data)
    check_noise(node, shared.assembly.setup.config, order, shared.assembly.method.private_phases)
    store = open_store(shared, node, order.run)
    # A query may arrive while the client trains; all other messages are answered one at a time.
    with nullcontext() if order.kind is Kind.QUERY else store.lock():
        secret = b"" if on_one_machine() else store.secret.encode()  # a simulation is repeatable from its seed
        source = None if on_one_machine() else changing_data(shared, node, store)
        host = build_host(shared, node, order.run, store, secret, source, open_vault(store))
        if order.kind is not Kind.QUERY and not on_one_machine():
            # Before the training, which a full disk would waste; and the size may not depend on what it gives.
            store.check_room(len(content.data) + 4 * sum(parameter.size for parameter in shared.assembly.setup.layout))
        if order.kind is Kind.QUERY and not on_one_machine():
            log.info("%s: %s", node.client, _share(node, shared, host))
        if not on_one_machine() and (node.most_uploads or shared.assembly.setup.config.privacy.noise):
            host = replace(host, spend=open_upload_count(shared, node).spend)
        if node.export:
            from sepal.export.extraction import write_deployed

            host = replace(host, deliver=partial(write_deployed, shared, node, order, source=source))
        answer = host.answer(message.content)
        if isinstance(source, FrozenData) and order.kind is Kind.ADAPT and order.keep:
            source.remove()  # the closing round, whose reply is stored
        return answer


def _share(node: Node, shared: Shared, host: ClientHost) -> str:
    """Return what of its data a node trains with: all of its own files, or a part of a shared data set."""
    examples = f"{host.info.examples} training examples"
    if node.data:
        return f"{examples} of {node.data}"
    parts = parts_of(shared.assembly, node)
    share = "all" if has_whole(shared.assembly, node) else f"part {node.partition + 1} of {parts}"
    return f"{examples}, {share} of the data set {shared.assembly.setup.config.dataset} on this machine"


app = make_app()
