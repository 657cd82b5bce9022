"""The tests that the threat model and the log of attacks name are there."""

from __future__ import annotations

import ast
import fnmatch
import re
from functools import cache
from pathlib import Path

import pytest

from tests.attacks.test_hostile_replies import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
MODEL = ROOT / "docs" / "threat-model.md"
PAGES = (TESTS / "attacks" / "THREAT_MODEL.md", TESTS / "attacks" / "README.md")
PARTIES = 10
KINDS = ("Sees:", "Refused:", "Refused, if set:", "Not defended:")


@cache
def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@cache
def everywhere():
    return frozenset(name for path in TESTS.rglob("test_*.py") for name in functions(path))


def named(text):
    """What stands in backquotes and names a test: a file, a file and a test, or a test, which may end in ``*``."""
    return [word for word in re.findall(r"`([^`\n]+)`", text) if re.match(r"(tests/|[\w/]+/)?test_\w*", word)]


def missing(word):
    """Why a named test is not there; empty if it is."""
    word, _, case = word.removeprefix("tests/").rstrip("]").partition("[")
    if case and case not in ATTACKS:
        return f"no case {case}"
    file, _, test = word.partition("::")
    if not file.endswith(".py"):
        return "" if fnmatch.filter(everywhere(), file) else "no such test"
    test_files = [path for path in (TESTS.rglob(file) if "/" not in file else [TESTS / file]) if path.is_file()]
    if not test_files:
        return "no such file"
    return "" if not test or any(test in functions(path) for path in test_files) else f"no such test in {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(page):
    words = named(page.read_text())
    assert len(words) > 40
    assert [f"{word}: {reason}" for word in words if (reason := missing(word))] == []


def test_a_test_that_does_not_exist_would_be_noticed():
    for word in ("attacks/test_nodes.py::test_nothing", "test_nowhere.py", "attacks/test_gone.py", "test_none_such_*"):
        assert missing(word), word
    assert missing("attacks/test_hostile_replies.py::test_an_attack_is_refused_by_name_and_the_round_goes_on[a lie]")


def test_cases_that_the_log_names_are_cases():
    text = PAGES[1].read_text()
    assert [case for case in re.findall(r"`\[([^\]]+)\]`", text) if case not in {*ATTACKS, "…"}] == []


def parties(page):
    """Title and text of each section."""
    return [part.split("\n", 1) for part in page.read_text().split("\n## ")[1:]]


def test_every_line_of_the_threat_model_says_what_it_is_and_names_a_test_or_says_why_none():
    model_parties, tested = parties(MODEL), parties(PAGES[0])
    assert [title for title, _ in model_parties] == [title for title, _ in tested]
    assert len(model_parties) == PARTIES
    for (_, text), (_, table) in zip(model_parties, tested, strict=True):
        kinds = re.findall(r"^(\w.*:)$", text, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
        assert "Refused:" in kinds
        numbers = re.findall(r"^- \*\*([A-Z]\d+)\*\* .+\.$", text, re.MULTILINE)
        assert len(numbers) == text.count("\n- "), "each line is numbered and is one line"
        rows = [line.strip("| ").split(" | ") for line in table.splitlines() if re.match(r"\| [A-Z]\d", line)]
        assert [row[0] for row in rows] == numbers == [f"{numbers[0][0]}{n + 1}" for n in range(len(numbers))]
        for row in rows:
            assert len(row) == 2, row
            assert "`" in row[1] or row[1].startswith("none"), row
