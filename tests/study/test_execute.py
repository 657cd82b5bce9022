"""Which of a plan's runs have ended, whether those that are there are the plan's, and how the others start."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import tomli_w

from sepal.errors import ConfigError
from sepal.study.plans import execute
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


class Silent(nullcontext):
    """A display that shows nothing."""

    def start(self, planned, missing, out):
        pass

    def begin(self, run):
        pass

    def end(self, name, trouble):
        pass

    def look(self):
        pass


def test_a_run_that_starts_leaves_the_functions_alone_that_another_may_be_reading(monkeypatch, tmp_path):
    """Once they were written again for each run, and a process read an empty file."""
    found = []

    def started(command, **options):
        functions = Path(command[-3]).parent / execute.FUNCTIONS
        found.append(functions.read_text())
        functions.write_text("as the first run has it")
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(execute.subprocess, "Popen", started)
    runs = [PlannedRun("", "", "local", 0, {"name": name, "method": "local"}) for name in ("a", "b")]
    assert execute.execute(runs, tmp_path, Silent(), jobs=2, workers=1, hours=1) == {}
    assert found == ["{}", "as the first run has it"]
