"""Which of a plan's runs have ended, whether those that are there are the plan's, and how the others start."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from multiprocessing.connection import Pipe
from threading import Thread

import pytest
import tomli_w

from sepal.engines import processes
from sepal.errors import ConfigError
from sepal.study.plans import child, execute
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

    def say(self, text):
        pass


def outlive(lifeline):
    """The main function of a process that would go on for ever."""
    Thread(target=child._end_with_parent, args=(lifeline,), daemon=True).start()
    time.sleep(600)


def test_a_run_ends_when_the_process_that_started_it_ends():
    """Which closes the pipe, whatever it dies of."""
    lifeline, child_end = Pipe()
    process = processes.start(outlive, child_end)
    child_end.close()
    process.join(1)
    assert process.is_alive()
    lifeline.close()
    process.join(60)
    assert process.exitcode == 1


def test_a_run_that_cannot_start_is_named_with_what_it_said(tmp_path):
    runs = [PlannedRun("", "", "local", 0, {"name": "a", "method": "local", "dataset": "digits", "lr": -1})]
    failed = execute.execute(runs, tmp_path, Silent(), jobs=1, workers=1, hours=1)
    assert failed.keys() == {"a"}
    assert failed["a"].startswith("sepal: lr: expected")
