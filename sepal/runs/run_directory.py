"""A run's files: configuration, what it is about, metrics, ledger, summary and checkpoints.

``docs/run-directory.md`` describes every field. A round's lines are on disk before the next round starts. A resumed run
replays the rounds after its checkpoint; their lines are deleted first and written again, so that a run that was killed
ends with the same lines as one that was not.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from sepal.config import Mark, RunConfig, flatten, marked, method_name
from sepal.errors import ConfigError, SepalError, StateError, SupersededError
from sepal.flower.simulation import on_one_machine
from sepal.runs.about import check_schema, write_about
from sepal.runs.central_secret import central_secret
from sepal.runs.claims import Claim, lock_after_predecessor, newest_number, settle, take_claim
from sepal.runs.devices import keep_devices
from sepal.runs.json_lines import append, keep_until
from sepal.runs.places import IN_PROCESS
from sepal.runs.privacy import check_accountant
from sepal.runs.stored_run import ABOUT, FREE, begun, started_with, stored_about, stored_config, stored_summary
from sepal.runs.summary import plain, summarise
from sepal.server.accounting import check_budget
from sepal.server.central_noise import of_seed
from sepal.server.report import RunFigures
from sepal.server.rules import check_noised_rounds
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import DiskRunStore
from sepal.simulated_time import read_profile
from sepal.storage.files import check_owner, private_directory, write_atomically
from sepal.storage.regular import check_lock, check_tree
from sepal.strategies.assembly import Assembly
from sepal.strategies.registry import as_begun

LOCK_PATIENCE = 5.0  # seconds
# What the server accepts, which may also change if a run goes back; a method's own keys have the mark, too.
FREE_BACK = frozenset(marked(RunConfig, Mark.FREE_BACK))


class RunDirectory:
    """Writes a run's files; a :class:`sepal.server.observer.Observer`.

    Creates the directory, or checks that an existing run has the same configuration; a run that has not :func:`begun`
    takes the new one. More ``rounds`` extend a run, and another ``final-model`` closes it with the other models: its
    closing round is undone. Only one process at a time can have it
    open.

    Args:
        path: The run's directory; its last part is the run's name.
        assembly: The run's parts.
        engine: Name of the engine, for the summary.
        from_round: Go back to the checkpoint of this round; None to continue after the last one.
        job: The cluster's job that runs it, in words; it takes the run over from any other job
            (:mod:`sepal.runs.claims`).

    Raises:
        ConfigError: The existing run has another configuration; the error names the first different key. Or the run
            has ``privacy.noise``, and is to go back to a round or dp-accounting is not installed. Or the method cannot
            run with this configuration or model.
        ModelError: As above.
        StateError: The directory cannot be written, somebody else owns it or may write to it, something in it leads
            elsewhere, or another process has it open.
        SupersededError: A newer job has taken it over; also raised by all methods that write.
    """

    def __init__(
        self, path: Path, assembly: Assembly, engine: str, from_round: int | None = None, job: str = ""
    ) -> None:
        check_accountant(assembly.setup.config)
        server = assembly.method.make_server(assembly.setup)  # refuses what cannot run, before there is a directory
        check_noised_rounds(server, assembly.method, assembly.setup.config)
        check_budget(assembly.setup.config)
        if assembly.setup.config.devices:
            read_profile(assembly.setup.config.devices)
        if from_round is not None and assembly.setup.config.privacy.noise:
            expected = "a run without privacy.noise: ε would leave out the uploads of the rounds that are undone"
            raise ConfigError("--from-round", expected, from_round)
        if from_round is not None and assembly.setup.config.secure != "off":
            expected = "a run without secure sums: two sums of a round that differ by a client tell its update"
            raise ConfigError("--from-round", expected, from_round)
        if from_round is not None and not begun(path):
            raise ConfigError("--from-round", "a run that was started", path.name)
        prefix = f"{method_name(assembly.setup.config.method)}."
        back = FREE_BACK.union(marked(type(assembly.setup.hyper), Mark.FREE_BACK, prefix=prefix))
        self._free = FREE if from_round is None else FREE | back
        self.path, self._assembly, self._engine = path, assembly, engine
        self._total = assembly.setup.config.rounds
        self._new = not os.path.exists(path)  # pathlib raises errors for odd names
        try:
            private_directory(path)
        except OSError as reason:
            raise StateError(str(path), "a directory that can be made", reason.strerror or str(reason)) from None
        check_owner(path)
        check_tree(path)
        self._lock, self._claim = _lock_for_job(path, job) if job else (_lock(path), Claim(path))
        try:
            if not job and newest_number(path):  # begun by a job, which may be alive on another machine
                self._claim = take_claim(path)
                settle(self._claim)
            self._check_config()
            if from_round is not None:
                self.store().rewind(from_round)
                (path / "summary.json").unlink(missing_ok=True)
        except BaseException:
            self.close()
            raise

    def _check_config(self) -> None:
        setup = self._assembly.setup
        current = {
            **setup.config.flat(),
            "name": self.path.name,
            **flatten(setup.hyper, f"{method_name(setup.config.method)}."),
        }
        stored = stored_config(self.path)
        if begun(self.path):
            stored_about(self.path)  # refuses another format
            if stored is None:
                path = self.path / "config.toml"
                raise StateError(str(path), "the keys with which the run was started, beside its files", "no file")
            method = self._assembly.method
            defaults = {**RunConfig().flat(), **flatten(method.hyper(), f"{method_name(setup.config.method)}.")}
            begun_with = {**defaults, **as_begun(stored)}  # a run of an earlier version lacks keys that are newer
            self._free |= {"final-model"}  # a run keeps both models
            if self.completed and self._extends(begun_with["rounds"]):
                self._free |= {"rounds"}
            another = self.completed and begun_with["final-model"] != current["final-model"]
            if another:
                self._check_closes_again()
            for key in {**current, **stored}:
                if key not in self._free and begun_with.get(key) != current.get(key):
                    raise started_with(self.path, key, begun_with.get(key), current.get(key))
            check_schema(self.path, self._assembly.info)
            if "rounds" in self._free:
                self._reopen(begun_with["rounds"])
            elif another:
                self._reopen((stored_summary(self.path) or {})["rounds"])
        keep_devices(self.path, setup.config.devices, begun(self.path))
        if stored != current:
            write_atomically(self.path / "config.toml", tomli_w.dumps(current).encode())

    def _reopen(self, last: int) -> None:
        config = self._assembly.setup.config
        if config.secure != "off":
            stored = stored_config(self.path) or {}
            key = "rounds" if stored.get("rounds") != config.rounds else "final-model"
            expected = f"{stored.get(key)} in a run with secure sums that has ended: its closing round is not repeated"
            raise ConfigError(key, expected, config.value(key))
        self.store().reopen(last)
        (self.path / "summary.json").unlink()

    def _check_closes_again(self) -> None:
        """Raise if a run that has ended cannot have its closing round again, with the other models.

        Raises:
            ConfigError: See above.
        """
        final_model, store = self._assembly.setup.config.final_model, self.store()
        if final_model == "best" and store.best() is None:
            expected = "last: the run kept no best models, for want of an evaluation on validation data before its end"
            raise ConfigError("final-model", expected, final_model)
        last = (stored_summary(self.path) or {})["rounds"]
        if self._assembly.setup.config.privacy.noise and last not in store.rounds():
            expected = "as it was: privacy.noise undoes no round, and the last one has no checkpoint"
            raise ConfigError("final-model", expected, final_model)

    def _extends(self, rounds: object) -> bool:
        """Return whether the run has more rounds than the ``rounds`` with which it was started, and may have them.

        Raises:
            ConfigError: It has more, but it was stopped, or what the method does in a round depends on their number.
        """
        total, summary, method = self._total, stored_summary(self.path) or {}, self._assembly.method
        if not isinstance(rounds, int) or total <= rounds:
            return False
        if summary.get("stopped"):
            raise ConfigError("rounds", f"{rounds}: the run was stopped after {summary['rounds']}", total)
        if self._assembly.setup.config.privacy.noise and rounds not in self.store().rounds():
            raise ConfigError("rounds", f"{rounds}: privacy.noise undoes no round, and no checkpoint is there", total)
        by = f"the schedule of {method.name}" if method.scheduled else self._assembly.setup.config.depends_on_rounds
        if by:
            expected = f"{rounds}, as the run was started: {by} depends on it"
            raise ConfigError("rounds", expected, total)
        return True

    @property
    def completed(self) -> bool:
        """Whether the run has ended."""
        return stored_summary(self.path) is not None

    def store(self) -> DiskRunStore:
        """Return the store of checkpoints, records and uploads."""
        keep_versions = self._assembly.setup.config.keep_versions
        state = self._assembly.method.server_state
        return DiskRunStore(self.path / "checkpoints", state, keep_versions, self._claim.check)

    def secret(self) -> bytes:
        """Return what central noise is drawn from: the run's secret, in a simulation its seed; empty in a run without.

        Raises:
            StateError: The run has begun, and the secret is lost or not private.
        """
        config = self._assembly.setup.config
        if not config.privacy.central:
            return b""
        if self._simulated:
            return of_seed(config.seed)
        return central_secret(self.path, begun(self.path))

    @property
    def _simulated(self) -> bool:
        return self._engine == IN_PROCESS or on_one_machine()

    def close(self) -> None:
        """Release the directory's lock."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; a start that was refused leaves no directory."""
        self.close()
        refused = isinstance(value, SepalError) and not isinstance(value, SupersededError)
        if self._new and refused and newest_number(self.path) == self._claim.number and not begun(self.path):
            shutil.rmtree(self.path, ignore_errors=True)

    # sepal.server.observer.Observer

    def opened(self, progress: RunState, total: int) -> None:
        """Write ``about.json``, and delete the lines of rounds after ``progress``, which will be written again."""
        self._total = total
        self._claim.check()
        if not progress.round or not (self.path / ABOUT).exists():  # before its first round, a run may be another one
            write_about(self.path, self._assembly, alone=self._simulated)
        for name in ("metrics.jsonl", "ledger.jsonl"):
            keep_until(self.path / name, progress.round)

    def undone(self, progress: RunState, record: RoundRecord) -> None:
        """Delete the lines of the rounds that were undone; the record of their repetition has their messages."""
        self._claim.check()
        for name in ("metrics.jsonl", "ledger.jsonl"):
            keep_until(self.path / name, progress.round)

    def round(self, progress: RunState, record: RoundRecord, line: Mapping[str, Any]) -> None:
        """Append the round's lines."""
        self._claim.check()
        rows = (
            {key: value for key, value in asdict(entry).items() if key != "step" or value} for entry in record.ledger
        )
        append(self.path / "ledger.jsonl", (plain(row) for row in rows))
        append(self.path / "metrics.jsonl", [plain(line)])

    def closed(self, progress: RunState, report: RunFigures) -> None:
        """Write the summary, which marks the run as complete."""
        name, engine, rounds = self.path.name, self._engine, self._total
        summary = summarise(self._assembly, progress, report, name=name, engine=engine, rounds=rounds)
        if self._assembly.setup.config.privacy.of_rounds:
            summary["privacy"]["simulated"] = self._simulated
        text = json.dumps(plain(summary), indent=2, ensure_ascii=False)
        write_atomically(self.path / "summary.json", f"{text}\n".encode(), check=self._claim.check)
        self.close()


def _lock_for_job(path: Path, job: str) -> tuple[FileLock, Claim]:
    """Take the run over for a job, and lock the directory as soon as the job before has noticed it."""
    check_lock(path / ".lock")
    claim, lock = take_claim(path, job), FileLock(path / ".lock")
    try:
        lock_after_predecessor(claim, lock, LOCK_PATIENCE)
    except OSError as reason:
        raise StateError(str(path), "a directory that can be written", reason.strerror or str(reason)) from None
    return lock, claim


def _lock(path: Path) -> FileLock:
    """Lock the directory; the kernel releases the lock when the process ends, however it ends.

    A process whose parent was killed needs a moment to notice it, so a lock that is held is waited for.
    """
    lock = FileLock(path / ".lock")
    try:
        check_lock(path / ".lock")
        lock.acquire(timeout=LOCK_PATIENCE)
    except Timeout:
        raise StateError(str(path), "no other process that runs it", "one that has it open") from None
    except OSError as reason:
        raise StateError(str(path), "a directory that can be written", reason.strerror or str(reason)) from None
    return lock
