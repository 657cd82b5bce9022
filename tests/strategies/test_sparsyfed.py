"""SparsyFed: two rounds by hand, inputs pruned for gradients alone, its limit cases, and bytes by its formula."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.masks.selection import count
from sepal.method import ClientInfo, Payload, Plan, Upload
from sepal.strategies.baselines.sparsyfed import SparsyFedServer, powered, pruned_inputs
from sepal.study.method_checks.cases import Case
from sepal.wire.tensors import SparseTensor
from tests.strategies.baselines import Sent, assert_same_model, run
from tests.strategies.linear import NAME, Linear, close

KEYS = {"sparsyfed.alpha": 2.0, "sparsyfed.keep": 0.5}
CLIENTS = (ClientInfo("a", 1), ClientInfo("b", 3))
FIRST = (0.81, -0.36, 0.25, 0.04)  # v; w = (.9, -.6, .5, .2)


def after_a_round(**keys):
    toy = Linear("sparsyfed", FIRST, CLIENTS, **KEYS, **keys)
    toy.round(1, a=[((1, 2, -1, 3), 0)], b=[((2, 1, 1, 1), 1)])
    return toy


def test_two_rounds_by_hand():
    """a: y = .81 - .72 - .25 + .12 = -.04; ∂L/∂w = e·x·2|w| = (-.072, -.096, .04, -.048):
    w = (.9072, -.5904, .496, .2048), of which the two largest are sent. b: e = .55: (.702, -.666, .445, .178).
    Means with n = (1, 3). Round 2: half of the weights are 0, so half of the inputs are saved. a: x = (1, 2, -1, 3),
    y = .567461 - 2·.418738 = -.270016, saved (0, 2, 0, 3): only the second moves: .6471 - .1·.270016·2·2·.6471.
    b: of (1, -2, 1, 1) the second largest magnitude is 1: all are saved.
    """
    toy = after_a_round()
    close(toy.sent("a"), (0.9072, -0.5904, 0, 0))
    close(toy.sent("b"), (0.702, -0.666, 0, 0))
    close(toy.state.weights[NAME], (0.7533, -0.6471, 0, 0))
    close(toy.model, (0.567461, -0.418738, 0, 0))
    close(toy.received("a", 2), (0.567461, -0.418738, 0, 0))
    close(toy.states["a"].model[NAME], (0.9072**2, -(0.5904**2), 0, 0))
    metrics = toy.round(2, a=[((1, 2, -1, 3), 0)], b=[((1, -2, 1, 1), 0)])
    close(toy.sent("a"), (0.7533, -0.577209, 0, 0))
    close(toy.sent("b"), (0.541632, -0.283446, 0, 0))
    close(toy.state.weights[NAME], (0.594549, -0.356887, 0, 0))
    assert metrics == {"density": 0.5, "lowest-density": 0.5}


def test_a_layer_that_is_pruned_away_shows():
    """Two weights of four are kept: those of the second layer alone."""
    layout = tuple(Parameter(name, (1, 2), Role.WEIGHT) for name in ("a", "b"))
    weights = {"a": np.full((1, 2), 0.1, np.float32), "b": np.ones((1, 2), np.float32)}
    setup = replace(Linear("sparsyfed", FIRST, CLIENTS, **KEYS).setup, layout=layout, weights=weights)
    server = SparsyFedServer(setup)
    payload = Payload(
        {name: SparseTensor((1, 2), np.arange(n), np.ones(n, np.float32)) for name, n in (("a", 0), ("b", 2))}
    )
    _, metrics = server.aggregate(server.init(), Sent([Upload(CLIENTS[0], payload)]), Plan(1))
    assert metrics == {"density": 0.5, "lowest-density": 0.0}


def test_with_all_inputs_the_first_moves_too():
    toy = after_a_round(**{"sparsyfed.prune-inputs": False})
    close(toy.state.weights[NAME], (0.7533, -0.6471, 0, 0))  # in round 1 no weight is 0, and no input is pruned
    toy.round(2, a=[((1, 2, -1, 3), 0)])
    close(toy.sent("a")[0], 0.7533 + 0.1 * 0.270016 * 2 * 0.7533)


def test_the_largest_changes_are_added_to_all_weights():
    """a's changes are (.0072, .0096, -.004, .0048), and b's (-.198, -.066, -.055, -.022): the first two of each."""
    toy = after_a_round(**{"sparsyfed.largest": "change"})
    close(toy.sent("a"), (0.0072, 0.0096, 0, 0))
    close(toy.sent("b"), (-0.198, -0.066, 0, 0))
    close(toy.state.weights[NAME], (0.9 + (0.0072 - 3 * 0.198) / 4, -0.6 + (0.0096 - 3 * 0.066) / 4, 0.5, 0.2))
    close(toy.states["b"].model[NAME], (0.702**2, -(0.666**2), 0.25, 0.04))


@pytest.mark.parametrize(
    ("alpha", "expected"), [(1.0, (1, 1, 1)), (1.25, (0, 1.25, 1.25 * 0.5**0.25)), (2.0, (0, 2, 1))]
)
def test_what_is_zero_learns_only_without_a_power(alpha, expected):
    weight = torch.tensor([0.0, -1.0, 0.5], requires_grad=True)
    v = powered(weight, alpha)
    v.sum().backward()
    close(v.detach(), (0, -1, 0.5**alpha))
    close(weight.grad, expected)


def test_a_convolution_keeps_its_first_threshold_and_a_linear_layer_does_not():
    """Weights (2, 0): half of the inputs. Of (1, 3) that is 3, from which on 2 is too small for the convolution."""
    for layer, shape, expected in (
        (nn.Linear(2, 1, bias=False), (1, 2), (0, 2)),
        (nn.Conv1d(1, 1, 2, bias=False), (1, 1, 2), (0, 0)),
    ):
        layer.weight.data = torch.tensor([2.0, 0.0]).reshape(layer.weight.shape)
        with pruned_inputs(layer):
            x = torch.tensor([1.0, 3.0]).reshape(shape).requires_grad_()
            output = layer(x)
            assert output.item() == 2
            output.sum().backward()
            close(layer.weight.grad, (0, 3))
            close(x.grad, (2, 0))  # of the inputs it is whole
            layer.weight.grad = None
            layer(torch.tensor([1.0, 2.0]).reshape(shape)).sum().backward()
            close(layer.weight.grad, expected)
            layer.weight.grad = None
        layer(torch.tensor([1.0, 2.0]).reshape(shape)).sum().backward()
        close(layer.weight.grad, (1, 2))


def test_dense_and_without_a_power_it_is_fedavg():
    assert_same_model(run("sparsyfed", **{"sparsyfed.alpha": 1.0, "sparsyfed.keep": 1.0}), run("fedavg"))


def test_with_a_power_the_support_only_shrinks_and_without_it_grows_back():
    supports = {}
    for alpha in (1.0, 2.0):
        toy = Linear(
            "sparsyfed", np.linspace(-1, 1, 12), CLIENTS, **KEYS | {"sparsyfed.alpha": alpha, "sparsyfed.keep": 0.25}
        )
        for round in range(1, 8):
            rng = np.random.default_rng(round)
            toy.round(round, a=[(rng.normal(size=12), 1)], b=[(rng.normal(size=12), -1)])
            supports.setdefault(alpha, []).append(toy.state.weights[NAME].reshape(-1) != 0)
    grown = {alpha: sum(int((b & ~a).sum()) for a, b in pairwise(s)) for alpha, s in supports.items()}
    assert grown[2.0] == 0 < grown[1.0]


def test_the_ledger_has_the_bytes_of_the_formula():
    """Up 4·k beside what is dense, down 4 for each entry of the union; and at most a bit for each weight."""
    case = Case("sparsyfed", {"method": "sparsyfed", "sparsyfed.keep": 0.1})
    layout, run = case.assembly().setup.layout, case.finished()
    weights = sum(p.size for p in layout if p.role is Role.WEIGHT)
    others, header = sum(p.size for p in layout) - weights, 32 * len(layout)
    density = {line["round"] + 1: line["method"]["density"] for line in run.lines.lines if "density" in line["method"]}
    for entry in run.trained:
        if entry.round == 1 and entry.direction == "down":
            assert entry.payload == 0
            continue
        kept = count(0.1, weights) if entry.direction == "up" else round(density[entry.round] * weights)
        least = 4 * (kept + others)
        assert least + kept / 8 < entry.payload <= least + weights / 8 + header
