"""The reference pages that are made from the code at each build: keys, commands, modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import typer.main

from sepal.cli.keys import Key, keys_of
from sepal.cli.main import app
from sepal.config import RunConfig
from sepal.strategies import registry

# Packages whose modules are listed, and modules of other packages that are meant to be called.
PACKAGES = (
    "config",
    "wire",
    "masks",
    "data",
    "tasks",
    "storage",
    "protocol",
    "method",
    "training",
    "server",
    "runs",
    "export",
    "models",
    "strategies",
)
MODULES = ("errors", "layout", "modules", "names", "rng")


def keys_page() -> str:
    """Return the page of all run-config keys."""
    lines = [
        "# Run-config keys",
        "",
        "`sepal keys` and `sepal keys METHOD` print these tables. Keys are given as `--set KEY=VALUE`, in a TOML file",
        "(`--config`), in a plan's `[settings]`, or to `flwr run --run-config`.",
        "",
        "## Keys of all methods",
        "",
        *_key_table(keys_of(RunConfig)),
    ]
    for name in registry.names():
        method = registry.get(name)
        if method_keys := list(keys_of(method.hyper, f"{name}.")):
            lines += ["", f"## {name}", "", f"{method.title} ({method.source}).", "", *_key_table(method_keys)]
    return "\n".join(lines) + "\n"


def _key_table(keys: Iterator[Key] | list[Key]) -> Iterator[str]:
    yield from ("| key | values | default | meaning |", "|---|---|---|---|")
    for key in keys:
        values = key.values.replace("|", "\\|")
        yield f"| `{key.name}` | {values} | `{key.default}` | {_text(key.description)} |"


def commands_page() -> str:
    """Return the page of all commands with their arguments and options."""
    top = typer.main.get_command(app)
    lines = ["# Commands", "", "`sepal COMMAND --help` prints the same. Bad input is one line and exit code 2.", ""]
    for words, command in _commands(top, "sepal"):
        context = click.Context(command, info_name=words)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f"## {words}", "", _text(command.help or ""), "", "```", f"{words} {usage}", "```", ""]
        rows = [row for parameter in command.params if (row := _parameter(parameter, context))]
        if rows:
            lines += ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _commands(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command without sub-commands, with the words that call it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from _commands(inner, f"{words} {name}")


def _parameter(parameter: click.Parameter, context: click.Context) -> str:
    """Return a parameter's row; empty for ``--help``."""
    if parameter.name == "help":
        return ""
    option = isinstance(parameter, click.Option)
    name = ", ".join((*parameter.opts, *parameter.secondary_opts)) if option else parameter.make_metavar(context)
    default = "" if parameter.default in (None, "", (), []) or callable(parameter.default) else f"`{parameter.default}`"
    if parameter.required or getattr(parameter, "is_flag", False):
        default = "required" if parameter.required else ""
    return f"| `{name}` | {default} | {_text(getattr(parameter, 'help', '') or '')} |"


def _text(words: str) -> str:
    """Return a text on one line that Markdown takes as it is."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def api_pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) for each package: its modules with their public classes and functions.

    Args:
        root: The repository.
    """
    for package in PACKAGES:
        folder = root / "sepal" / package
        lines = [f"# sepal.{package}", "", _docstring(folder / "__init__.py"), ""]
        for file in sorted(folder.rglob("*.py")):
            if file.name.endswith("_pb2.py") or file.name == "__main__.py":
                continue
            dotted = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            if _has_public(file):
                lines += [f"::: {dotted}", "    options:", "      heading_level: 2", ""]
        yield package, "\n".join(lines)
    lines = ["# Other modules", ""]
    for name in MODULES:
        lines += [f"::: sepal.{name}", "    options:", "      heading_level: 2", ""]
    yield "other", "\n".join(lines)


def _docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def _has_public(file: Path) -> bool:
    """Return whether a module defines a public class or function."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return any(
        isinstance(node, kinds) and not node.name.startswith("_")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
    )
