"""What is made from the registry of methods: ``python -m tools.methods`` writes it.

That is the tables in docs/methods.md, of which docs/methods.toml has some words; that in docs/accelerators.md of who
trains at once; the run-config keys in pyproject.toml, as Flower refuses keys that its app does not declare there; and
strategies/descriptions.toml, by which methods are listed and runs reported without importing torch. Each key is
declared once, in ``sepal.config`` or in its method's ``Hyper``.
"""

from __future__ import annotations

import re
import tomllib
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

EXCHANGE, GOLDEN = DOCS / "methods.toml", ROOT / "tests/golden/methods"
ROUNDS = {"feddst": 4}  # of golden runs that are longer than the others (tests/golden/cases.py)
CAPABILITIES = {  # column: attribute of the method's record
    "compress": "dense",
    "robust mean": "robust",
    "privacy": "private_phases",
    "secure": "summed_phases",
    "capacity": "uses_capacity",
    "batch": "batched",
}
DESCRIPTIONS = ROOT / "strategies/descriptions.toml"
METHODS, ACCELERATORS, PYPROJECT = DOCS / "methods.md", DOCS / "accelerators.md", ROOT / "pyproject.toml"
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


def exchange() -> list[str]:
    """Return the lines of a table of what each method exchanges and keeps, and which keys it takes.

    Raises:
        ConfigError: ``docs/methods.toml`` or a golden file lacks a method.
    """
    words = tomllib.loads(EXCHANGE.read_text(encoding="utf-8"))
    if odd := sorted(words.keys() ^ registry.METHODS.keys()):
        raise ConfigError("docs/methods.toml", "a line for each method", f"{odd[0]} missing or unknown")
    titles = ("method", "shared", "sparse", "personal", "up", "down", "stored", *CAPABILITIES)
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    unit = _amounts("fedavg")
    for name in registry.METHODS:
        facts = words[name]
        parts = [facts[key] or "–" for key in ("shared", "sparse", "personal")]
        amounts = [f"{amount / of:.2f}" for amount, of in zip(_amounts(name), unit, strict=True)]
        record = registry.get(name)
        marks = ["yes" if getattr(record, attribute) else "–" for attribute in CAPABILITIES.values()]
        lines.append(f"| `{name}` | {' | '.join([*parts, *amounts, *marks])} |")
    return lines


def _amounts(method: str) -> tuple[float, float, float]:
    """Return bytes up in a round, bytes down in a round after the first, and floats kept by all clients at the end."""
    file = GOLDEN / f"{method}.toml"
    if not file.is_file():
        raise ConfigError(str(file), "a golden file: python -m tests.golden", "none")
    summary = tomllib.loads(file.read_text(encoding="utf-8"))["plain"]["3"]
    rounds = ROUNDS.get(method, 3)
    floats = summary.get("clients-floats", {"entries": 0})["entries"]
    return summary["bytes"]["up"] / rounds, summary["bytes"]["down"] / (rounds - 1), floats


def at_once() -> list[str]:
    """Return the lines of a table that says which methods' clients can train at once."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for name in registry.METHODS:
        names[registry.get(name).batched].append(f"`{name}`")
    alone = "one by one, because the method has a loss, steps or models of its own"
    rows = [f"| at once | {', '.join(names[True])} |", f"| {alone} | {', '.join(names[False])} |"]
    return ["| trains | method |", "|---|---|", *rows]


def written() -> Iterator[tuple[Path, str]]:
    """Yield each file that this module writes, with its content."""
    yield PYPROJECT, with_keys(PYPROJECT.read_text(encoding="utf-8"))
    yield DESCRIPTIONS, descriptions()
    yield (
        METHODS,
        rewritten(METHODS.read_text(encoding="utf-8"), {"methods": [markdown_table()], "exchange": exchange()}),
    )
    yield ACCELERATORS, rewritten(ACCELERATORS.read_text(encoding="utf-8"), {"at-once": at_once()})


def main() -> None:
    """Write the files that have changed."""
    for file, text in written():
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            write_atomically(file, text.encode())
            print(f"written to {file}")


if __name__ == "__main__":
    main()
