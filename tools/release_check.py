"""``make -C tools release-check``: the list of what is true before a tag, as a script. Nothing is uploaded.

It clones this checkout's commit, makes the clone's own environment, and goes through the list there. ``--here`` goes
through it in this checkout; ``--quick`` leaves out what takes more than some minutes. Each item is a line; the last
one says whether the tree can be tagged. What only the person does who makes the release, such as naming its date in the
changelog, is listed as well, and is wrong only with ``--tag``: the tree is then about to be tagged.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "example.org"
PAGES = "-p no:xdist tests/test_documentation.py tests/test_readme.py"
BUNDLE = "-p no:xdist tests/test_bundle.py tests/sepal/cli/test_run_of_before.py"
FEWEST_WORDS, MOST_WORDS = 250, 1000


class Item(NamedTuple):
    """A line of the list: a command, or a function that yields what is wrong."""

    words: str
    command: str = ""
    problems: Callable[[], Iterator[str]] | None = None
    slow: bool = False
    last: bool = False  # a step of the release itself


def versions() -> Iterator[str]:
    """Yield what has another version or date than pyproject.toml and CITATION.cff."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    date = citation.partition("date-released: ")[2].splitlines()[0]
    texts = {
        "sepal/__init__.py": (f'__version__ = "{version}"', (ROOT / "sepal/__init__.py").read_text(encoding="utf-8")),
        "CITATION.cff": (f"\nversion: {version}\n", citation),
        "README.md": (f"version = {{{version}}}", (ROOT / "README.md").read_text(encoding="utf-8")),
    }
    yield from (f"{name}: expected {words.strip()!r}" for name, (words, text) in texts.items() if words not in text)
    if (zenodo["version"], zenodo["publication_date"]) != (version, date):
        yield f".zenodo.json: expected {version} of {date}, as in CITATION.cff"


