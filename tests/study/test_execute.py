"""Which of a plan's runs have ended, and whether those that are there are the plan's."""

from __future__ import annotations

import json

import pytest
import tomli_w

from sepal.errors import ConfigError
from sepal.study.plans.execute import has_ended
from sepal.study.plans.model import PlannedRun


def test_a_key_of_another_form_is_the_same_run(tmp_path):
    """A run stores parsed values: of the number 32 in a plan a text, of 1 a float."""
    (tmp_path / "one").mkdir()
    stored = {"method": "fedpse", "folder.resize": "32", "lr": 1.0, "fedpse.keep": 1.0, "name": "one"}
    (tmp_path / "one" / "config.toml").write_text(tomli_w.dumps(stored))
    (tmp_path / "one" / "summary.json").write_text(json.dumps({"complete": True}))
    plan = {"method": "fedpse", "folder.resize": 32, "lr": 1, "fedpse.keep": 1, "name": "one"}
    assert has_ended(PlannedRun("", "", "fedpse", 0, plan), tmp_path)
    with pytest.raises(ConfigError, match=r"one: folder.resize: expected 64, as in the plan, got '32'; give another"):
        has_ended(PlannedRun("", "", "fedpse", 0, plan | {"folder.resize": 64}), tmp_path)
