"""Private names of Flower are used in a few files only, each for one kind of process."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
    "flwr_datasets.partitioner",
}
ALLOWED = {
    "sepal/server/flower_private.py",  # the ServerApp
    "engines/flower/fleet.py",  # sepal deploy check, which calls the Fleet API
    "engines/flower/nodes.py",  # the SuperLink's nodes with their keys, which `flwr supernode list` leaves out
    "engines/flower/node.py",  # a SuperNode that keeps its client process
    "engines/flower/protection.py",  # and refuses code
    "engines/flower/warm.py",  # that client process
    "experiments/load/light.py",  # clients of the load test, which answer without training
    "experiments/load/worker.py",
}
PACKAGES = ("sepal", "models", "strategies", "client_app", "server_app", "engines", "cli", "experiments")


def private_uses(source):
    """Imports of Flower beyond its documented modules, private names, and private fields set through __dict__."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            key = getattr(node.slice, "value", "")
            if node.value.attr == "__dict__" and str(key).startswith("_"):
                yield f"line {node.lineno}: {key}"
            continue
        else:
            continue
        for module, name in names:
            if module.split(".")[0] not in ("flwr", "flwr_datasets"):
                continue
            documented = module in PUBLIC or f"{module}.{name}" in PUBLIC
            if not documented or name.startswith("_"):
                yield f"line {node.lineno}: {module}.{name}"


def test_a_few_files_use_what_flower_keeps_private():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): list(private_uses(path.read_text())) for path in files}
    assert {name for name, uses in found.items() if uses} == ALLOWED, found


def test_private_uses_are_found():
    for line in (
        "from flwr.proto import message_pb2",
        "import flwr.supercore.constant",
        "from flwr.common import constant",
        "from flwr.app import _private",
        "def f():\n    from flwr.server.utils import tensorboard",
        "m.metadata.__dict__['_message_id'] = 'a'",
    ):
        assert list(private_uses(line)), line
    for line in ("from flwr.app import Message", "import flwr.app", "from flwr_datasets import partitioner"):
        assert not list(private_uses(line)), line
