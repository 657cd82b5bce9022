"""The tutorials in docs/tasks, from top to bottom: their commands and Python run, and print what the pages show.

tests/e2e/test_tutorials.py runs their comparisons.
"""

from __future__ import annotations

import code
import contextlib
import io
import re
import tomllib

import pytest

from sepal.study.run_keys import flatten_tables
from tests.test_readme import ROOT, blocks, examples_directory, sepal  # noqa: F401

PAGES = {
    "imbalanced": "eights",
    "multilabel": "loops",
    "regression": "diabetes",
    "segmentation": "shapes",
    "tokens": "zen",
}
EXAMPLES = ROOT / "examples" / "tasks"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def tutorial(name):
    return (ROOT / "docs" / "tasks" / f"{name}.md").read_text()


class Console(code.InteractiveConsole):
    """Python as one pastes lines into it; the first error ends the test."""

    def showtraceback(self):
        raise  # noqa: PLE0704

    def showsyntaxerror(self, *_, **__):
        raise  # noqa: PLE0704


def check(shown, printed, numbers=True):
    """Check that lines that a page shows are printed in this order: the same words, and numbers that are near.

    Another machine rounds otherwise, so a number may differ by 2 % of it, or by .0005; without ``numbers`` by anything.
    """
    lines = iter(printed.splitlines())
    for line in shown.splitlines():
        words = NUMBER.sub("#", line).split()
        values = [float(number) for number in NUMBER.findall(line)]
        for printed_line in lines:
            if NUMBER.sub("#", printed_line).split() == words:
                printed_values = [float(number) for number in NUMBER.findall(printed_line)]
                near = (abs(a - b) <= max(0.02 * abs(a), 0.0005) for a, b in zip(values, printed_values, strict=True))
                if not numbers or all(near):
                    break
        else:
            pytest.fail(f"expected a line like {line!r}, got\n{printed}")


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_runs_and_prints_what_it_shows(name, examples_directory):  # noqa: F811
    """Comparisons aside. Blocks of Python and TOML that quote an example are compared with it."""
    text, example = tutorial(name), PAGES[name]
    source, config = ((EXAMPLES / f"{example}.{kind}").read_text() for kind in ("py", "toml"))
    console, printed, compared = Console(), "", False
    for language, block in blocks(text):
        if language == "toml":
            assert block in config
        elif language == "text":
            if not compared:
                check(block, printed)
        elif language == "python" and block not in source:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                for line in [*block.splitlines(), ""]:
                    console.push(line)
            printed, compared = out.getvalue(), False
        elif not language:
            printed = ""
            for line in block.splitlines():
                compared = " compare " in line
                assert line.startswith("sepal ")
                if not compared:
                    words = line.removeprefix("sepal ") + " --workers 1" * (" run " in line)
                    result = sepal(words)
                    assert result.exit_code == 0, result.output
                    printed += result.output
    summaries = list((examples_directory / "runs").glob("*/summary.json"))
    assert len(summaries) == 1, "the Python block finds the command's run"


@pytest.mark.parametrize("name", PAGES.values())
def test_a_plan_has_the_keys_of_its_run(name):
    run = dict(flatten_tables(tomllib.loads((EXAMPLES / f"{name}.toml").read_text())))
    plan = tomllib.loads((EXAMPLES / f"{name}-compare.toml").read_text())
    method_keys = {method: plan["settings"].pop(method) for method in plan["methods"] if method in plan["settings"]}
    assert method_keys.keys() <= {"unweighted"}
    assert dict(flatten_tables(plan["settings"])) | {"method": "fedpse"} == run


def test_the_reference_links_to_each():
    text = (ROOT / "docs" / "tasks.md").read_text()
    assert [name for name in PAGES if f"](tasks/{name}.md)" not in text] == []
    assert {path.stem for path in (ROOT / "docs" / "tasks").glob("*.md")} == PAGES.keys()
