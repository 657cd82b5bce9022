"""A process with many light clients: ``python -m tools.load.worker ADDRESS FIRST COUNT CONFIG OUT LOOK``."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from sepal import user_modules
from sepal.flower.connection import enter_task, watch_no_channels
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Payload
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tools.load.light import LightClient, PreparedAnswers

CALLING = 8  # clients of a process that call at the same time
UPLOADS = 50  # of 1 MB, more than a process's clients send in a round of 100 clients in four processes


def main() -> None:
    """Connect ``COUNT`` clients from number ``FIRST`` on, answer until standard input ends, write the timings.

    Each polls for a message every ``LOOK`` seconds.
    """
    address, first, count, config, out = sys.argv[1:6]
    look = float(sys.argv[6])
    user_modules.enable()
    watch_no_channels()
    threading.stack_size(256 * 1024)
    assembly = assemble(json.loads(config))
    weights = dict(assembly.setup.weights)
    facts = {"weights": digest_arrays(weights), "config": assembly.agreed}
    rng = np.random.default_rng(int(first))
    # A small step from the first weights: the server's guard takes weights of any other size for divergence.
    trained = [
        {name: (w + 1e-3 * rng.normal(size=w.shape)).astype(np.float32) for name, w in weights.items()}
        for _ in range(UPLOADS)
    ]
    contents = [seal(Payload({name: whole(w) for name, w in upload.items()})) for upload in trained]
    uploads = itertools.cycle(contents)  # all clients take from it, so none sends what another is sending
    enter_task()
    turn = threading.BoundedSemaphore(CALLING)
    lights = [
        LightClient(address, PreparedAnswers(ClientInfo(f"client-{number:05d}", 10), uploads, facts), look, turn=turn)
        for number in range(int(first), int(first) + int(count))
    ]
    for light in lights:
        light.start()
        time.sleep(look / len(lights))  # so that they do not all poll at the same moment
    sys.stdin.read()
    for light in lights:
        light._stop.set()
    results = {
        "timings": [timing for light in lights for timing in light.timings],
        "failures": [failure for light in lights for failure in light.failures],
    }
    Path(out).write_text(json.dumps(results), encoding="utf-8")
    os._exit(0)  # connections that wait for a busy SuperLink would keep the process alive


if __name__ == "__main__":
    main()
