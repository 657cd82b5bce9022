"""The documentation: tests that it names, and what the site adds to it. `make docs` builds the site itself."""

from __future__ import annotations

import posixpath
import tomllib
from pathlib import Path

import pytest

from sepal.config import RunConfig
from sepal.config.base import flat_keys
from sepal.strategies import registry
from tests.attacks.test_documents import missing, named
from tools.documentation.hook import FROM_ELSEWHERE, LOADED, ROLE
from tools.documentation.links import DeadLinkError, outside, rewritten
from tools.documentation.reference import PACKAGES, api_pages, commands_page, keys_page
from tools.documentation.steps import MOST_LINES, missing_steps
from tools.extras import PAGE as INSTALL

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in FROM_ELSEWHERE)]
PLACE = "docs/results/page.md"
ADDRESSES = {"docs/views.md": "views.md", "sepal/wire/FORMAT.md": "reference/wire-format.md"}


def test_tests_that_pages_name_are_there():
    words = {(page.name, word) for page in PAGES for word in named(page.read_text())}
    assert [f"{page}: {word}: {reason}" for page, word in sorted(words) if (reason := missing(word))] == []


def test_a_long_page_begins_with_a_table_of_its_sections():
    """But README, which is shorter, the changelog, and raw rows of results."""
    pages = [page for page in PAGES if page.parent.name != "tables" and page.name not in ("README.md", "CHANGELOG.md")]
    assert [f"{page.name}: {words}" for page in pages for words in missing_steps(page.read_text())] == []


def test_what_a_long_page_lacks_is_named():
    long = "\n" * MOST_LINES
    assert list(missing_steps(f"# A\n{long}## An end\n```\n## no section\n```\n## What is tested\n")) == [
        "a table at its top",
        "a link at its top to 'An end'",
    ]
    assert list(missing_steps(f"# A\n| a | b |\n|---|---|\n| x | [y](#an-end) |\n{long}## An `end`\n")) == []
    assert list(missing_steps("# A\n## An end\n")) == []


def test_pages_write_commands_as_an_active_environment_has_them():
    """README's first lines activate it."""
    for page in PAGES:
        assert ".venv/bin" not in page.read_text().replace("source .venv/bin/activate", ""), page
    assert "source .venv/bin/activate" in (ROOT / "README.md").read_text().splitlines()[:40]


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_every_extra_is_on_the_page_on_installing():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [line.split("`")[1] for line in INSTALL.read_text().splitlines() if line.startswith("| `")] == list(extras)
    assert "](docs/install.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [a](../../sepal/wire/FORMAT.md#header).", "see [a](../reference/wire-format.md#header)."),
        ("see [two\nlines](../views.md)", "see [two\nlines](../views.md)"),
        (
            "![b](../compare.svg) [c](#here) [d](https://a.b/c.md)",
            "![b](../compare.svg) [c](#here) [d](https://a.b/c.md)",
        ),
        ("```\n[a](../../sepal/wire/FORMAT.md)\n- x\n```", "```\n[a](../../sepal/wire/FORMAT.md)\n- x\n```"),
        ("Three:\n- one\n  more\n- two", "Three:\n\n- one\n  more\n- two"),
        ("A table:\n| a |\n|---|", "A table:\n\n| a |\n|---|"),
        ("- an item\n- another,\nbroken\n- a third", "- an item\n- another,\nbroken\n- a third"),
        ("a\n<!-- made by\nhand -->\n| b |", "a\n\n| b |"),
    ],
)
def test_a_page_for_github_becomes_one_of_the_site(text, expected):
    assert rewritten(text, PLACE, "results/page.md", ADDRESSES) == expected


def test_a_link_to_a_file_that_is_not_there_is_dead():
    assert list(outside("[a](../views.md#x) [b](../../pyproject.toml) [c](#d)", PLACE, ROOT)) == [
        "docs/views.md",
        "pyproject.toml",
    ]
    with pytest.raises(DeadLinkError, match=r"page\.md: expected a file, got a link to \.\./nowhere\.md"):
        list(outside("[a](../nowhere.md)", PLACE, ROOT))


def test_every_key_and_every_package_is_in_the_reference():
    text = keys_page()
    keys = flat_keys(RunConfig)
    for name in registry.names():
        keys += flat_keys(registry.get(name).hyper, f"{name}.")
    assert [key for key in keys if f"| `{key}` |" not in text] == []
    assert [name for name, _ in api_pages(ROOT)] == [*PACKAGES, "other"]
    pages = "".join(text for _, text in api_pages(ROOT))
    for module in (
        "sepal.method.interface",
        "sepal.method.client_base",
        "sepal.wire.codec",
        "sepal.strategies.baselines.fedavg",
    ):
        assert f"::: {module}\n" in pages


def test_every_command_is_in_the_reference_with_its_arguments():
    text = commands_page()
    for words in ("sepal run", "sepal compare", "sepal deploy check", "sepal certs"):
        assert f"\n## {words}\n" in text
    (join,) = (part for part in text.split("\n## ") if part.startswith("sepal join\n"))
    assert "| `--no-accuracies` |" in join
    assert "| `SERVER` | required |" in join or "required" in join.partition("--partition")[0]


def test_what_would_be_loaded_from_another_host_is_noticed():
    for tag in (
        '<script src="https://unpkg.com/x">',
        '<link rel=stylesheet href="//fonts.x/css">',
        "<img src=http://x/y.png>",
    ):
        assert LOADED.search(tag), tag
    for tag in ('<a href="https://flower.ai">', '<script src="assets/x.js">', '<img src="../a.svg#only-dark">'):
        assert not LOADED.search(tag), tag
    assert ROLE.sub("", ":class:<code>ConfigError</code>") == "<code>ConfigError</code>"


def test_pages_from_elsewhere_have_addresses_of_their_own():
    assert len({posixpath.normpath(address) for address in FROM_ELSEWHERE.values()}) == len(FROM_ELSEWHERE)
