"""Parts of a page that are made from something else: between ``<!-- NAME: … -->`` and ``<!-- /NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sepal.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PART = re.compile(r"(<!-- (table|which|methods|exchange|at-once): .*? -->)\n.*?(<!-- /\2 -->)", re.DOTALL)


def rewritten(text: str, parts: Mapping[str, Iterable[str]]) -> str:
    """Return a page's ``text`` with the parts between its markers made anew.

    Args:
        text: The text, with ``<!-- NAME: … -->`` and ``<!-- /NAME -->`` for each part.
        parts: From each part's name to its lines.

    Raises:
        ConfigError: The markers are not those of the parts.
    """
    if (names := [match[2] for match in PART.finditer(text)]) != list(parts):
        raise ConfigError("page", f"markers <!-- NAME: … --> and <!-- /NAME --> of {', '.join(parts)}", names or "none")
    return PART.sub(lambda match: "\n".join((match[1], *parts[match[2]], match[3])), text)
