"""Runs methods with the body of captured steps, on a CPU, where it can be compared with the usual loop."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from sepal.engines.in_process import run_in_process
from sepal.strategies.assembly import assemble
from sepal.training import programs
from sepal.training.hooks import do_nothing
from sepal.training.programs import Programs
from sepal.training.trainer import Trainer
from tests.methods import flat

# 60 examples of four clients in batches of up to 8 end with short ones; each method takes two rounds of its own.
KEYS = {"local-epochs": 2, "momentum": 0.9, "batch-size": 8, "rounds": 2, "partition.subsample": 60, "seed": 5}

# Keys with which a method does in two rounds what follows from its training.
MORE = {
    "feddst": {"feddst.readjust-every": 1, "feddst.until": 2, "feddst.fraction": 0.2},
    "fedrts": {"fedrts.adjust-every": 1, "fedrts.until": 3},
    "scaffold": {"momentum": 0.0},  # it refuses momentum
}


@contextmanager
def capturing(record):
    """Let runs with ``engine.capture`` use ``record`` on any device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "recorder", lambda device: record)
        yield


def way(job, pending):
    """How a job trains."""
    hooks = [job.hooks.loss, job.hooks.before_step, job.hooks.after_step]
    active = [hook for hook in hooks if hook is not None and hook is not do_nothing]
    if pending is None:
        return "as usual"
    if any(choice is not None for hook in active for choice in hook.choices([1])):
        return "a step for each choice"
    return "hooks" if active else "no hooks"


class Fits:
    """What training led to.

    Attributes:
        found: Of each call of Trainer.fit: client, round, loss, parameters and buffers, and whether it was captured.
        counted: Of each answer, what it has cost, without seconds.
        reasons: Why something was not captured.
        ways: What was handed to the loop, and what became of it.
    """

    def __init__(self):
        self.found, self.counted, self.reasons, self.ways = [], [], {}, set()

    @contextmanager
    def watched(self):
        plain, begin, spent = Trainer.fit, Programs.begin, Trainer.spent
        captured = []

        def noted_begin(programs, job, networks):
            pending = begin(programs, job, networks)
            captured.append(pending is not None)
            self.reasons |= programs.reasons
            self.ways.add(way(job, pending))
            return pending

        def fit(trainer, module, round, *args, **rest):
            captured.clear()
            loss = plain(trainer, module, round, *args, **rest)
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            copies = {name: tensor.detach().clone() for name, tensor in state.items()}
            self.found.append((trainer.client.name, round, loss, copies, captured == [True]))
            return loss

        def noted_spent(trainer):
            figures = spent(trainer)
            self.counted.append({name: figure for name, figure in figures.items() if name != "seconds"})
            return figures

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "spent", noted_spent)
            patch.setattr(Trainer, "fit", fit)
            patch.setattr(Programs, "begin", noted_begin)
            yield self


def run(name, record=None, **keys):
    """A case's run, and what its training led to; with ``record`` by captured steps."""
    fits, flat_keys = Fits(), flat(name, **{**KEYS, **MORE.get(name, {}), **keys})
    with fits.watched():
        if record is None:
            return run_in_process(assemble(flat_keys)), fits
        with capturing(record):
            return run_in_process(assemble({**flat_keys, "engine.capture": True})), fits
