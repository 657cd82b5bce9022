"""The comparisons of the tutorials in docs/tasks, as they stand."""

from __future__ import annotations

import pytest

from tests.e2e.test_readme import shell
from tests.tasks.test_tutorials import PAGES, ROOT, blocks, check, tutorial

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "name", [name if name == "tokens" else pytest.param(name, marks=pytest.mark.long) for name in PAGES]
)
def test_a_comparison_prints_what_its_tutorial_shows(name, tmp_path):
    """In words, not in numbers: a difference of two methods may be near 0."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    code_blocks = blocks(tutorial(name))
    (index,) = (index for index, (_, block) in enumerate(code_blocks) if "sepal compare examples" in block)
    language, shown = code_blocks[index + 1]
    assert language == "text"
    check(shown, shell(code_blocks[index][1], tmp_path, tmp_path / "home"), numbers=False)
