"""What clients have pruned in an ended run: their masks, and the course of pruning.

Vahidian et al., ICDCS Workshops 2021, Figure 1, draws accuracy by the pruned share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sepal.errors import ConfigError
from sepal.masks.packed import unpack
from sepal.method.readers import ClientMasks, EndedRun, joined
from sepal.strategies.subfedavg.server import SubFedAvgServer

DISTANCES = ("distance", "channel-distance")
Course = dict[str, list[Any]]  # figure → values, lists of equal length


def masks(run: EndedRun) -> ClientMasks:
    """Return the clients' masks in the server's state.

    Raises:
        ConfigError: No client has taken part.
    """
    run.check_few(run.server.kept)
    parts, names = SubFedAvgServer(run.setup).prunable.parts, sorted(run.server.kept)
    if not names:
        raise ConfigError("run", "one in which a client has taken part", "none")
    return ClientMasks(names, parts, joined([unpack(run.server.kept[name], parts) for name in names], parts))


def courses(lines: Iterable[Mapping[str, Any]]) -> dict[str, Course]:
    """Return client → rounds in which it was evaluated, share of all parameters pruned, and accuracy when trained.

    Args:
        lines: Lines of metrics.jsonl, in order.
    """
    by_client: dict[str, Course] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for client in line["clients"]:
            pruned, accuracy = client["metrics"].get("pruned"), client["trained"]
            if pruned is not None and accuracy is not None:
                _add(by_client[client["name"]], {"round": line["round"], "pruned": pruned, "accuracy": accuracy})
    return dict(sorted(by_client.items()))


def distances(lines: Iterable[Mapping[str, Any]]) -> dict[str, Course]:
    """Return client → rounds in which it took part, and the distances of its candidate masks, which ε is compared with.

    Args:
        lines: Lines of metrics.jsonl, in order.
    """
    by_client: dict[str, Course] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for client in line["clients"]:
            figures = {key: client["metrics"][key] for key in DISTANCES if key in client["metrics"]}
            if figures:
                _add(by_client[client["name"]], {"round": line["round"], **figures})
    return dict(sorted(by_client.items()))


def _add(course: Course, figures: Mapping[str, float]) -> None:
    for key, value in figures.items():
        course[key].append(round(value, 6))
