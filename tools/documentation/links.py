"""Makes Markdown that was written for GitHub fit the site: links to files outside ``docs/``, and blank lines.

A page of the site has a path in the repository and an address on the site. Links are written relative to the first and
are rewritten relative to the second. So one text works in both places.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

TARGET = re.compile(r"(?<=\]\()[^()\s]+(?=\))")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^(?:[-*] |\d+\. |\|)")
INDENTED = re.compile(r"^\s")


class DeadLinkError(Exception):
    """A link names a file that is not there."""


def outside(text: str, page: str, root: Path) -> Iterator[str]:
    """Yield the repository paths of the files that a page links to.

    Args:
        text: The page's Markdown.
        page: The page's own path in the repository, with ``/``.
        root: The repository.

    Raises:
        DeadLinkError: A file is not there.
    """
    for part in _prose(text):
        for target in TARGET.findall(part):
            path = resolved(target, page)
            if path is None:
                continue
            if not (root / path).is_file():
                raise DeadLinkError(f"{page}: expected a file, got a link to {target}")
            yield path


def resolved(target: str, page: str) -> str | None:
    """Return the repository path that a link's target names; None for an address or an anchor of the page itself."""
    path = target.partition("#")[0]
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def rewritten(text: str, page: str, address: str, addresses: Mapping[str, str]) -> str:
    """Return the page for the site.

    Args:
        text: The page's Markdown.
        page: The page's path in the repository.
        address: Its source address on the site.
        addresses: From each linked repository path to the source address on the site.
    """

    def moved(match: re.Match[str]) -> str:
        path = resolved(match[0], page)
        if path is None or path not in addresses:
            return match[0]
        _, sign, anchor = match[0].partition("#")
        return posixpath.relpath(addresses[path], posixpath.dirname(address) or ".") + sign + anchor

    parts = FENCE.split(COMMENT.sub("\n", text))
    parts[::2] = [spaced(TARGET.sub(moved, part)) for part in parts[::2]]
    return "".join(parts)


def spaced(text: str) -> str:
    """Return ``text`` with a blank line before each list and table that follows a paragraph.

    GitHub needs none; Python-Markdown does.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        begins = BLOCK.match(line) and before.strip() and not BLOCK.match(before) and not INDENTED.match(before)
        if begins and not _in_list(lines):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _in_list(lines: list[str]) -> bool:
    """Return whether the paragraph that ``lines`` end with is an item of a list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if BLOCK.match(line):
            return True
    return False


def _prose(text: str) -> list[str]:
    """Return the parts of ``text`` that are not code."""
    return FENCE.split(text)[::2]
