"""A SuperLink that was paused, or whose clock jumped, counts that time for nobody.

Flower writes down until when a task and a node are alive, by the wall clock: after the last heartbeat for 60 s. When a
machine was paused for longer, or its clock jumps ahead, the SuperLink finds all of them silent before one of them could
say a word, and ends the run ("No heartbeat received from the task"). Here a thread looks at the clock every second.
Where more time has passed in between than a busy machine takes, all those dates are moved by it before Flower looks at
them. Messages keep their dates: what has expired is sent again.

An expiry by a monotonic clock, and one that gives a heartbeat time after a pause, would replace this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from logging import WARNING
from typing import Any

from flwr.supercore import log

from sepal.flower.versions import FlowerChangedError

TICK = 1.0  # seconds between two looks at the clock
JUMP = 5.0  # seconds: a step of the clock by less is no pause
SETTLE = 1.0  # seconds within which the moved dates are written for all to see


class ClockWatch:
    """Notices that this process was paused or that the wall clock jumped.

    Args:
        wall: Returns the time in seconds.
        steady: Returns seconds of a clock that no one sets.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._lock = threading.Lock()
        self._last, self._gap, self._settled = wall(), 0.0, steady()

    def look(self) -> None:
        """Note the time; to be called every ``TICK`` seconds."""
        with self._lock:
            self._note()

    def _note(self) -> None:
        now = self._wall()
        step = now - self._last
        self._last = now
        if abs(step - TICK / 2) > JUMP:
            self._gap += step

    def take(self) -> float:
        """Return by how many seconds dates are to be moved, once: whoever gets them moves them now."""
        with self._lock:
            self._note()
            gap, self._gap = self._gap, 0.0
            if gap:
                self._settled = self._steady() + SETTLE
            return gap

    def settled(self) -> bool:
        """Return whether the dates are as they should be."""
        with self._lock:
            return self._steady() >= self._settled

    def run(self) -> None:
        """Look at the clock until the process ends."""
        while True:
            time.sleep(TICK)
            self.look()


def forgive_pauses() -> None:
    """Make this process's SuperLink count no time in which it was paused, or by which its clock jumped.

    Raises:
        FlowerChangedError: Flower's link state is another than this relies on.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    watch = ClockWatch()
    for kind, name in (
        (SqlCoreState, "_cleanup_expired_task_tokens"),
        (SqlLinkState, "_check_and_tag_offline_nodes"),
        (SqlCoreState, "get_task_by_token"),
    ):
        if not callable(getattr(kind, name, None)):
            raise FlowerChangedError(f"flwr.{kind.__name__}.{name}", "a method", "none")
        replacement = patient if name == "get_task_by_token" else spared
        setattr(kind, name, replacement(getattr(kind, name), watch))
    threading.Thread(target=watch.run, daemon=True).start()


def spared(expire: Callable[..., None], watch: ClockWatch) -> Callable[..., None]:
    """Return ``expire``, which ends what is silent, only when the dates that it looks at are moved."""

    @wraps(expire)
    def expire_later(state: Any, *arguments: Any) -> None:
        mend(state, watch)
        if watch.settled():
            expire(state, *arguments)

    return expire_later


def patient(find: Callable[..., Any], watch: ClockWatch) -> Callable[..., Any]:
    """Return ``find``, which finds nothing whose date has passed, once the dates are moved."""

    @wraps(find)
    def find_later(state: Any, *arguments: Any) -> Any:
        mend(state, watch)
        while not watch.settled():
            time.sleep(SETTLE / 20)
        return find(state, *arguments)

    return find_later


def mend(state: Any, watch: ClockWatch) -> None:
    """Move the dates of tasks and nodes in ``state`` by what the clock has jumped since the last call."""
    gap = watch.take()
    if not gap:
        return
    log(WARNING, "paused, or the clock was set: %.0f s that count for nobody", gap)
    from flwr.supercore.state.schema.corestate_models import Task
    from flwr.supercore.state.schema.linkstate_models import Node
    from sqlalchemy import select

    with state.session() as session:
        for task in session.scalars(select(Task).where(Task.active_until.is_not(None))):
            task.active_until += timedelta(seconds=gap)
        for node in session.scalars(select(Node).where(Node.online_until.is_not(None))):
            node.online_until += gap
