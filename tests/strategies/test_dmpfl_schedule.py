"""DM-PFL's schedule: the phase of every round, keys out of range, readjustments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal.config import validate
from sepal.errors import ConfigError
from sepal.strategies.dmpfl.contract import PHASES, Hyper, parse_schedule, phases
from tests.strategies.dmpfl import parts


def test_the_paper_s_schedule():
    """T = 300, two iterations of 2 : 1 : 1: phase 1 has 75 rounds, 2a and 2b 37 or 38."""
    order = phases(Hyper(), 300)
    assert (order.count("1"), order.count("2a"), order.count("2b")) == (150, 76, 74)  # 112.5 and 262.5 are rounded up
    assert order[:75] == ["1"] * 75
    assert order[75:113] == ["2a"] * 38
    assert order[113:150] == ["2b"] * 37


shares = st.lists(st.tuples(st.sampled_from(PHASES), st.integers(1, 20)), min_size=1, max_size=5)


@given(shares, st.integers(1, 4), st.integers(1, 400))
def test_every_round_has_a_phase_and_every_share_its_part(entries, iterations, rounds):
    text = ",".join(f"{name}:{share}" for name, share in entries)
    assert parse_schedule(text) == entries
    round_phases = phases(Hyper(schedule=text, iterations=iterations), rounds)
    assert len(round_phases) == rounds
    total = iterations * sum(share for _, share in entries)
    for phase in PHASES:
        expected_rounds = rounds * iterations * sum(share for name, share in entries if name == phase) / total
        assert abs(round_phases.count(phase) - expected_rounds) <= iterations * len(entries)


@pytest.mark.parametrize(
    "text", ["", "1", "1:", "1:0", "1:1001", "3:1", "1:1,", "1:1;2a:1", "2:1", "1:-1", "1:1.5", "1:²"]
)
def test_a_schedule_that_is_not_one_is_refused(text):
    with pytest.raises(ConfigError, match=r"dmpfl\.schedule: expected phases as PHASE:SHARE"):
        validate(Hyper, {"schedule": text}, "dmpfl.")


@pytest.mark.parametrize(
    ("key", "value"),
    [("keep", 0.0), ("keep", 1.1), ("agreement", 1.0), ("alpha", 1.5), ("iterations", 0), ("budget", "erdos")],
)
def test_keys_out_of_range_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"dmpfl\.{key}"):
        validate(Hyper, {key: value}, "dmpfl.")


def test_readjustments_are_annealed_and_counted_in_phase_1():
    """8 rounds are 1 1 2a 2b 1 1 2a 2b; every second round of phase 1: 2 and 6; α = .5·(1 + cos(π·t/8))/2."""
    server, _, _ = parts(**{"dmpfl.alpha": 0.5})
    plans = [server.plan(round) for round in range(1, 10)]
    assert [plan.phase for plan in plans] == ["1", "1", "2a", "2b", "1", "1", "2a", "2b", "2b"]
    expected = {2: 0.25 * (1 + np.cos(np.pi * 2 / 8)), 6: 0.25 * (1 + np.cos(np.pi * 6 / 8))}
    for plan in plans:
        assert plan.scalars["prune"] == pytest.approx(expected.get(plan.round, 0))
    last, _, _ = parts(**{"dmpfl.schedule": "1:1", "dmpfl.readjust-every": 1})
    assert last.plan(8).scalars["prune"] == 0  # α has reached 0
    assert last.plan(9).phase == "1"  # no phase 2 at all: the closing round has none either