def changelog() -> Iterator[str]:
    """Yield that the changelog has no section of this version and its date."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    date = (ROOT / "CITATION.cff").read_text(encoding="utf-8").partition("date-released: ")[2].splitlines()[0]
    if f"## {version} ({date})" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        yield f"CHANGELOG.md: expected '## {version} ({date})', as in CITATION.cff"


def address() -> Iterator[str]:
    """Yield the placeholder of the repository's address."""
    for number, line in enumerate((ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("address = ") and PLACEHOLDER in line:
            yield f"pyproject.toml:{number}: expected the repository's address, got the placeholder"


def fragments() -> Iterator[str]:
    """Yield changes that no version has yet."""
    waiting = sorted(path.name for path in (ROOT / "changes").glob("*.*.md"))
    if waiting:
        yield f"changes/: expected none (`towncrier build`), got {len(waiting)}"


def pages() -> Iterator[str]:
    """Yield pages that are not what the stored rows give, and a paper of too many words."""
    from tools.artifact.__main__ import written
    from tools.artifact.paper import PAPER

    for path, text in written().items():
        if path.read_text(encoding="utf-8") != text:
            yield f"{path.relative_to(ROOT)}: expected what `python -m tools.artifact --pages` writes"
    body = PAPER.read_text(encoding="utf-8").split("---", 2)[2]
    words = len(re.sub(r"<!--.*?-->|@\w+", "", body, flags=re.S).split())
    if not FEWEST_WORDS <= words <= MOST_WORDS:
        yield f"paper/paper.md: expected {FEWEST_WORDS} to {MOST_WORDS} words, got {words}"


def paper_builds() -> Iterator[str]:
    """Yield why pandoc does not make the paper; without pandoc, that it was skipped."""
    if shutil.which("pandoc") is None:
        print("  skipped: pandoc is not installed (Debian: apt-get install pandoc)")
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = ["pandoc", "--citeproc", "--fail-if-warnings", "paper.md", "-o", f"{scratch}/paper.html", "-s"]
        done = subprocess.run(
            command, cwd=ROOT / "paper", capture_output=True, text=True, encoding="utf-8", check=False
        )
        if done.returncode:
            yield f"paper/paper.md: expected pandoc to read it, got {done.stderr.strip()[-300:]}"


def results() -> Iterator[str]:
    """Yield claims whose last run differs."""
    from tools.artifact.__main__ import stored_rows

    yield from (
        f"{name}: expected {row['expected']}, got {row['got']}"
        for name, row in stored_rows().items()
        if not row["holds"]
    )


def listed() -> Iterator[str]:
    """Print README's numbers that no claim covers, which is no problem."""
    from tools.artifact.__main__ import uncovered

    for line in uncovered((ROOT / "README.md").read_text(encoding="utf-8")):
        print(f"  without a claim: {line}")
    yield from ()


ITEMS = (
    Item("versions and dates agree", problems=versions),
    Item("pages and paper follow from the rows", problems=pages),
    Item("the paper builds", problems=paper_builds),
    Item("no claim differs", problems=results),
    Item("listed, and no problem", problems=listed),
    Item("static checks, schemas, documentation, SBOM, wheel and sdist twice", "make check"),
    Item("the bundle for Flower's Hub, and stored runs of earlier commits", f"{{python}} -m pytest -q {BUNDLE}"),
    Item("pages that are read from the top", f"{{python}} -m pytest -q {PAGES}"),
    Item("a changelog can be made", "{python} -m towncrier build --draft --version 0"),
    Item("fast tests", "make test LONG=1", slow=True),
    Item("end-to-end tests", "make e2e LONG=1", slow=True),
    Item("the wheel on 3.11, 3.12 and 3.13", "make -C tools wheels", slow=True),
    Item("claims, run again", "make -C tools artifact", slow=True),
    Item("the repository has an address", problems=address, last=True),
    Item("every change is in the changelog", problems=fragments, last=True),
    Item("the changelog has this version and its date", problems=changelog, last=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Go through the list; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="make -C tools release-check", description="what is true before a tag")
    parser.add_argument("--here", action="store_true", help="in this checkout, not in a clean clone")
    parser.add_argument("--quick", action="store_true", help="leave out what takes more than some minutes")
    parser.add_argument("--tag", action="store_true", help="the steps of the release itself are done, too")
    options = parser.parse_args(arguments)
    if options.here:
        sys.exit(1 if list(wrong(options.quick, options.tag)) else 0)
    with tempfile.TemporaryDirectory(prefix="sepal-release-") as scratch:
        clone = Path(scratch) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run(["make", "setup"], cwd=clone, check=True)
        command = [str(clone / ".venv/bin/python"), "-m", "tools.release_check", "--here"]
        command += ["--quick"] * options.quick + ["--tag"] * options.tag
        sys.exit(subprocess.run(command, cwd=clone, check=False).returncode)


def wrong(quick: bool, tag: bool) -> Iterator[str]:
    """Yield what is wrong, and print the list with it."""
    count = steps = 0
    for item in ITEMS:
        if quick and item.slow:
            print(f"[ ] {item.words}: left out")
            continue
        print(f"... {item.words}", flush=True)
        problems = list(item.problems()) if item.problems else list(_failures(item.command))
        print(
            "\n".join([f"[{' ' if problems else 'x'}] {item.words}", *(f"  {problem}" for problem in problems)]),
            flush=True,
        )
        if item.last and not tag:
            steps += len(problems)
            continue
        count += len(problems)
        yield from problems
    if count:
        print(f"release-check: {count} to mend before the tag")
    elif steps:
        print(f"release-check: nothing to mend; {steps} steps of the release itself are left, listed above")
    else:
        print("release-check: the tree can be tagged")


def _failures(command: str) -> Iterator[str]:
    done = subprocess.run(
        command.format(python=sys.executable),
        cwd=ROOT,
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        yield f"{command}: exit code {done.returncode}: {done.stdout.strip()[-1500:]}"


if __name__ == "__main__":
    main()
