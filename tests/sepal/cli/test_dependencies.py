"""What the command imports before it runs, and that neither it nor the server's app names a method."""

from __future__ import annotations

import ast
import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sepal.strategies import registry
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).resolve().parents[3]
SLOW = ("torch", "flwr", "ray", "pandas", "sklearn", "altair", "scipy")
HEAVY = (*SLOW, "pydantic", "rich", "numpy")
WORDS = {"local"}  # a method's name, and a word


def test_help_imports_nothing_heavy():
    code = f"import sys, sepal.cli.main; print(*(name for name in {HEAVY} if name in sys.modules))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert completed.stdout.split() == []


def test_on_a_terminal_a_command_says_at_once_that_it_starts():
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "sepal.cli", "methods"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, cwd=ROOT):
        assert os.read(reader, 100).decode() == "sepal: starting …"
    assert os.read(reader, 100).decode() == "\r\x1b[K", "and takes it back"


def imported(*arguments: str) -> list[str]:
    """What a command prints on a terminal, a line each, and ``import NAME`` where it imports a package."""
    reader, terminal = pty.openpty()
    command = [sys.executable, "-X", "importtime", "-m", "sepal.cli", *arguments]
    output = b""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as running:
        os.close(terminal)
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(reader, 65536):
                output += part
    os.close(reader)
    assert running.returncode in (0, 2), output[-1000:]
    lines = output.decode().replace("\x1b[K", "\n").replace("…", "…\n").splitlines()
    return [re.sub(r"import time:.*\| +", "import ", line).strip() for line in lines if line.strip()]


@pytest.mark.e2e  # four processes that import everything
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run", "--set", "model=nope", "--set", "method=fedavg"), "sepal: preparing fedavg on digits …"),
        (("compare", "none.toml"), "sepal: starting …"),
        (("serve", "--set", "model=nope"), "sepal: preparing fedavg-ft on digits …"),
        (("join", "127.0.0.1:x"), "sepal: preparing to join 127.0.0.1:x …"),
    ],
)
def test_the_first_line_comes_before_what_takes_long_is_imported(arguments, line):
    lines = imported(*arguments)
    heavy = [lines.index(f"import {name}") for name in SLOW if f"import {name}" in lines]
    assert heavy
    assert lines.index(line) < min(heavy)


@pytest.mark.parametrize(
    ("command", "word"), [("ls", "one"), ("methods", "fedpse"), ("models", "har"), ("data", "har")]
)
def test_lists_need_neither_torch_nor_flower(tmp_path, command, word):
    write_run(tmp_path / "one")
    completed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sepal.cli", command, *[str(tmp_path)] * (command == "ls")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert word in completed.stdout
    assert [name for name in SLOW if re.search(rf"\| +{name}$", completed.stderr, re.MULTILINE)] == []


def texts(file: Path) -> Iterator[str]:
    """The string constants of a file but its docstrings, which may have examples."""
    tree = ast.parse(file.read_text())
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, owners) and is_text(node.body)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def is_text(body: list[ast.stmt]) -> bool:
    """Whether a body begins with a text."""
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def test_neither_the_command_nor_the_servers_app_names_a_method():
    """What is special about a method is in its record and found through it."""
    names = [name for name in registry.METHODS if name not in WORDS]
    titles = ["DM-PFL", "Sub-FedAvg"]
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, [*names, *titles]))})(?![\w-])", re.IGNORECASE)
    files = [
        file
        for folder in ("sepal/cli", "sepal/report", "sepal/runs", "server_app")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 30
    mentions = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        for text in texts(file)
        for match in pattern.finditer(text)
    }
    assert mentions == set()
