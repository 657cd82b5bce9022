"""The quick reproductions of docs/flower-issues.md: each prints what the page says, on Flower 1.39."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.flower.versions import speaks_http

PAGE = (Path(__file__).parents[1] / "docs" / "flower-issues.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMON, *OTHERS = SNIPPETS
SAID = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
QUICK = [text for text in OTHERS if SAID.search(text)]
# One process for all, in which Flower is imported once and its pauses are short.
RUN = """
import pathlib, runpy, sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.05))
for name in sorted(pathlib.Path().glob("issue-*.py")):
    for module in [m for m in sys.modules if m == "supernode" or m.startswith("flwr.supernode.start")]:
        del sys.modules[module]
    runpy.run_path(str(name))
"""


@pytest.mark.skipif(speaks_http(), reason="the page's reproductions are for Flower 1.39")
def test_each_quick_reproduction_prints_what_the_page_says(tmp_path):
    assert len(QUICK) == 4
    (tmp_path / "supernode.py").write_text(COMMON)
    for number, text in enumerate(QUICK):
        (tmp_path / f"issue-{number}.py").write_text(text)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '.'){RUN}"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    sentences = [SAID.search(text)[1] for text in QUICK]
    assert [line for line in completed.stdout.splitlines() if line in sentences] == sentences, completed.stderr[-2000:]


def test_each_item_of_the_page_has_a_reproduction():
    items = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [item.splitlines()[0] for item in items if "```" not in item] == ["What is tested"]
    assert all("sepal" not in text.lower() for text in SNIPPETS)
