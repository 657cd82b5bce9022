"""Clients that train at once: each has its own data, rate, proximal term, mask and number of steps."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from sepal.training.hooks import Hooks, frozen, proximal
from sepal.training.meeting import Meeting
from sepal.training.network import Network
from sepal.training.optimizers import ParameterGroup
from sepal.training.stacked import Job, NotStackableError, kind, train
from tests.sepal.training.small_trainer import X, Y, make, work

SIZES, RATES = (3, 7, 5, 1), (0.5, 0.1, 0.3, 0.4)


def clients(**settings):
    """Clients of different sizes, each with a network that starts from its own weights."""
    pairs = []
    for number, size in enumerate(SIZES):
        trainer = work(f"client-{number}", **settings)
        network = Network(make())
        with torch.no_grad():
            for tensor in network.tensors.values():
                tensor.mul_(1 + number / 10)
        pairs.append((replace(trainer, x=X[:size] + number, y=Y[:size]), network))
    return pairs


def anchored(network, number):
    return proximal({name: np.full(t.shape, 0.1, np.float32) for name, t in network.tensors.items()}, 1 + number, "cpu")


def masked(network, number):
    free = {name: np.arange(t.numel()).reshape(t.shape) % 3 != number for name, t in network.tensors.items()}
    return frozen(network, free)


def job(trainer, network, hooks, rate=None, passes=2):
    module = network.module.train()
    optimizer = trainer.optimizer(module, 1, [ParameterGroup(list(module.parameters()), rate)])
    return Job(trainer, module, hooks, optimizer, passes, partial(trainer.rows, 1, "train"))


@pytest.mark.parametrize("hooks", [lambda network, number: Hooks(), anchored, masked])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.5, "weight_decay": 0.1, "clip_gradient": 0.4}, {"optimizer": "adam"}]
)
def test_each_gets_what_it_gets_alone(hooks, settings):
    alone, losses = [], []
    for number, (trainer, network) in enumerate(clients(**settings)):
        groups = [ParameterGroup(list(network.module.parameters()), RATES[number])]
        losses.append(trainer.fit(network.module, 1, hooks(network, number), parameters=groups))
        alone.append(network.read())
    pairs = clients(**settings)
    jobs = [job(*pair, hooks(pair[1], number), RATES[number]) for number, pair in enumerate(pairs)]
    assert len({kind(one_job) for one_job in jobs}) == 1
    fitted = train(jobs, set())
    np.testing.assert_allclose([fit_result.loss for fit_result in fitted], losses, rtol=1e-5)
    assert [(fit_result.steps, fit_result.examples) for fit_result in fitted] == [
        (2 * -(-n // 3), 2 * n) for n in SIZES
    ]
    for expected, (_, network) in zip(alone, pairs, strict=True):
        for name, value in network.read().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", range(4))
def test_a_client_whose_data_is_not_finite_harms_no_other(bad):
    pairs = clients()
    pairs[bad][0].x[:] = torch.inf
    train([job(*pair, Hooks()) for pair in pairs], set())
    finite = [all(np.isfinite(value).all() for value in network.read().values()) for _, network in pairs]
    assert finite == [number != bad for number in range(4)]


def test_a_failure_leaves_the_modules_as_they_were():
    pairs, epochs = clients(), []

    def fail(module, epoch):
        epochs.append(epoch)
        if len(epochs) == 2:
            raise ValueError("mine")

    before = [network.read() for _, network in pairs]
    with pytest.raises(ValueError, match="mine"):
        train([job(*pair, Hooks(after_epoch=fail)) for pair in pairs], set())
    for weights, (_, network) in zip(before, pairs, strict=True):
        assert all(np.array_equal(value, weights[name]) for name, value in network.read().items())


def test_what_trains_together_is_of_one_kind():
    """Other layers, other tensors trained, another hook; a loss or a hook of one's own trains alone."""
    trainer, network = clients()[0]
    plain = kind(job(trainer, network, Hooks()))
    assert plain == kind(job(*clients()[1], Hooks(), 0.2))
    wider = Network(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)))
    smooth = Network(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    part = replace(
        job(trainer, network, Hooks()), optimizer=trainer.optimizer(network.module, 1, [network.module[0].weight])
    )
    others = [
        job(trainer, wider, Hooks()),
        job(trainer, smooth, Hooks()),
        job(trainer, network, anchored(network, 1)),
        part,
    ]
    assert len({plain, *map(kind, others)}) == 5
    own_hooks = [Hooks(loss=trainer.loss_of), Hooks(before_step=print), Hooks(after_step=print)]
    assert [kind(job(trainer, network, hooks)) for hooks in own_hooks] == [None] * 3
    uneven = replace(trainer, task=replace(trainer.task, averages=False))
    assert kind(job(uneven, network, Hooks())) is None


def test_a_model_that_does_not_fit_is_tried_once(monkeypatch):
    tried = []

    def unfit(jobs, tried_kinds):
        tried.append(len(jobs))
        raise NotStackableError("no")

    monkeypatch.setattr("sepal.training.stacked.train", unfit)
    meeting = Meeting()

    def fit(trainer, network):
        threads.add(threading.current_thread())
        return replace(trainer, meeting=meeting).fit(network.module, 1), network.read()

    def run(**settings):
        threads.clear()
        outcomes = meeting.run([partial(fit, *pair) for pair in clients(**settings)])
        alone = [(trainer.fit(network.module, 1), network.read()) for trainer, network in clients(**settings)]
        assert [loss for loss, _ in outcomes] == [loss for loss, _ in alone]
        return len(threads)

    threads = set()
    assert run() == 4
    assert run() == 1  # once it is known that nothing trains at once, the caller's own
    assert threads == {threading.current_thread()}
    assert run(weight_decay=0.1) == 1  # another kind: it is seen here
    assert run(weight_decay=0.1) == 4  # and tried
    assert tried == [4, 4]


def test_clients_that_keep_their_optimizer_run_in_the_callers_thread():
    meeting, threads = Meeting(), []

    def fit(trainer, network):
        threads.append(threading.current_thread())
        return replace(trainer, meeting=meeting).fit(network.module, 1, optimizer=trainer.optimizer(network.module, 1))

    for _ in range(2):
        meeting.run([partial(fit, *pair) for pair in clients()])
    assert len(set(threads[:4])) == 4
    assert set(threads[4:]) == {threading.current_thread()}


def test_a_batch_that_does_not_fit_the_memory_is_told_and_trains_one_by_one(monkeypatch, caplog):
    def full(jobs, tried):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("sepal.training.stacked.train", full)
    meeting = Meeting()
    fits = [partial(replace(trainer, meeting=meeting).fit, network.module, 1) for trainer, network in clients()]
    assert meeting.run(fits) == [trainer.fit(network.module, 1) for trainer, network in clients()]
    assert "4 clients at a time do not fit the device: they train one by one (engine.batch)" in caplog.text
