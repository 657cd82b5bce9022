"""The commands that start Flower's processes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials
from sepal.protocol.types import Scalar

SUPERLINK = (sys.executable, "-P", "-m", "sepal.flower.superlink")  # flower-superlink, closed to web pages


@dataclass(frozen=True)
class Ports:
    """Ports of a SuperLink: the Fleet API for SuperNodes (gRPC; HTTP from Flower 1.40), and the Control API (HTTP)."""

    fleet: int
    control: int


def superlink_command(ports: Ports, host: str, home: Path, credentials: ServerCredentials | None = None) -> list[str]:
    """Return the command that starts a SuperLink; without ``credentials`` in plain text.

    Only the Fleet API, for SuperNodes, listens on ``host``. The Control API listens on 127.0.0.1, because it can be
    used to submit an app, which runs code on the server and on every client; and web pages are not answered there.
    """
    security = credentials.options() if credentials else ["--insecure"]
    rest = [*security, "--database", str(home / "state.db"), "--host", "127.0.0.1", "--port", str(ports.control)]
    return [*SUPERLINK, "--door", f"{host}:{ports.fleet}", *rest]


def simulation_command(ports: Ports) -> list[str]:
    """Return the command that starts a SuperLink with Flower's simulation engine."""
    command = [*SUPERLINK, "--insecure", "--simulation", "--isolation", "subprocess"]
    return [*command, "--host", "127.0.0.1", "--port", str(ports.control)]


def supernode_command(
    address: str, port: int, node_config: Mapping[str, Scalar], credentials: NodeCredentials | None = None
) -> list[str]:
    """Return the command that starts a SuperNode; without ``credentials`` in plain text.

    Args:
        address: HOST:PORT of the SuperLink's Fleet API.
        port: Free port for the SuperNode's own ClientApp processes.
        node_config: The node's own keys: ``partition-id``, ``num-partitions``, ``name``, ``data``, ``device``, ….
        credentials: For TLS and a registered key.
    """
    security = credentials.options() if credentials else ["--insecure"]
    command = ["flower-supernode", *security, "--superlink", address, "--port", str(port)]
    return [*command, "--node-config", " ".join(f"{key}={literal(value)}" for key, value in node_config.items())]


def needs_cold(node_config: Mapping[str, Scalar]) -> bool:
    """Return whether a node names an accelerator with which forks of a resident process were never seen to work.

    With CUDA they do, because the resident process does not start it (tools/results/gpu.md).
    """
    kind = str(node_config.get("device") or "auto").partition(":")[0]
    return kind not in ("auto", "cpu", "cuda")


def literal(value: Scalar) -> str:
    """Return a value in the syntax of a node config."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
