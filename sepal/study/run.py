"""One run in process, with its directory: what ``sepal run``, a plan's runs and Python share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sepal.config import Flat, RunConfig
    from sepal.server.observer import Observer
    from sepal.strategies.assembly import Assembly


class PreparedRun(NamedTuple):
    """A run that is ready to start.

    Attributes:
        path: Its directory, which need not exist yet.
    """

    assembly: Assembly
    path: Path

    @property
    def settings(self) -> RunConfig:
        """The shared keys, complete."""
        return self.assembly.setup.config


def assembled(flat: Flat, base: Path) -> Assembly:
    """Return the parts of the run that the keys ``flat`` describe, which may have begun.

    Args:
        flat: Flat run-config keys.
        base: The directory that a relative ``out`` is relative to.

    Raises:
        SepalError: A key is invalid, or data is missing or not as when the run began.
    """
    from sepal.runs.about import with_images_as_begun
    from sepal.runs.places import named_path
    from sepal.strategies.assembly import assemble

    with with_images_as_begun(named_path(flat, base)):
        return assemble(flat)


def prepare(flat: Flat, base: Path, workers: int = 0) -> PreparedRun:
    """Check the keys ``flat`` and return the run that they describe.

    Args:
        flat: Flat run-config keys.
        base: The directory that a relative ``out`` is relative to.
        workers: Worker processes of a search of the learning rate; 0: the engine's default.

    Raises:
        SepalError: A key is invalid, or data is missing.
    """
    from sepal.data.federation import DealtData
    from sepal.data.locations import data_directory
    from sepal.engines.in_process import check_clients
    from sepal.runs.places import run_path
    from sepal.simulated_time import located

    if flat.get("data-dir"):  # so that reports and exports find the data from anywhere
        flat = {**flat, "data-dir": str(data_directory(str(flat["data-dir"])))}
    if isinstance(devices := flat.get("devices"), str):  # the same from anywhere
        flat = {**flat, "devices": located(devices)}
    flat, note = _with_rate(flat, base, workers)
    assembly = assembled(flat, base)
    check_clients(assembly.setup.config)  # before the run's directory is created
    left_out: tuple[str, ...] = ()
    if isinstance(assembly.data, DealtData):
        left_out = assembly.data.left_out(assembly.setup.config.clients)
    notes = (*note, *assembly.notes, *left_out)
    return PreparedRun(replace(assembly, notes=notes), run_path(assembly.setup.config, base))


def _with_rate(flat: Flat, base: Path, workers: int) -> tuple[Flat, tuple[str, ...]]:
    """Return the keys with the rate that ``lr = "search"`` stands for, and a line that says how it was chosen.

    A run that has begun goes on with its rate.
    """
    from sepal.config.run import SEARCH

    if flat.get("lr") != SEARCH:
        return flat, ()
    from sepal.runs.places import run_path
    from sepal.runs.stored_run import begun, stored_config
    from sepal.study.rate_search import searched_rate

    if flat.get("name"):
        path = run_path(assembled({**flat, "lr": 0.0}, base).setup.config, base)
        if begun(path) and (stored := stored_config(path)):
            return {**flat, "lr": stored["lr"]}, ()
    rate = searched_rate(flat, workers)
    return {**flat, "lr": rate.lr}, (rate.note,)


def execute(
    run: PreparedRun,
    workers: int = 0,
    from_round: int | None = None,
    observers: Sequence[Observer] = (),
    job: str = "",
) -> bool:
    """Run a federation, or continue it; return whether there was something left to do.

    Args:
        run: The run.
        workers: Number of worker processes; 0: the engine's default.
        from_round: Go back to the checkpoint of this round; None to continue after the last one.
        observers: Told of every round, after the run's directory.
        job: The cluster's job that this process is, in words; empty for none.

    Raises:
        SepalError: The run cannot be started or completed.
    """
    from sepal.engines.in_process import run_in_process
    from sepal.operation.repeats import told_once
    from sepal.runs.places import IN_PROCESS
    from sepal.runs.run_directory import RunDirectory
    from sepal.runs.stored_run import stored_summary
    from sepal.storage.regular import expanded
    from sepal.study.majority import note

    settings = run.settings
    states = expanded("state-dir", settings.state_dir) if settings.state_dir else run.path / "clients"
    with RunDirectory(run.path, run.assembly, IN_PROCESS, from_round, job) as directory:
        if directory.completed:
            return False
        watching: list[Observer] = [directory, *observers]
        with told_once():
            run_in_process(run.assembly, store=directory.store(), observers=watching, workers=workers, state_dir=states)
            if summary := stored_summary(run.path):
                note(run.path, summary, run.assembly)  # reads clients' data in this process, and may warn of them, too
    return True
