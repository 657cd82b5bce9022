"""A client's own data, and what may go wrong while it is read: chosen by a file that a test writes."""

import os
import resource
import time
from pathlib import Path

import numpy as np

MEBIBYTE = 1 << 20


def load():
    file = Path(os.environ["SEPAL_TEST_TROUBLE"])
    trouble = file.read_text() if file.exists() else ""
    if trouble:
        file.with_suffix(".seen").write_text(str(os.getpid()))
    if trouble == "sleep":
        file.unlink()
        time.sleep(60)
    if trouble == "memory":
        file.unlink()
        fill_memory(256 << 20)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 5)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return x[:30], y[:30], x[30:], y[30:]


def fill_memory(most):
    """Take memory until this process has ``most`` bytes more than now and gets no further ones."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + most, has + most))
    hoard = []
    while len(hoard) * MEBIBYTE < 2 * most:  # some of it was there before
        hoard.append(np.ones(MEBIBYTE, np.uint8))
    raise AssertionError("there was no limit")


def build(shape, classes):
    from torch import nn

    return nn.Linear(shape[0], classes)
