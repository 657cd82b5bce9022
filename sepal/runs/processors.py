"""The kind of processor on which a run was made: results are only the same to the bit on the same kind."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's name; results are only bit-identical on the same kind of CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
