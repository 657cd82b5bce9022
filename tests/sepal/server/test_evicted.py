"""A server algorithm is told which clients were evicted, once, at the end of the round."""

from __future__ import annotations

from sepal.protocol.types import Plan
from sepal.server.run_state import RoundRecord, RoundStart, RunState, advance
from tests.strategies.baselines import Sent


class Plain:
    def aggregate(self, state, uploads, plan):
        return [*state, f"round {plan.round}"], {}


class Forgets(Plain):
    def evicted(self, state, names):
        return [*state, *names]


def after(algorithm, state, evicted, closing=False):
    start = RoundStart(algorithm, state, Plan(state.round + 1), closing)
    record = RoundRecord(state.round + 1, (), (), {}, {}, (), False, {}, evicted=evicted)
    return advance(start, record, Sent())[0]


def test_evicted_clients_are_named_after_the_aggregation_and_once():
    state = RunState("run", 2, [], evicted=("old",))
    state = after(Forgets(), state, ("b", "a", "old"))
    assert state.server == ["round 3", "a", "b"]
    assert after(Forgets(), state, ("a", "b", "old")).server == ["round 3", "a", "b", "round 4"]
    assert after(Forgets(), state, ("a", "b", "c", "old"), closing=True).server == ["round 3", "a", "b", "c"]


def test_an_algorithm_without_the_method_is_not_asked():
    assert after(Plain(), RunState("run", 0, []), ("a",)).server == ["round 1"]
