"""SCAFFOLD: rounds by hand, what c is after each round, the cases in which it is FedAvg, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.layout import trained
from sepal.method import ClientInfo, Plan
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.scaffold import VARIATE
from tests.strategies.baselines import BASE, assert_same_model, model, run
from tests.strategies.quadratics import EXAMPLES, Line, Quadratics

EQUAL = {"scaffold.weights": "equal"}


class Pairs(Line):
    least_batch = 2


def control(rounds):
    return float(rounds.state.control["w"][0])


def variates(rounds):
    return [float(rounds.state.variates[name]["w"][0]) for name in ("c1", "c2")]


def test_three_rounds_of_option_two_by_hand():
    """Equal weights. Round 1 is FedAvg: y = .76 and -.36, x = .2; c_i = (0 - y)/(2·.1) = (-3.8, 1.8), c = -1.

    Round 2 from x = .2: client 1 steps by g - c_1 + c = g + 2.8. g = .2 - 4 = -3.8: y = .3; g = -3.7: y = .39, so
    Δy = .19. Client 2 steps by g - 1.8 - 1 = g - 2.8: g = 2.4: y = .24; g = 2.48: y = .272: Δy = .072. x = .331.
    c_1 = -3.8 + 1 - .19/.2 = -3.75, c_2 = 1.8 + 1 - .072/.2 = 2.44, the mean of the gradients along the paths;
    c = -.655. In the same way x = .4245 after round 3.
    """
    rounds = Quadratics("scaffold", **EQUAL)
    rounds.round(1)
    assert rounds.sent() == pytest.approx([0.76, -0.36], abs=1e-6)
    assert rounds.model() == pytest.approx(0.2, abs=1e-6)
    assert (variates(rounds), control(rounds)) == (pytest.approx([-3.8, 1.8], abs=1e-5), pytest.approx(-1, abs=1e-5))
    rounds.round(2)
    assert [sent - 0.2 for sent in rounds.sent()] == pytest.approx([0.19, 0.072], abs=1e-6)
    assert rounds.model() == pytest.approx(0.331, abs=1e-6)
    assert variates(rounds) == pytest.approx([-3.75, 2.44], abs=1e-5)
    assert control(rounds) == pytest.approx(-0.655, abs=1e-5)
    rounds.round(3)
    assert rounds.model() == pytest.approx(0.4245, abs=1e-5)


def test_three_rounds_of_option_one_by_hand():
    """c_i is the gradient at x: (-4, 2) at 0, c = -1. Round 2: client 1 steps by g + 3: -.8, y = .28; -.72: Δy = .152.

    Client 2 steps by g - 3: -.6, y = .26; -.48: Δy = .108. x = .33; c_i = (-3.8, 2.4), the gradients at .2; c = -.7.
    """
    rounds = Quadratics("scaffold", **EQUAL, **{"scaffold.variate": "gradient"})
    rounds.round(1)
    assert (variates(rounds), control(rounds)) == (pytest.approx([-4, 2], abs=1e-5), pytest.approx(-1, abs=1e-5))
    assert rounds.model() == pytest.approx(0.2, abs=1e-6)
    rounds.round(2)
    assert [sent - 0.2 for sent in rounds.sent()] == pytest.approx([0.152, 0.108], abs=1e-6)
    assert rounds.model() == pytest.approx(0.33, abs=1e-6)
    assert (variates(rounds), control(rounds)) == (pytest.approx([-3.8, 2.4], abs=1e-5), pytest.approx(-0.7, abs=1e-5))
    rounds.round(3)
    assert rounds.model() == pytest.approx(0.42375, abs=1e-5)


def test_half_a_step_of_the_server():
    rounds = Quadratics("scaffold", **EQUAL, **{"scaffold.rate": 0.5})
    rounds.round(1)
    assert rounds.model() == pytest.approx(0.1, abs=1e-6)


def test_one_client_a_round_by_hand():
    """c is a mean over all clients, sampled or not: -3.8/2 = -1.9, x = .76.

    Then client 2 alone: it steps by g - 0 - 1.9. g = 2·1.76 = 3.52: y = .598; g = 3.196: y = .4684, Δy = -.2916;
    c_2 = 0 + 1.9 + .2916/.2 = 3.358; c = (-3.8 + 3.358)/2 = -.221.
    """
    rounds = Quadratics("scaffold", **EQUAL)
    rounds.round(1, who=(0,))
    assert (rounds.model(), control(rounds)) == (pytest.approx(0.76, abs=1e-6), pytest.approx(-1.9, abs=1e-5))
    rounds.round(2, who=(1,))
    assert rounds.model() == pytest.approx(0.4684, abs=1e-5)
    assert variates(rounds) == pytest.approx([-3.8, 3.358], abs=1e-5)
    assert control(rounds) == pytest.approx(-0.221, abs=1e-5)


@pytest.mark.parametrize(("weights", "minimum"), [("equal", 2 / 3), ("examples", -2 / 7)])
def test_it_converges_to_the_minimum_of_the_weighted_mean(weights, minimum):
    """f_1 + f_2 is least at 3w = 2, f_1 + 3·f_2 at 7w = -2; FedAvg with K = 2 ends at .727 and -.252."""
    ends = {}
    for method in ("scaffold", "fedavg"):
        rounds = Quadratics(method, **{f"{method}.weights": weights})
        for number in range(1, 81):
            rounds.round(number)
        ends[method] = rounds.model()
    assert ends["scaffold"] == pytest.approx(minimum, abs=1e-4)
    assert ends["fedavg"] == pytest.approx(0.727273 if weights == "equal" else -0.251969, abs=1e-4)


class Clients:
    """Checks after each round that c is the mean of the roster's c_i; keeps the server's states."""

    def __init__(self, clients):
        self.clients, self.states = clients, []

    def opened(self, progress, total):
        assert set(progress.server.examples) == self.clients

    def round(self, progress, record, line):
        state = progress.server
        self.states.append(state)
        total = sum(state.examples.values())
        for name, array in state.control.items():
            expected = sum(
                state.examples[client] * variate[name].astype(np.float64) for client, variate in state.variates.items()
            )
            np.testing.assert_allclose(array, expected / total, rtol=0, atol=1e-12)

    def closed(self, progress, report):
        assert set(progress.server.examples) == self.clients


def test_c_is_the_mean_over_the_roster_after_every_round_and_novel_clients_have_no_part():
    keys = {
        **BASE,
        "method": "scaffold",
        "rounds": 4,
        "clients-per-round": 2,
        "novel-clients": 0.25,
        "evaluate-every": 0,
    }
    probe = run_in_process(assemble({**keys, "rounds": 1}))
    names = set(probe.progress.roster) - set(probe.progress.novel)
    observer = Clients(names)
    run_in_process(assemble(keys), observers=[observer])
    assert len(observer.states) == 5  # with the closing round
    assert np.abs(observer.states[-1].control["fc2.weight"]).max() > 0


def test_a_change_is_measured_from_x_alone():
    """Else the first variate of a newcomer would be a far larger change than those of the others."""
    rounds = Quadratics("scaffold")
    rounds.round(1)
    reference = rounds.server.reference(rounds.state, rounds.infos[0], Plan(2), rounds.download(0, Plan(2)))
    assert set(reference) == {"w"}


def test_what_the_server_keeps_of_a_client_is_what_the_client_keeps():
    """Also with values of 16 bits: both sides have the rounded c_i."""
    rounds = Quadratics("scaffold", values="bf16")
    for number in (1, 2, 3):
        rounds.round(number)
    for state, name in zip(rounds.states, ("c1", "c2"), strict=True):
        np.testing.assert_array_equal(state.variate["w"], rounds.state.variates[name]["w"])


def test_an_evicted_client_leaves_c():
    """c = (1·-3.8 + 3·1.8)/4 = .4; without client 2 it is c_1. A client that never trained counts with 0."""
    rounds = Quadratics("scaffold")
    rounds.round(1)
    assert control(rounds) == pytest.approx(0.4, abs=1e-5)
    alone = rounds.server.evicted(rounds.state, ["c2", "nobody"])
    assert float(alone.control["w"][0]) == pytest.approx(-3.8, abs=1e-5)
    assert set(alone.variates) == set(alone.examples) == {"c1"}
    grown = rounds.server.joined(rounds.state, [ClientInfo("c3", 4)])
    assert float(grown.control["w"][0]) == pytest.approx(0.2, abs=1e-5)


def test_adapt_leaves_the_variate_as_it_is():
    rounds = Quadratics("scaffold")
    rounds.round(1)
    after = rounds.clients[0].adapt(rounds.states[0], rounds.download(0, Plan(2)), Plan(2))
    assert after.variate is rounds.states[0].variate
    assert after.model["w"] != rounds.states[0].model["w"]


def test_a_client_without_a_step_keeps_its_variate():
    """As with one example and batch normalisation, for which no batch is large enough: (x - y)/(K·η) is 0/0."""
    rounds = Quadratics("scaffold", Pairs)
    rounds.round(1)
    assert rounds.clients[0].trainer.steps == 0
    assert (variates(rounds), rounds.sent()) == ([0, 0], [0, 0])


def test_the_rounds_own_rate_and_the_steps_taken_count():
    """lr-decay .5: in round 2 the step is .05; the division is by K·.05, so c_i stays the mean of the gradients."""
    rounds = Quadratics("scaffold", **EQUAL, **{"lr-decay": 0.5})
    rounds.round(1)
    rounds.round(2)
    # from .2 with g - c_1 + c = g + 2.8: -1, y = .25; -.95, y = .2975; gradients -3.8 and -3.75
    assert rounds.sent()[0] == pytest.approx(0.2975, abs=1e-6)
    assert variates(rounds)[0] == pytest.approx(-3.775, abs=1e-5)


def test_the_first_round_is_fedavgs_bit_for_bit():
    assert_same_model(run("scaffold", 1), run("fedavg", 1, **{"clip-gradient": 0.0}))


def test_one_step_of_all_clients_with_equal_weights_is_fedavg():
    """The corrections c - c_i sum to 0, so they leave the mean of one step from the same x."""
    keys = {"clients-per-round": 0, "batch-size": 1000, "local-epochs": 1, "clip-gradient": 0.0, "lr": 0.2}
    scaffold = run("scaffold", 4, **keys, **EQUAL)
    assert_same_model(scaffold, run("fedavg", 4, **keys, **{"fedavg.weights": "equal"}), atol=1e-5)


def test_two_models_of_bytes_travel_each_way():
    strategy, fedavg = run("scaffold", 3), run("fedavg", 3)
    entries = sum(p.size for p in trained(strategy.setup.layout))
    for direction in ("up", "down"):
        both, one = (getattr(s.report.totals.training, direction) for s in (strategy, fedavg))
        rounds = 3 if direction == "up" else 2  # nothing goes down in round 1
        assert one + rounds * 2 * 4 * entries <= both < 2 * one + rounds * 2 * 100
    assert not any(name.startswith(VARIATE) for name in model(strategy))


def test_statistics_have_no_variate():
    strategy = run("scaffold", 2, model="digits-cnn-bn")
    names = {name for variate in strategy.progress.server.variates.values() for name in variate}
    assert names == {p.name for p in trained(strategy.setup.layout)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"clip-gradient": 1.0}, "clip-gradient: expected 0.0 with scaffold, whose .*, got 1.0"),
        ({"momentum": 0.9}, "momentum: expected 0.0 with scaffold, .*, got 0.9"),
        ({"optimizer": "adam"}, "optimizer: expected sgd with scaffold, .*, got adam"),
        ({"compress.name": "stc"}, "compress.name: expected none"),
        ({"privacy.clip": 1.0}, "privacy.clip: expected 0"),
        ({"robust-mean": "median"}, "robust-mean: expected none"),
    ],
)
def test_what_breaks_it_is_refused_in_one_line(keys, words):
    with pytest.raises(ConfigError, match=words) as error:
        assemble({"dataset": "digits", "method": "scaffold", **keys})
    assert "\n" not in str(error.value)


def test_its_own_defaults_may_be_set():
    config = assemble({"dataset": "digits", "method": "scaffold"}).setup.config
    assert (config.optimizer, config.clip_gradient, config.momentum) == ("sgd", 0.0, 0.0)
    keys = {"optimizer": "sgd", "clip-gradient": 0.0, "momentum": 0.0}
    assert assemble({"dataset": "digits", "method": "scaffold", **keys}).setup.config.clip_gradient == 0.0


def test_the_examples_are_those_of_the_roster():
    rounds = Quadratics("scaffold")
    assert tuple(rounds.state.examples.values()) == EXAMPLES
