"""One run of the bar, in a worker process whose libraries use one kind of arithmetic."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sepal.config import flatten

if TYPE_CHECKING:
    from sepal.method.interface import Task

KINDS: Mapping[str, Mapping[str, str]] = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
FLAGS = {"avx2": "avx2", "avx512": "avx512f"}  # kind → the processor's flag without which it is not to be had


@dataclass(frozen=True)
class Row:
    """A run with all defaults.

    Attributes:
        dataset: ``digits`` or ``har``.
        method: The method.
        kind: A key of ``KINDS``.
        seed: The run's seed.
        lr: The default learning rate.
        defaults: All other keys of the run whose default a calibration or a decision may change: the method's own, and
            ``clip-gradient``.
        accuracy: Mean over clients of the deployed model's accuracy on test data, in [0, 1]; None if the run ended
            with an error.
        diverged: Trainings of clients that diverged.
        undone: Rounds that were repeated.
        seconds: Wall time.
        commit: The commit that ran.
        cpu: The processor's name.
    """

    dataset: str
    method: str
    kind: str
    seed: int
    lr: float
    defaults: Mapping[str, Any]
    accuracy: float | None
    diverged: int
    undone: int
    seconds: float
    commit: str
    cpu: str

    @property
    def name(self) -> tuple[str, str, str, int]:
        """What a row is of."""
        return self.dataset, self.method, self.kind, self.seed

    def plain(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self)


def kinds_here(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the kinds of arithmetic that this processor has."""
    flags = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return [kind for kind in KINDS if kind not in FLAGS or FLAGS[kind] in flags]


def defaults_of(task: Task) -> tuple[float, dict[str, Any]]:
    """Return the learning rate of a run and its other defaults, as a row has them."""
    own = flatten(task.hyper, f"{task.config.method}.")
    return float(task.config.lr), {"clip-gradient": task.config.clip_gradient, **own}


def run(dataset: str, method: str, kind: str, seed: int, settings: Mapping[str, Any], commit: str) -> Row:
    """Run a method with all its defaults; the process must have been started with the variables of ``kind``.

    Raises:
        RuntimeError: It was not.
    """
    from sepal.engines.in_process.run import run_in_process
    from sepal.errors import SepalError
    from sepal.runs.summary import processor
    from sepal.strategies.assembly import assemble

    if any(os.environ.get(name) != value for name, value in KINDS[kind].items()):
        raise RuntimeError(f"{kind}: expected the variables {dict(KINDS[kind])} in the environment")
    assembly = assemble({**settings, "dataset": dataset, "method": method, "seed": seed})
    begun, accuracy, diverged, undone = time.monotonic(), None, 1, 0
    try:
        report = run_in_process(assembly).report
        accuracy = round(report.accuracy[assembly.method.deployed]["mean"], 6)
        diverged, undone = report.diverged, report.undone
    except SepalError:
        pass  # the row has no accuracy
    seconds = round(time.monotonic() - begun, 1)
    lr, defaults = defaults_of(assembly.task)
    return Row(dataset, method, kind, seed, lr, defaults, accuracy, diverged, undone, seconds, commit, processor())
