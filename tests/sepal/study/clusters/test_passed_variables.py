"""Which variables a run on another machine gets: each that the code reads is passed, or stays here for a reason."""

from __future__ import annotations

import re
from pathlib import Path

import sepal
from sepal.study.clusters.ray_task import CORES, TASK
from sepal.study.clusters.tasks import PASSED, Tasks
from tests.sepal.study.clusters.planned_runs import Shown, planned

STAY = {
    "SEPAL_CA_PASSPHRASE": "a secret",
    "SEPAL_CERTIFICATES": "of one server",
    "SEPAL_HOSTS": "the command's own",
    "SEPAL_METRICS": "of one server",
    "SEPAL_PROCESSES": "marks the processes of one command",
    "SEPAL_STATS": "a file of one client",
    TASK: "of one task",
    CORES: "of one task",
}


def test_each_variable_that_is_read_is_passed_or_stays_here():
    text = "".join(path.read_text() for path in Path(sepal.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"SEPAL_[A-Z_]*[A-Z]", text)) == {*PASSED, *STAY}


def test_a_task_gets_what_is_passed_and_no_secret(tmp_path, monkeypatch):
    environments = []

    class Pretended(Tasks):
        kind = "pretended"

        def _launch(self, going, environment):
            environments.append(environment)

        _wait = _has_ended = _cancel = None

    for name in ("SEPAL_DATA", "SEPAL_CA_PASSPHRASE"):
        monkeypatch.setenv(name, "/x")
    workers = Pretended(tmp_path, False, 1, Shown())
    going = workers.start(planned(), 1)
    workers.close()
    (environment,) = environments
    assert environment[TASK] == f"pretended {going.submission.job}"
    assert environment["SEPAL_DATA"] == "/x"
    assert set(environment) <= {*PASSED, TASK, "NO_COLOR"}
