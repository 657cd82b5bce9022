"""Each method's guard: an absurd number in any array of an upload or of the server's state is refused by name.

What a method exchanges and keeps is taken from two rounds of it on digits, so no method can be forgotten, whatever it
calls its arrays. 1e5 in one entry is more than ten times the norm of any of these models (at most 60).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.method import Payload
from sepal.method.interface import resolve
from sepal.server.guard import Guard
from sepal.storage.serialize import flatten, restore
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import ValueCoding
from tests.golden.cases import CASES

METHODS = pytest.mark.parametrize("name", registry.METHODS)
ABSURD = (1e5, np.nan, np.inf)


class Observed:
    """The states before and after each round, and the messages of it."""

    def __init__(self):
        self.states, self.refused = [], []

    def opened(self, progress, total):
        self.states.append(progress.server)

    def round(self, progress, record, line):
        self.states.append(progress.server)
        self.refused += [entry for entry in record.ledger if entry.status == "refused"]

    def closed(self, progress, report):
        pass


def with_first_entry(array, value):
    changed = np.array(array)
    changed.reshape(-1)[0] = value
    return changed


def planted_values(tensor, value):
    """One absurd entry; of ±μ, which is one number for all entries, an absurd μ."""
    if tensor.coding is ValueCoding.SIGN:
        return np.sign(tensor.values) * np.float32(value)
    return with_first_entry(tensor.values, value)


class Planting:
    """Makes client classes whose uploads from round 2 on have an absurd number in one tensor, in another one each time.

    Args:
        value: The number; without one, all uploads are honest.

    Attributes:
        planted: The names of the tensors that had it, by round of the last run.
        missing: The names of those that were sent from round 2 on, and never with it; clients may send other ones.
    """

    def __init__(self, name, value=None):
        method = registry.get(name)
        self.planted, self.missing, done = {}, set(), set()
        planting = self

        class Client(resolve(method.client)):
            def train(self, state, download, plan):
                after, upload = super().train(state, download, plan)
                if plan.round == 1:
                    return after, upload
                names = [key for key, t in upload.tensors.items() if t.values is not None and t.values.size]
                planting.missing |= set(names) - done
                if value is not None and (free := [key for key in names if key in planting.missing]):
                    chosen = free[0]
                    done.add(chosen)
                    planting.missing.remove(chosen)
                    planting.planted.setdefault(plan.round, []).append(chosen)
                    tensor = upload.tensors[chosen]
                    bad = replace(tensor, values=planted_values(tensor, value))
                    upload = Payload({**upload.tensors, chosen: bad}, upload.scalars)
                return after, upload

        self.method = replace(method, client=Client)


@cache
def honest(name):
    """The parts of a run with two clients in each of three rounds, what was observed of it, and what was sent in it."""
    planting, observed = Planting(name), Observed()
    assembly = assemble(next(iter(CASES[name].values())), planting.method)
    run_in_process(assembly, observers=[observed])
    return assembly, observed, planting.missing


@METHODS
def test_an_honest_run_is_refused_nothing(name):
    assembly, observed, _ = honest(name)
    assert not observed.refused
    algorithm = assembly.method.make_server(assembly.setup)
    for before, after in zip(observed.states, observed.states[1:], strict=False):
        assert Guard(algorithm, assembly.setup, before).unusable(after) == ""


@METHODS
@pytest.mark.parametrize("value", ABSURD)
def test_an_absurd_number_in_any_array_of_the_servers_state_is_named(name, value):
    assembly, observed, _ = honest(name)
    algorithm = assembly.method.make_server(assembly.setup)
    unbounded = getattr(algorithm, "unbounded", ())
    before, after = observed.states[-3], observed.states[-2]  # the last one is the closing round's
    guard = Guard(algorithm, assembly.setup, before)
    arrays, structure = flatten(after)
    for path, array in arrays.items():
        if array.dtype.kind != "f" or not array.size or (path.split("/")[1] in unbounded and np.isfinite(value)):
            continue
        planted = restore(type(after), {**arrays, path: with_first_entry(array, value)}, structure)
        assert path in guard.unusable(planted), path


@METHODS
def test_an_absurd_number_in_any_tensor_of_an_upload_is_refused_and_counts_as_diverged(name):
    """1e5 in one tensor of each upload, two tensors a round. It comes through the wire's formats unharmed."""
    keys = {**next(iter(CASES[name].values())), "on-divergence": "keep", "min-replies": 1}
    planting = Planting(name, 1e5)
    sent = honest(name)[2]
    assert sent or name in ("local", "local-width", "fedmask", "fedpm"), "only these send no values"
    planting.missing |= sent
    while planting.missing:
        planting.planted, observed = {}, Observed()
        flat = {**keys, "rounds": 2 + len(planting.missing) // 2}  # the first one is honest
        strategy = run_in_process(assemble(flat, planting.method), observers=[observed])
        assert planting.planted
        for round, names in planting.planted.items():
            reasons = [entry.reason for entry in observed.refused if entry.round == round]
            sent_as = ["update"] * len(names) if registry.get(name).compression else names  # it joins all tensors
            expected = [f"a change of {sent} by a norm of at most " for sent in sent_as]
            assert len(reasons) == len(expected)
            assert all(any(words in reason for reason in reasons) for words in expected), reasons
            assert all(any(words in reason for words in expected) for reason in reasons), reasons
        assert strategy.report.diverged == len(observed.refused) == sum(map(len, planting.planted.values()))
