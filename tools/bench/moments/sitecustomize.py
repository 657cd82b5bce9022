"""Writes down when a message passes from one process to the next, for :mod:`tools.bench.deployed`.

Python imports a module of this name at start if its directory is on ``PYTHONPATH``. Each line of the file
``SEPAL_MOMENTS`` is: seconds of the monotonic clock, which all processes of a machine share; process id; what happened;
and the node's id, or the round for ``order``. What is put around a function names it as ``flowers``, because Sepal
checks its source (:mod:`sepal.flower.versions`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def note(event: str, about: Any) -> None:
    """Append one line; lines this short of several processes do not mix."""
    with open(os.environ["SEPAL_MOMENTS"], "a", encoding="utf-8") as file:
        file.write(f"{time.monotonic():.6f} {os.getpid()} {event} {about}\n")


def in_server(module: Any) -> None:
    """``order``: a round's messages begin to go out. ``taken``: a node's reply is here."""
    deliver = module.Exchange.deliver

    def noted(self: Any, nodes: Any, compose: Any, group: str, timeout: float, take: Any, *further: Any) -> Any:
        def noted_take(node: int, records: Any) -> None:
            note("taken", node)
            take(node, records)

        note("order", group)
        return deliver(self, nodes, compose, group, timeout, noted_take, *further)

    module.Exchange.deliver = noted


def in_node(module: Any) -> None:
    """``received``: the SuperNode has the message. ``sent``: the SuperLink has the reply."""
    pull, push = module._pull_and_store_message, module._push_messages

    def pulled(*, state: Any, **further: Any) -> Any:
        run = pull(state=state, **further)
        if run is not None:
            note("received", state.get_node_id())
        return run

    def pushed(*, state: Any, **further: Any) -> None:
        push(state=state, **further)
        note("sent", state.get_node_id())

    pulled.flowers, pushed.flowers = pull, push  # type: ignore[attr-defined]
    module._pull_and_store_message, module._push_messages = pulled, pushed


def in_process(module: Any) -> None:
    """``running``: Flower's code of the process, or fork, that answers a message begins."""
    run = module.run_clientapp

    def noted(*arguments: Any, **further: Any) -> Any:
        note("running", "-")
        return run(*arguments, **further)

    noted.flowers = run  # type: ignore[attr-defined]
    module.run_clientapp = noted


def in_app(module: Any) -> None:
    """``answering`` and ``answered``: the app is called with a message, and returns its reply."""
    call = module.ClientApp.__call__

    def noted(self: Any, message: Any, context: Any) -> Any:
        note("answering", context.node_id)
        reply = call(self, message, context)
        note("answered", context.node_id)
        return reply

    module.ClientApp.__call__ = noted


WATCHED: dict[str, Callable[[Any], None]] = {
    "sepal.server.exchange": in_server,
    "flwr.supernode.start_client_internal": in_node,
    "flwr.supernode.runtime.run_clientapp": in_process,
    "flwr.clientapp.client_app": in_app,
}


class Watching(Loader):
    """Changes a module right after it was executed."""

    def __init__(self, loader: Loader, change: Callable[[Any], None]) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute and change it."""
        self._loader.exec_module(module)
        self._change(module)


class WatchedFinder(MetaPathFinder):
    """Finds the modules that are watched."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the ordinary spec with our loader around its own."""
        spec = PathFinder.find_spec(name, path) if name in WATCHED else None
        if spec is not None and spec.loader is not None:
            spec.loader = Watching(spec.loader, WATCHED[name])
        return spec


if "SEPAL_MOMENTS" in os.environ:
    sys.meta_path.insert(0, WatchedFinder())
