"""The table of methods and Flower's run-config keys are those of the registry, and one command writes them."""

from __future__ import annotations

import pytest

from sepal.errors import ConfigError
from tools.methods import KEYS, PYPROJECT, declared, with_keys, written


@pytest.mark.parametrize(("file", "text"), list(written()), ids=lambda value: getattr(value, "name", ""))
def test_what_is_made_from_the_registry_is_up_to_date(file, text):
    assert file.read_text() == text, "to write it: python -m tools.methods"


def test_nothing_but_the_keys_is_written_anew():
    text = PYPROJECT.read_text()
    stale = text.replace("[tool.flwr.app.config]\n", '[tool.flwr.app.config]\ngone = "x"\n')
    assert stale != text
    assert with_keys(stale) == text
    assert KEYS.findall(text) == [declared() + "\n"]


def test_a_file_without_keys_is_refused():
    with pytest.raises(ConfigError, match=r"pyproject.toml: expected one table \[tool.flwr.app.config\]"):
        with_keys("[project]\n")
