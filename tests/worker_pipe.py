"""Sends a value as the in-process engine sends it to its workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe


def through_a_pipe(value):
    """Return what comes out at the other end. A thread sends, because a pipe holds only some 64 KiB."""
    sending_end, receiving_end = Pipe()
    with sending_end, receiving_end, ThreadPoolExecutor(1) as sender:
        sent = sender.submit(sending_end.send, value)
        if (failed := sent.exception(timeout=10)) is not None:
            raise failed
        return receiving_end.recv()
