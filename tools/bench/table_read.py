"""Reads a directory's table as a run does, and prints CPU seconds, seconds and the process's peak memory in MiB.

A script, so that it also reads with another checkout's code: ``tools.bench.table`` sets ``PYTHONPATH``.
"""

import json
import resource
import sys
import time

from sepal.strategies.assembly import assemble

if __name__ == "__main__":
    directory, clients = sys.argv[1], 10
    keys = {"dataset": "folder", "data-dir": directory, "clients": clients, "partition.name": "iid", "method": "fedavg"}
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.monotonic()
    assemble({"dataset": "digits", "method": "fedavg"})  # imports are not what is measured
    cpu, begun = time.process_time(), time.monotonic()
    data = assemble(keys).data
    examples = sum(len(data.client(number, clients, "").train.y) for number in range(clients))
    found = {"cpu_s": time.process_time() - cpu, "s": time.monotonic() - begun, "mib_before": before}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**found, "mib": peak, "examples": examples}))
