"""The list before a tag: what is wrong ends it with 1, and steps of the release itself only with ``--tag``."""

from __future__ import annotations

import pytest

from tools import release_check
from tools.release_check import Item


@pytest.mark.parametrize(
    ("bad", "last", "options", "code"),
    [
        (False, False, [], 0),
        (True, False, [], 1),
        (True, True, [], 0),
        (True, True, ["--tag"], 1),
        (False, True, ["--tag"], 0),
    ],
)
def test_what_is_wrong_ends_with_1(bad, last, options, code, monkeypatch, capsys):
    items = (Item("one", "true"), Item("two", problems=lambda: iter(["it is so"] * bad), last=last))
    monkeypatch.setattr(release_check, "ITEMS", items)
    with pytest.raises(SystemExit) as ended:
        release_check.main(["--here", *options])
    assert ended.value.code == code
    printed = capsys.readouterr().out
    assert ("[ ] two\n  it is so" in printed) == bad
    assert ("can be tagged" in printed) == (not bad)


def test_a_command_that_fails_is_named_with_its_output(monkeypatch, capsys):
    monkeypatch.setattr(release_check, "ITEMS", (Item("slow", "false", slow=True), Item("fails", "echo why; false")))
    with pytest.raises(SystemExit):
        release_check.main(["--here", "--quick"])
    assert "[ ] slow: left out" in (printed := capsys.readouterr().out)
    assert "[ ] fails\n  echo why; false: exit code 1: why" in printed


def test_versions_of_this_tree_agree():
    assert list(release_check.versions()) == []
