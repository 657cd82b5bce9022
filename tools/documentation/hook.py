"""MkDocs calls these functions: they add the generated pages and the pages from outside ``docs/``, and rewrite links.

A link to a file outside ``docs/`` that is no page of the site leads to a page that shows the file. A page that would
load anything from another host is an error: the site is read without a network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from tools.documentation.links import DeadLinkError, outside, rewritten
from tools.documentation.reference import PACKAGES, api_pages, commands_page, keys_page

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((*(ROOT / "referee" / "results").glob("*.md"), *(ROOT / "tools" / "results").glob("*.md")))
TABLES = sorted((ROOT / "referee" / "results" / "tables").glob("*.md"))
FROM_ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "sepal/wire/FORMAT.md": "reference/wire-format.md",
    **{
        f"strategies/{notes.parent.name}/NOTES.md": f"reference/notes/{notes.parent.name}.md"
        for notes in sorted((ROOT / "strategies").glob("*/NOTES.md"))
    },
    **{page.relative_to(ROOT).as_posix(): f"results/{page.name}" for page in RESULTS},
    **{page.relative_to(ROOT).as_posix(): f"results/tables/{page.name}" for page in TABLES},
}
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href|srcset)=["']?(?:https?:)?//[^>]*>""")
ROLE = re.compile(r":(?:class|func|mod|meth|attr|data):(?=<code>)")

_places: dict[str, str] = {}  # from a page's source address on the site to its path in the repository
_addresses: dict[str, str] = {}  # the other way, also for linked files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: a page for each package, method's notes, result and decision."""
    nav: list[Any] = config["nav"]
    lists = {
        "API": [f"reference/api/{name}.md" for name in (*PACKAGES, "other")],
        "Notes": [address for address in FROM_ELSEWHERE.values() if address.startswith("reference/notes/")],
        "Results": sorted(f"results/{page.name}" for page in RESULTS),
        "Tables": [f"results/tables/{page.name}" for page in TABLES],
        "Decisions": _pages("decisions"),
    }
    _fill(nav, lists)
    return config


def _pages(folder: str) -> list[str]:
    """Return the pages of a folder of ``docs/``, README first."""
    names = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: (name != "README.md", name))]


def _fill(nav: list[Any], lists: dict[str, list[str]]) -> None:
    """Replace each entry ``<NAME>`` of a section by the pages of that list that the section does not name itself."""
    inner = [value for entry in nav if isinstance(entry, dict) for value in entry.values()]
    named = {value for value in inner if isinstance(value, str)}
    for entry in list(nav):
        if isinstance(entry, dict):
            for inner in entry.values():
                if isinstance(inner, list):
                    _fill(inner, lists)
        elif entry.startswith("<"):
            index = nav.index(entry)
            nav[index : index + 1] = [page for page in lists[entry.strip("<>")] if page not in [*named, *nav]]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs/``."""
    _places.clear()
    _addresses.clear()
    texts = {}
    for file in files:
        if file.src_uri.endswith(".md"):
            _places[file.src_uri] = f"docs/{file.src_uri}"
            texts[f"docs/{file.src_uri}"] = file.content_string
    for source, address in FROM_ELSEWHERE.items():
        _places[address] = source
        texts[source] = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, address, content=texts[source]))
    for file in files:
        _addresses[_places.get(file.src_uri, f"docs/{file.src_uri}")] = file.src_uri
    generated = [("keys", keys_page()), ("commands", commands_page())]
    generated += [(f"api/{name}", text) for name, text in api_pages(ROOT)]
    for name, text in generated:
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    try:
        linked = {path for source, text in texts.items() for path in outside(text, source, ROOT)}
    except DeadLinkError as error:
        raise PluginError(str(error)) from None
    for path in sorted(linked - _addresses.keys()):
        if path.endswith(PICTURES):
            _addresses[path] = path
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
            continue
        _addresses[path] = f"source/{path}.md"
        page = File.generated(config, _addresses[path], content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def _shown(path: str) -> str:
    """Return a page that shows a file of the repository."""
    language, text = LANGUAGES.get(Path(path).suffix, "text"), (ROOT / path).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n````{language}\n{text}````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links."""
    address = page.file.src_uri
    if address == "index.md":
        page.meta["hide"] = ["navigation"]  # a section of one page
    if address not in _places:
        return markdown
    return rewritten(markdown, _places[address], address, _addresses)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove Sphinx's roles, which docstrings use."""
    return ROLE.sub("", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from another host."""
    if match := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri}: expected nothing from another host, got {match[0]}")
    return output
