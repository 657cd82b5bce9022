"""Lets the clients of a process meet where they train, so that they train at once (:mod:`sepal.training.stacked`).

Each client answers its message in a thread of its own, with networks of its own, unless nothing that was to be trained
so far can train with others; then they answer in the caller's, one after another. Only one thread runs at a time: a
client runs until it calls :meth:`sepal.training.trainer.Trainer.fit` or has answered, then the next one does. Once all
that are left wait in ``fit``, those of one kind train together, and each goes on. So methods need no change, the order
is always the same, and what one client raises is that client's alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

from sepal.errors import one_line
from sepal.training import stacked
from sepal.training.network import Network
from sepal.training.stacked import Fitted, Job, NotStackableError
from sepal.training.threads import set_threads

log = logging.getLogger("sepal")
T = TypeVar("T")
_HERE = threading.local()


class _LeftError(BaseException):
    """Ends a client's thread, because its answer is no longer needed."""


class Meeting:
    """The place where clients of one process meet.

    Args:
        threads: Number of torch threads of a client that trains alone.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._networks: list[dict[str, Network]] = []
        self._tried: set[Hashable] = set()
        self._kinds: set[Hashable] = set()
        self._refused: set[Hashable] = {None}

    def run(self, actions: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of ``actions``, one for each client; they run in turn and meet in :meth:`train`.

        If nothing that was to be trained here so far can train with others, they run in the caller's thread: new
        threads are thought to cost time on a GPU (docs/decisions/0023-batched-clients.md).
        """
        if self._kinds and self._kinds <= self._refused:
            self._networks.clear()
            return [action() for action in actions]
        self._networks += [{} for _ in range(len(actions) - len(self._networks))]
        members = [
            _Member(action, networks, self._threads) for action, networks in zip(actions, self._networks, strict=False)
        ]
        training_members = members
        try:
            while training_members:
                for member in training_members:
                    member.go_on()
                training_members = [member for member in training_members if member.job is not None]
                self._train(training_members)
        finally:
            for member in training_members:
                member.dismiss()
        return [member.result for member in members]

    def networks(self, alone: dict[str, Network]) -> dict[str, Network]:
        """Return the networks of the client that asks; ``alone`` outside :meth:`run`."""
        member: _Member | None = getattr(_HERE, "member", None)
        return alone if member is None else member.networks

    def train(self, job: Job | None) -> Fitted | None:
        """Train with the others; None if the client has to train alone. Without a job, it has to in any case."""
        common, member = stacked.kind(job) if job else None, getattr(_HERE, "member", None)
        self._kinds.add(common)
        if job is None or member is None or common in self._refused:
            return None
        job.kind = common
        fitted: Fitted | None = member.wait(job)
        return fitted

    def _train(self, members: Sequence[_Member]) -> None:
        """Train the jobs of ``members`` that are of one kind together; the others get nothing."""
        groups: dict[Hashable, list[_Member]] = {}
        for member in members:
            if member.job is not None:
                groups.setdefault(member.job.kind, []).append(member)
        for common, group in groups.items():
            jobs = [member.job for member in group if member.job is not None]
            fitted = (self._fitted(common, jobs) if len(jobs) > 1 else None) or []
            for index, member in enumerate(group):
                member.job, member.fitted = None, fitted[index] if fitted else None

    def _fitted(self, common: Hashable, jobs: Sequence[Job]) -> list[Fitted] | None:
        try:
            return stacked.train(jobs, self._tried)
        except NotStackableError as reason:
            log.debug("clients train one by one: %s", reason)
            self._refused.add(common)
            return None
        except torch.OutOfMemoryError as reason:
            log.warning("%d clients at a time do not fit the device: they train one by one (engine.batch)", len(jobs))
            log.debug("%s", one_line(str(reason)))
            self._refused.add(common)
        except Exception as reason:  # one client's own, such as of its hook: it raises again where it trains alone
            log.debug("clients train one by one: %s", one_line(f"{type(reason).__name__}: {reason}"))
            return None
        with suppress(RuntimeError):  # out of the except block, whose traceback holds the tensors
            torch.accelerator.empty_cache()
        return None


class _Member:
    """A client in a meeting.

    Attributes:
        networks: Its networks by use.
        job: What it waits to train; None if it does not wait.
        fitted: What the others' training has given it.
        result: What its action has returned.
    """

    def __init__(self, action: Callable[[], Any], networks: dict[str, Network], threads: int) -> None:
        self._action, self.networks, self._threads = action, networks, threads
        self.job: Job | None = None
        self.fitted: Fitted | None = None
        self.result: Any = None
        self._error: BaseException | None = None
        self._started = self._dismissed = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    # Called by the meeting's thread

    def go_on(self) -> None:
        """Let the client run until it waits with a job or has ended; raise what ended it, if not its own result."""
        if self._started:
            self._go.release()
        else:
            self._started = True
            threading.Thread(target=self._run, name="client", daemon=True).start()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def dismiss(self) -> None:
        """Let a client that waits end."""
        self._dismissed = True
        self._go.release()

    # Called by the client's own thread

    def wait(self, job: Job) -> Fitted | None:
        """Wait until the others have come; return what training together has given, if it has."""
        self.job = job
        self._back.release()
        self._go.acquire()
        if self._dismissed:
            raise _LeftError
        fitted, self.fitted = self.fitted, None
        return fitted

    def _run(self) -> None:
        _HERE.member = self
        set_threads(self._threads)  # OpenMP counts them by thread
        try:
            self.result = self._action()
        except _LeftError:
            pass
        except BaseException as error:
            self._error = error
        self._back.release()
