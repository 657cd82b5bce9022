"""Sends a value as the in-process engine sends it to its workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe


def through_a_pipe(value):
    """Return what comes out at the other end. A thread sends, because a pipe holds only some 64 KiB."""
    here, there = Pipe()
    with here, there, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(here.send, value)
        if (failed := sent.exception(timeout=10)) is not None:
            raise failed
        return there.recv()
