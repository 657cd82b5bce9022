"""Private names of Flower are used in one package only."""

from __future__ import annotations

import ast
import re
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
PRIVATE = "sepal/flower/"
PACKAGES = (
    "sepal",
    "models",
    "strategies",
    "client_app",
    "server_app",
    "referee",
    "tools",
)


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


def test_one_package_uses_what_flower_keeps_private():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    uses_by_file = {str(path.relative_to(ROOT)): list(private_uses(path.read_text())) for path in files}
    uses = {name: lines for name, lines in uses_by_file.items() if lines and not name.startswith(PRIVATE)}
    assert not uses, uses
    assert any(lines for name, lines in uses_by_file.items() if name.startswith(PRIVATE))


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


def test_one_place_unpickles():
    """Functions of a notebook, from the process that started this one; no file, message or state is a pickle."""
    files = {path.relative_to(ROOT).as_posix(): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    unpickling = [name for name, path in files.items() if re.search("pickle[.]loads?[(]|Unpickler", path.read_text())]
    assert unpickling == ["sepal/user_modules.py"]
