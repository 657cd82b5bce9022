"""FIARSE: two rounds by hand, who holds what, the cases in which it is FedAvg, and bytes by its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.layout import Role
from sepal.masks.selection import count
from sepal.method import ClientInfo
from sepal.strategies.baselines.fiarse import thresholded
from sepal.study.method_checks.cases import Case
from tests.strategies.baselines import assert_same_model, run
from tests.strategies.linear import NAME, Linear, close

FIRST = (0.8, -0.3, 0.1, -0.5)
SIZES = (ClientInfo("a", 1, 0.5), ClientInfo("b", 3, 1.0))
A = [((1, 1, 1, 1), 0), ((1, 0, 0, 1), 1)]
B = [((0, 1, 1, 1), 1), ((1, 1, 0, 0), 0)]


def test_a_round_of_two_sizes_by_hand():
    """a, half: holds .8 and -.5, θ = .5. y = .3, e = .3; the factor is 1 + 2·.5·.8/1.3² = 1.473373 at .8, 1.5 at θ:
    (.8 - .1·.3·1.473373, -.5 - .1·.3·1.5) = (.755799, -.545). Then y = .210799, e = -.789201, factors 1.479254 and
    1.499073: (.872542, -.426693), and the second is below θ: it is off, and sent.
    b, all: θ = .1. y = -.7, e = -1.7; factors 1.375, 1.5, 1.277778 of the last three: (.8, -.06625, .355, -.282778);
    the second is below θ, so y = .8 in the next step and only the first moves: .8 - .1·.8·1.197531 = .704198.
    Mean over holders: ((.872542 + .704198)/2, -.06625, .355, (-.426693 - .282778)/2).
    """
    toy = Linear("fiarse", FIRST, SIZES)
    toy.round(1, a=A, b=B)
    close(toy.sent("a"), (0.872542, 0, 0, -0.426693))
    close(toy.states["a"].model[NAME], (0.872542, 0, 0, 0))
    close(toy.sent("b"), (0.704198, -0.06625, 0.355, -0.282778))
    close(toy.states["b"].model[NAME], (0.704198, 0, 0.355, -0.282778))
    close(toy.model, (0.788370, -0.06625, 0.355, -0.354735))
    assert toy.clients["a"].trainer.reports == {"still-on": 0.5}
    # in round 2 the half are entries 0 and 2, by the size that they have now
    close(toy.received("a", 2), (0.788370, 0, 0.355, 0))
    assert toy.clients["a"].thresholds({NAME: toy.received("a", 2)}, {NAME: toy.received("a", 2) != 0})[NAME] == (
        pytest.approx(0.355)
    )


def test_a_client_that_was_away_gets_todays_largest_and_what_nobody_held_stays():
    toy = Linear("fiarse", FIRST, (ClientInfo("a", 1, 0.5), ClientInfo("b", 1, 0.25)))
    toy.round(1, b=[((1, 1, 1, 1), 0)])  # holds .8 alone: y = .8, factor 1.5 at θ: .8 - .1·.8·1.5
    close(toy.model, (0.68, -0.3, 0.1, -0.5))
    toy.round(2, a=A[:1])  # .68, -.5: y = .18, θ = .5: factor 1 + 2·.5·.68/1.18² = 1.488365
    close(toy.model, (0.68 - 0.1 * 0.18 * 1.488365, -0.3, 0.1, -0.5 - 0.1 * 0.18 * 1.5))
    assert toy.uploads["b"].tensors[NAME].nnz == 1


def test_the_mean_may_count_those_alone_that_moved_an_entry():
    """B's third entry gets no gradient from x = 0 there: with ``changed`` it is A's alone, with holders the mean."""
    one, other = [((1, 1, 0, 1), 1)], [((1, 1, 1, 1), 0)]
    sent, models = [], []
    for mean in ("changed", "holders"):
        toy = Linear("fiarse", FIRST, (ClientInfo("a", 1), ClientInfo("b", 3)), **{"fiarse.mean": mean})
        toy.round(1, a=one, b=other)
        sent.append((toy.sent("a"), toy.sent("b")))
        models.append(toy.model)
    a, b = sent[0]
    assert a[2] == np.float32(0.1) != b[2]
    close(models[1], (a + b) / 2)
    close(models[0], (*((a + b) / 2)[:2], b[2], (a[3] + b[3]) / 2))


def test_weights_of_the_mean_may_be_examples():
    toy = Linear("fiarse", FIRST, SIZES, **{"fiarse.weights": "examples"})
    toy.round(1, a=A, b=B)
    close(toy.model, ((0.872542 + 3 * 0.704198) / 4, -0.06625, 0.355, (-0.426693 - 3 * 0.282778) / 4))


def test_the_factor_is_the_derivative_that_the_paper_puts_in_the_steps_place():
    """At |w| = θ, 2θ, 5θ, 10θ: 1.5, 1.444, 1.278, 1.165; 0 below θ; 1 where θ = 0, also at w = 0."""
    weight = torch.tensor([0.1, -0.2, 0.5, -1.0, 0.09], requires_grad=True)
    held = torch.ones(5, dtype=torch.bool)
    thresholded(weight, held, torch.tensor(0.1)).sum().backward()
    close(weight.grad, (1.5, 1 + 4 / 9, 1 + 10 / 36, 1 + 20 / 121, 0))
    nothing = torch.tensor([0.0, 2.0], requires_grad=True)
    thresholded(nothing, held[:2], torch.tensor(0.0)).sum().backward()
    close(nothing.grad, (1, 1))


def test_without_importance_an_entry_that_is_on_has_its_plain_gradient():
    """a: .8 - .1·.3 and -.5 - .1·.3; then y = .24, e = -.76: .77 + .076 and -.53 + .076, below θ = .5."""
    toy = Linear("fiarse", FIRST, SIZES, **{"fiarse.importance": False})
    toy.round(1, a=A)
    close(toy.sent("a"), (0.846, 0, 0, -0.454))


def test_an_entry_that_is_off_stays_in_spite_of_momentum_and_decay():
    toy = Linear("fiarse", FIRST, SIZES, momentum=0.9, **{"weight-decay": 0.1})
    toy.trained("b", 1, [*B[:1], *B[1:] * 3])
    # Step 1 decays all: -.3·(1 - .01) + .1·1.7·1.375 = -.06325, off from then on; without StayOff it would go on
    close(toy.sent("b")[1], -0.3 * 0.99 + 0.1 * 1.7 * 1.375)


def test_with_all_entries_and_no_threshold_it_is_fedavg_with_equal_weights():
    keys = {"fiarse.whole": "zero", "momentum": 0.9}
    assert_same_model(run("fiarse", **keys), run("fedavg", **{"fedavg.weights": "equal", "momentum": 0.9}))
    with pytest.raises(AssertionError):
        assert_same_model(run("fiarse"), run("fedavg", **{"fedavg.weights": "equal"}))


@pytest.mark.parametrize("keys", [{}, {"fiarse.ranking": "layer", "fiarse.biases": False}])
def test_the_ledger_has_the_bytes_of_the_formula(keys):
    """4·γ·P each way beside what has no mask; down also which: at most a bit for each of P. Nothing in round 1."""
    case = Case("fiarse", {"method": "fiarse", "capacity.profile": "0.0625,0.25,1", "clients-per-round": 0, **keys})
    layout, run = case.assembly().setup.layout, case.finished()
    roles = (Role.WEIGHT, Role.BIAS)[: 1 if keys else 2]
    sizes = [p.size for p in layout if p.role in roles]
    others, header = sum(p.size for p in layout) - sum(sizes), 32 * len(layout)
    capacities = {info.name: info.capacity for info in run.start.roster.values()}
    for entry in run.trained:
        share = capacities[entry.client]
        kept = sum(count(share, size) for size in (_layers(layout, roles) if keys else [sum(sizes)]))
        positions = (sum(sizes) / 8 if share < 1 else 0) * (entry.direction == "down")
        least = 4 * (kept + others)
        if entry.direction == "down" and entry.round == 1:
            assert entry.payload == 0
        else:
            assert least < entry.payload <= least + positions + header
    assert len(set(capacities.values())) > 1


def _layers(layout, roles):
    return [p.size for p in layout if p.role in roles]  # without biases, a layer is its weight
