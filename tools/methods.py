"""What is made from the registry of methods: ``python -m tools.methods`` writes it.

That is the table in docs/methods.md; the run-config keys in pyproject.toml, as Flower refuses keys that its app does
not declare there; and strategies/descriptions.toml, by which methods are listed
and runs reported without importing torch. Each key is declared once, in ``sepal.config`` or in its method's ``Hyper``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from referee.marked_parts import DOCS, ROOT, rewritten
from sepal.cli.showing import markdown_table
from sepal.errors import ConfigError
from sepal.storage.files import write_atomically
from sepal.strategies import registry

DESCRIPTIONS = ROOT / "strategies/descriptions.toml"
METHODS, PYPROJECT = DOCS / "methods.md", ROOT / "pyproject.toml"
KEYS = re.compile(r"^\[tool\.flwr\.app\.config\]\n.*?(?=^\[(?!tool\.flwr\.app\.config))", re.DOTALL | re.MULTILINE)


def declared() -> str:
    """Return the tables ``[tool.flwr.app.config…]`` with every key and its default, as TOML."""
    tables: dict[str, Any] = {}
    for key, value in registry.defaults().items():
        group, dot, name = key.partition(".")
        if dot:
            tables.setdefault(group, {})[name] = value
        else:
            tables[key] = value
    return tomli_w.dumps({"tool": {"flwr": {"app": {"config": tables}}}})


def with_keys(text: str) -> str:
    """Return pyproject.toml's ``text`` with its run-config keys made anew.

    Raises:
        ConfigError: It has no table of them.
    """
    new, count = KEYS.subn(lambda match: f"{declared()}\n", text)
    if count != 1:
        raise ConfigError("pyproject.toml", "one table [tool.flwr.app.config], and another one after it", count)
    return new


def descriptions() -> str:
    """Return what lists and reports say of each built-in method, as TOML, without what is empty."""
    tables = {}
    for method in map(registry.get, registry.METHODS):
        facts = registry.describe(method)._asdict()
        facts["learned"] = {kind: asdict(reader) for kind, reader in method.learned.items()}
        tables[method.name] = {field: value for field, value in facts.items() if value}
    return tomli_w.dumps(tables)


def written() -> Iterator[tuple[Path, str]]:
    """Yield each file that this module writes, with its content."""
    yield PYPROJECT, with_keys(PYPROJECT.read_text(encoding="utf-8"))
    yield DESCRIPTIONS, descriptions()
    yield METHODS, rewritten(METHODS.read_text(encoding="utf-8"), {"methods": [markdown_table()]})


def main() -> None:
    """Write the files that have changed."""
    for file, text in written():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            write_atomically(file, text.encode())
            print(f"written to {file}")


if __name__ == "__main__":
    main()
