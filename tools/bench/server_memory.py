"""Memory of the server by the number of clients: downloads and uploads of 3 MB each, two rounds of all clients."""

from __future__ import annotations

import multiprocessing
import resource
from dataclasses import replace
from typing import Any

import numpy as np

ENTRIES = 3 * 2**20 // 4


def _run(clients: int, queue: Any) -> None:
    from flwr.app import Message

    from sepal.engines.in_process.grid import InProcessGrid
    from sepal.layout import Parameter, Role
    from sepal.protocol.messages import Content, Reply, read_order, version, write_reply
    from sepal.protocol.payloads import seal
    from sepal.protocol.types import ClientInfo, Kind, Payload
    from sepal.server.strategy import SepalStrategy
    from sepal.strategies.assembly import assemble
    from sepal.strategies.baselines.fedavg import FedAvg
    from sepal.wire.tensors import whole

    assembly = assemble({"method": "fedavg", "dataset": "digits", "rounds": 2, "evaluate-every": 0})
    config = assembly.setup.config.model_copy(update={"clients": clients})
    layout = (Parameter("w", (ENTRIES,), Role.WEIGHT),)
    setup = replace(assembly.setup, layout=layout, weights={"w": np.zeros(ENTRIES, np.float32)}, config=config)

    def answer(message: Message) -> Message:
        """Answer as a client without data or training, which sends its number."""
        number = message.metadata.dst_node_id
        order, download = read_order(message.content)
        reply = Reply(order.run, order.plan.round, order.kind, ClientInfo(f"client-{number:05d}", 10), order.base)
        content = Content()
        if order.kind is Kind.QUERY:
            reply = replace(reply, facts={"store": str(number)})
        else:
            if order.kind is Kind.TRAIN:
                content = seal(Payload({"w": whole(np.full(ENTRIES, number, np.float32))}))
            digest = download.digest()
            reached = version(order.plan.round, order.base, digest, content.digest())
            reply = replace(reply, download=digest, version=reached)
        return Message(write_reply(reply, content), reply_to=message)

    strategy = SepalStrategy(FedAvg, setup)
    strategy.start(InProcessGrid(dict.fromkeys(range(1, clients + 1), answer)))
    mean = strategy.progress.server.weights["w"][0]
    queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, float(mean)))


def peak_megabytes(clients: int) -> float:
    """Return the peak memory of a process that serves ``clients`` clients for two rounds and the closing round."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_run, args=(clients, queue))
    process.start()
    megabytes, mean = queue.get()
    process.join()
    if not np.isclose(mean, (clients + 1) / 2):
        raise RuntimeError(f"expected the mean of all numbers, got {mean}")
    return float(megabytes)


def measure(counts: tuple[int, ...] = (10, 100, 1000)) -> list[dict[str, Any]]:
    """Return one row: the server's peak memory with many clients over that with few."""
    peaks = [peak_megabytes(count) for count in counts]
    ratio = peaks[-1] / peaks[0]
    return [
        {
            "what": f"server's peak memory, {counts[-1]} clients over {counts[0]}, 3 MB down and 3 MB up each",
            "ratio": ratio,
            "goal": "flat: at most 1.25",
            "met": ratio <= 1.25,
            **{f"megabytes_{count}": peak for count, peak in zip(counts, peaks, strict=True)},
        }
    ]
