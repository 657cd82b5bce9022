"""The loop of all studies: what is needed is run once, in order, and one bad run or killed worker stops nothing."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from sepal.study import runner
from sepal.study.record import RunRecord
from sepal.study.runner import records


@pytest.fixture
def threads(monkeypatch):
    """Runs are executed in threads."""
    monkeypatch.setattr(runner, "processes", ThreadPoolExecutor)


def row(number):
    return RunRecord(rounds=number)


def test_what_is_needed_is_asked_again_and_each_is_run_once(threads):
    done = []

    def needed():
        return [1, 1, 2, 3] if len(done) < 3 else [1, 2, 3, 4]  # 4 waits for the others

    for record in records(needed, row, jobs=2, hours=1):
        done.append(record.rounds)
    assert sorted(done) == [1, 2, 3, 4]
    assert done[-1] == 4


def test_a_limit_of_hours_or_of_runs_ends_it(threads):
    assert list(records(lambda: [1, 2], row, jobs=1, hours=0)) == []
    assert [record.rounds for record in records(lambda: [1, 2, 3], row, jobs=1, hours=1, most=2)] == [1, 2]


def test_a_run_that_fails_has_no_record_and_stops_nothing(threads):
    def make(number):
        if number == 2:
            raise MemoryError
        return row(number)

    assert [record.rounds for record in records(lambda: [1, 2, 3], make, jobs=1, hours=1)] == [1, 3]


def dies(number):
    """Make a record, unless the machine kills the worker."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return RunRecord(rounds=number, labels={"variable": os.environ.get("SEPAL_TEST_VARIABLE", "")})


def test_a_killed_worker_costs_its_run_and_not_the_rest(caplog):
    finished = list(records(lambda: [1, 2, 3], dies, jobs=1, hours=1, environment={"SEPAL_TEST_VARIABLE": "set"}))
    assert [record.rounds for record in finished] == [1, 3]
    assert {record.labels["variable"] for record in finished} == {"set"}
    assert "SEPAL_TEST_VARIABLE" not in os.environ
    assert "set aside: 2" in caplog.text
