"""What others' code draws from a global generator follows from the run's seed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.seeding import generators_kept, generators_seeded
from sepal.strategies.assembly import assemble
from tests.sepal.engines.test_modules_with_state import FLAT, HERE

DRAW = {"numpy": np.random.rand, "python": random.random, "torch": lambda: float(torch.rand(()))}
LINEAR = f"{__name__}:linear"


def linear(shape, classes):
    return torch.nn.Linear(3, classes)


def noisy_data(draw):
    x = np.array([[draw() for _ in range(3)] for _ in range(24)], np.float32)
    y = (x.sum(1) > 1.5).astype(np.int64)
    return x[:16], y[:16], x[16:], y[16:]


class Flickering(torch.utils.data.Dataset):
    """Another input each time that it is read, as random crops are."""

    def __init__(self, draw, count):
        self.draw, self.count = draw, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return np.full(3, number % 2 + self.draw(), np.float32), number % 2


def numpy_data(client):
    return noisy_data(DRAW["numpy"])


def python_data(client):
    return noisy_data(DRAW["python"])


def torch_data(client):
    return noisy_data(DRAW["torch"])


def numpy_dataset(client):
    return Flickering(DRAW["numpy"], 16), Flickering(DRAW["numpy"], 8)


def python_dataset(client):
    return Flickering(DRAW["python"], 16), Flickering(DRAW["python"], 8)


def torch_dataset(client):
    return Flickering(DRAW["torch"], 16), Flickering(DRAW["torch"], 8)


def numpy_change(x, rng):
    return x + DRAW["numpy"]()


def python_change(x, rng):
    return x + random.random()


def torch_change(x, rng):
    return x + torch.rand(())


def disturb(number):
    torch.default_generator.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002  (what a user may have done)
    random.seed(number)


def drawn():
    return [draw() for draw in DRAW.values()]


def run(number, **keys):
    """Run from another state of the generators; return all bits."""
    disturb(number)
    report = run_in_process(assemble({**FLAT, "model": LINEAR, "method": "fedavg", **keys})).report
    return report.digests, report.accuracy


@pytest.mark.parametrize("where", ["model", "data", "dataset", "change"])
@pytest.mark.parametrize("generator", DRAW)
def test_runs_of_one_seed_are_equal_whatever_generator_a_users_code_draws_from(generator, where):
    keys = {
        "model": {"model": f"{HERE}:{generator}_noise"},
        "data": {"own.data": f"{__name__}:{generator}_data"},
        "dataset": {"own.data": f"{__name__}:{generator}_dataset"},
        "change": {"augment": f"{__name__}:{generator}_change"},
    }[where]
    once = run(1, **keys)
    assert run(2, **keys) == once
    assert run(1, **keys, seed=5) != once


def test_clients_and_rounds_draw_different_numbers():
    seeds = 7, 8
    numbers = []
    for seed in seeds:
        with generators_seeded(seed):
            numbers.append(drawn())
    assert all(first != second for first, second in zip(*numbers, strict=True))


def fail():
    with generators_seeded(9):
        drawn()
        return 1 / 0


def test_the_states_are_back_also_after_an_error():
    disturb(3)
    expected = drawn()
    disturb(3)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert drawn() == expected


def begun_and_drawn_once():
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    return with_a_normal()


def with_a_normal():
    return [*drawn(), float(np.random.randn())]  # noqa: NPY002


def test_an_engine_restores_the_generators_once_and_work_inside_work_goes_on_where_it_was():
    """A cached normal number of NumPy's, too: ``randn`` draws two at a time."""
    begun_and_drawn_once()
    with generators_kept():
        with generators_seeded(5):
            first = with_a_normal()
            with generators_seeded(6):
                inner = with_a_normal()
            second = with_a_normal()
        with generators_seeded(5):
            assert (with_a_normal(), with_a_normal()) == (first, second)
    after = with_a_normal()
    begun_and_drawn_once()
    assert with_a_normal() == after
    with generators_seeded(6):
        assert with_a_normal() == inner
