"""Captured steps against the usual loop, for every method, on a CPU, by a pretended graph (:mod:`tests.tape`).

The body of a step is the same on every device. What a GPU makes of it is not tested: captured steps have not run
on one.
"""

from __future__ import annotations

import pytest

from sepal.strategies import registry
from tests.captured import run
from tests.methods import CASES
from tests.tape import Tape

# Largest difference of a parameter, a buffer or a loss after two epochs; 6.9e-7 was seen in round 1, 1e-6 in round 2.
MARGIN = 5e-6
# What is sent hangs on thresholds, or noise is drawn from the update itself: only round 1 starts from equal values.
ROUNDED = {"fedadam-stc", "fedavg-stc-private", "fedpse-private"}

# How each registered method trains, by what its client hands to the loop.
WAYS = {
    "no hooks": {
        *("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "local", "local-width", "fedavg-ft", "fedper"),
        *(
            "fedrep",
            "fedbabu",
            "lg-fedavg",
            "fedala",
            "fedbn",
            "ifca",
            "fedstc",
            "fedscr",
            "fedsa-lora",
            "flasc",
            "fedpse",
        ),
    },
    "hooks": {
        *("fedprox", "scaffold", "moon", "per-fedavg", "ditto", "mtl", "dmpfl", "subfedavg", "fedmask", "feddst"),
        *("apfl", "pfedme", "heterofl", "fedrolex", "pfedhn", "tailorfl", "flanc", "pa3dfl"),
    },
    "a step for each choice": {"fjord"},
    "as usual": {"fedem", "fedrod", "pfedgate"},
}


def difference(first, second):
    """The largest difference of two calls of Trainer.fit."""
    (*_, loss, state, _), (*_, other_loss, other_state, _) = first, second
    assert state.keys() == other_state.keys()
    pairs = [(tensor.double(), other_state[name].double()) for name, tensor in state.items() if tensor.numel()]
    parts = [float((left - right).abs().max()) for left, right in pairs]
    return max(abs(loss - other_loss), *parts)


@pytest.mark.parametrize("name", CASES)
def test_the_body_of_captured_steps_trains_as_the_usual_loop(name):
    _, usual = run(name)
    _, captured = run(name, Tape())
    whole = name not in ROUNDED
    assert [fit[:2] for fit in usual.found] == [fit[:2] for fit in captured.found]
    pairs = [pair for pair in zip(usual.found, captured.found, strict=True) if whole or pair[0][1] == 1]
    assert max(difference(*pair) for pair in pairs) <= MARGIN
    if whole:
        for usual_count, captured_count in zip(usual.counted, captured.counted, strict=True):
            assert usual_count == pytest.approx(captured_count, abs=1e-4)
    way = next(way for way, names in WAYS.items() if CASES[name]["method"] in names)
    assert captured.ways - {"no hooks"} == {way} - {"no hooks"}
    assert {fit[-1] for fit in captured.found} == {way != "as usual"}
    assert bool(captured.reasons) == (way == "as usual")


def test_every_registered_method_stands_in_one_of_the_lists():
    """That it stands in the right one is tested above, with what its client does."""
    assert sorted(name for names in WAYS.values() for name in names) == sorted(registry.METHODS)
