"""Settings of all tests: no test is judged by how long it took, on a machine that may be busy."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Typer makes the tree of all commands anew for each that a test invokes: four fifths of what most of them take.
typer.testing._get_command = functools.cache(typer.testing._get_command)
# No test cuts the power; those of what is synced, and of a sync that fails, put a function of their own here.
os.fsync = lambda file: None  # a short run waits for the disk a hundred times
gc.disable()  # imports and thousands of tests make objects that stay; looking through them is a seventh of collection


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """One worker has the tests of a file, which may share what takes long, and one all that start Ray (loadgroup).

    A Ray that starts beside another one takes longer than it gives its processes.
    """
    for item in items:
        simulation = item.get_closest_marker("simulation")
        item.add_marker(pytest.mark.xdist_group("simulation" if simulation else item.nodeid.partition("::")[0]))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def modules_of_one_test(tmp_path_factory):
    """Modules that a test wrote are no other test's: the next one may write another module of the same name."""
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    written = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def loggers_as_before():
    """A node that runs in a test's process changes what Flower's logger shows: not for the next test."""
    loggers = [logging.getLogger(name) for name in ("sepal", "flwr")]
    before = [(logger.level, logger.propagate, [*logger.filters], [*logger.handlers]) for logger in loggers]
    yield
    for logger, (level, propagate, filters, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.filters[:], logger.handlers[:] = filters, handlers


@pytest.fixture
def runs_in_this_process(monkeypatch):
    """Runs of a plan are executed here and not in a process each, which takes seconds to start.

    That the processes of a plan work and may be killed is tested in ``tests/sepal/cli/test_compare.py``.
    """
    from sepal.cli.app import BAD_INPUT
    from sepal.cli.running import run_flat
    from sepal.errors import SepalError
    from sepal.study.plans import execute

    def start(run, out, scratch, workers):
        with (scratch / run.name).open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            try:
                run_flat({**run.keys, "out": str(out)}, Path.cwd(), workers=1)
            except SepalError as error:
                print(f"sepal: {error}", file=log)
                return ended(run.name, BAD_INPUT)
        return ended(run.name, 0)

    def ended(name, code):
        process = SimpleNamespace(is_alive=lambda: False, join=lambda: None, exitcode=code)
        return SimpleNamespace(name=name, process=process)

    monkeypatch.setattr(execute, "_start", start)
