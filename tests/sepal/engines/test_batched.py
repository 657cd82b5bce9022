"""Clients that train at once get what they get alone: all methods, within rounding; where they cannot, the same bits.

The tolerance is rtol 1e-4 and atol 1e-5 of each number of the states of server and clients. With Adam atol is 1e-4: it
divides a gradient by its size, so that the rounding of one that is nearly 0 moves a weight by a part of the rate.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.cache import CachedStore
from sepal.method.interface import resolve
from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest, flatten
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvgClient
from sepal.study.method_checks.cases import RoundLog, Stop, StopAfter
from sepal.training import stacked
from sepal.training.devices import at_once
from sepal.training.meeting import _HERE, Meeting
from tests.methods import CASES, flat

BATCHED = [name for name in CASES if registry.get(CASES[name]["method"]).batched and "private" not in name]
NORMED = {"subfedavg-hy", "fedper-topk"}  # models with batch normalisation
SHORT = {"rounds": 2, "clients-per-round": 0, "evaluate-every": 2}


def ran(batch, name="fedavg", workers=1, **keys):
    """The numbers in the states of server and clients and the accuracies, and how many fits were made at once."""
    numbers, counts, save, train = {}, [], CachedStore.save, stacked.train

    def saved(store, version, stored, origin=None):
        numbers[store._name] = flatten(stored.state)[0]
        return save(store, version, stored, origin)

    def counted(jobs, tried):
        fits = train(jobs, tried)
        counts.append(len(jobs))
        return fits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedStore, "save", saved)
        patch.setattr(stacked, "train", counted)
        strategy = run_in_process(assemble({**flat(name, **SHORT), "engine.batch": batch, **keys}), workers=workers)
    numbers["server"] = flatten(strategy.progress.server)[0]
    weights = {f"{who}{at}": np.asarray(value) for who, arrays in numbers.items() for at, value in arrays.items()}
    return weights, strategy.report.accuracy, counts


def assert_close(batched, alone, atol=1e-5):
    assert batched.keys() == alone.keys()
    for name, value in alone.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(batched[name], value, rtol=1e-4, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(batched[name], value, err_msg=name)


@pytest.mark.parametrize("name", BATCHED)
def test_a_method_gives_what_it_gives_one_by_one(name):
    alone, accuracy, none = ran(1, name)
    batched, same, counts = ran(3, name)
    assert_close(batched, alone)
    assert same == accuracy
    assert not none
    assert bool(counts) == (name not in NORMED)


@pytest.mark.parametrize("key", [{"label-smoothing": 0.3}, {"precision": "bf16"}, {"augment": "crop-flip"}])
def test_keys_that_change_a_step_are_honoured_by_clients_that_would_train_at_once(key):
    """One by one: with the same bits as without ``engine.batch``, and others than without the key."""
    (batched, _, counts), (alone, _, _), (plain, _, _) = ran(3, **key), ran(1, **key), ran(1)
    assert not counts
    assert all(np.array_equal(batched[name], alone[name]) for name in alone)
    assert any(not np.array_equal(batched[name], plain[name]) for name in plain)


def test_these_methods_train_at_once():
    expected = "fedavg fedavg-ft local fedprox fedpse fedstc ditto fedper dmpfl subfedavg scaffold"
    assert all(registry.get(name).batched for name in expected.split())


@pytest.mark.parametrize(
    "keys",
    [
        {"momentum": 0.9, "weight-decay": 0.01, "clip-gradient": 0.5},
        {"optimizer": "adam", "lr": 0.003},
        {"own.class-weights": "balanced"},
        {"model": "tests.strategies.own_models:tied"},
        {"trainable": "fc*"},
    ],
)
def test_keys_of_training_apply_to_each_client(keys):
    """Clients of 48 to 69 examples, so that batches are padded and clients have steps of their own."""
    many = {"batch-size": 16, "local-epochs": 2, **keys}
    alone, _, _ = ran(1, **many)
    batched, _, counts = ran(4, **many)
    assert_close(batched, alone, 1e-4 if "optimizer" in keys else 1e-5)
    assert counts == [4] * 3


UNFIT = ("norm", "dropout", "rnn", "attention", "Centred", "Counting", "Branching")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("model", UNFIT)
def test_a_model_that_cannot_trains_one_by_one(model):
    results = []
    for batch in (1, 4):
        torch.manual_seed(0)
        results.append(ran(batch, model=f"tests.sepal.engines.models_for_batches:{model}"))
    (alone, _, _), (batched, _, counts) = results
    assert not counts
    for name, value in alone.items():
        np.testing.assert_array_equal(batched[name], value, err_msg=name)


def test_a_method_that_cannot_trains_one_by_one(monkeypatch):
    monkeypatch.setattr(Meeting, "run", None)
    alone, batched = (ran(batch, "heterofl")[0] for batch in (1, 4))
    assert all(np.array_equal(batched[name], value) for name, value in alone.items())


def test_on_a_cpu_nothing_is_batched_unless_asked():
    assert (at_once(0, "cpu"), at_once(0, "cuda:1"), at_once(5, "cpu")) == (1, 16, 5)


@pytest.mark.parametrize("moment", ["before", "after", "hook"])
def test_an_error_of_one_client_is_that_clients(monkeypatch, moment):
    plain, watching = FedAvgClient.adapt, RoundLog()

    def adapt(self, state, download, plan):
        bad = self.trainer.client.name == "client-00001" and plan.round == 1

        def fail(*_):
            raise ValueError("mine")

        if bad and moment == "before":
            fail()
        if bad and moment == "hook":
            self.hooks = lambda *_: stacked.Hooks(after_epoch=fail)
        try:
            reply = plain(self, state, download, plan)
        finally:
            self.__dict__.pop("hooks", None)
        if bad and moment == "after":
            fail()
        return reply

    monkeypatch.setattr(FedAvgClient, "adapt", adapt)
    keys = {**flat("fedavg", **SHORT), "engine.batch": 4, "on-missing": "skip", "local-epochs": 2}
    run_in_process(assemble(keys), observers=[watching])
    errors = [(e.round, e.client) for record in watching.records for e in record.ledger if e.status == "missing"]
    assert errors == [(1, "client-00001")]
    assert len(watching.records[0].replies) == 3


def test_a_killed_run_goes_on_with_the_same_bits(tmp_path):
    keys = {**flat("ditto", **SHORT), "engine.batch": 3, "checkpoint-every": 1}
    kind = resolve(assemble(keys).method.server_state)

    def run(observers=()):
        store = DiskRunStore(tmp_path / "run", kind)
        return run_in_process(assemble(keys), store=store, observers=observers, state_dir=tmp_path / "clients")

    with suppress(Stop):
        run([StopAfter(1)])
    assert digest(run().progress.server) == digest(run_in_process(assemble(keys)).progress.server)


def test_workers_change_nothing_but_rounding():
    """Each of two workers gets a batch of two and one client that is left."""
    by_two_workers, accuracy, _ = ran(2, "fedavg", workers=2, clients=6)
    alone, same, _ = ran(1, "fedavg", clients=6)
    assert_close(by_two_workers, {name: value for name, value in alone.items() if name.startswith("server")})
    assert accuracy == same


def test_an_interrupt_ends_all_clients():
    meeting, threads = Meeting(), []

    def interrupted():
        raise KeyboardInterrupt

    def waits():
        threads.append(threading.current_thread())
        _HERE.member.wait(stacked.Job(*[None] * 6))

    with pytest.raises(KeyboardInterrupt):
        meeting.run([waits, waits, interrupted])
    for thread in threads:
        thread.join(10)
    assert [thread.is_alive() for thread in threads] == [False, False]
