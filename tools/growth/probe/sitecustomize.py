"""Writes what a SuperLink's process has of memory every ten seconds: of the machine, and of the C library's allocator.

It is found by a SuperLink that has this directory on its ``PYTHONPATH``. ``SEPAL_PROBE_OUT`` names the file, and
``SEPAL_PROBE_METRICS`` the run's metrics.jsonl, whose lines are counted.
"""

import ctypes
import json
import os
import threading
import time
from pathlib import Path

FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
PAGE = os.sysconf("SC_PAGE_SIZE")


class Mallinfo2(ctypes.Structure):
    """What glibc's mallinfo2 returns (malloc.h), bytes."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def probe() -> None:
    """Append a line every ten seconds, as long as the process lives."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = Mallinfo2
    while True:
        time.sleep(10)
        allocator = libc.mallinfo2()
        metrics = Path(os.environ["SEPAL_PROBE_METRICS"])
        row = {
            "round": metrics.read_bytes().count(b"\n") if metrics.exists() else 0,
            "resident": PAGE * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]),
            "allocated": allocator.uordblks,
            "free": allocator.fordblks,
        }
        with open(os.environ["SEPAL_PROBE_OUT"], "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


if b"sepal.flower.superlink" in Path("/proc/self/cmdline").read_bytes() and os.environ.get("SEPAL_PROBE_OUT"):
    threading.Thread(target=probe, daemon=True).start()
