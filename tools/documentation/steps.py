"""A long page begins with a table of its steps or sections, so that nobody has to read it from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pymdownx.slugs import slugify

MOST_LINES = 150
AT_THE_END = ("What is tested", "What was tried")
SLUG = slugify(case="lower")  # as in mkdocs.yml


def missing_steps(text: str) -> Iterator[str]:
    """Yield what a page of more than 150 lines lacks before its first section: a table, and a link to each section."""
    if len(text.splitlines()) <= MOST_LINES:
        return
    outside_of_code = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    top, *sections = re.split(r"^## (.+)$", outside_of_code, flags=re.M)
    if not re.search(r"^\|[ :|-]+\|$", top, re.M):
        yield "a table at its top"
    linked = set(re.findall(r"\]\(#([^)]+)\)", top))
    for title in sections[::2]:
        words = re.sub(r"[`*]", "", title)
        if title not in AT_THE_END and SLUG(words, "-") not in linked:
            yield f"a link at its top to {title!r}"
