"""A paused server and a clock that jumps end no run. Flower's heartbeats are short here (tests/shims/clock)."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.e2e.machines import Machines

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

PAUSE = 25.0  # seconds; without a heartbeat for 20, Flower ends a run


@pytest.fixture
def machines(tmp_path):
    machines = Machines(tmp_path, {"dataset": "digits", "rounds": 6, "evaluate-every": 0})
    clock = {"SEPAL_TEST_CLOCK": str(tmp_path / "clock")}
    machines.start("serve", "clock", **clock)
    for name in ("join0", "join1"):
        machines.start(name, "clock", SEPAL_TEST_CLOCK=str(tmp_path / "right"))
    machines.await_rounds(1)
    yield machines
    machines.stop_all()


def test_a_server_that_was_paused_goes_on(machines):
    machines.signal("serve", signal.SIGSTOP)
    time.sleep(PAUSE)
    machines.signal("serve", signal.SIGCONT)
    machines.check_finished()


@pytest.mark.parametrize(("seconds", "words"), [(3600, "behind"), (-3600, "ahead of")], ids=["ahead", "back"])
def test_a_server_whose_clock_jumps_loses_nobody_and_goes_on_once_it_is_set_right(machines, seconds, words):
    """Flower signs the time of each call, also without certificates: while the clocks differ, all are refused."""
    clock = machines.directory / "clock"
    clock.write_text(str(seconds))
    for name in ("join0", "join1"):
        machines.await_line(name, "sepal: this machine's clock is 3")
        (line,) = {line for line in machines.log(name).splitlines() if "this machine's clock is" in line}
        assert re.search(
            rf"clock is 3(600|599)\.\d s {words} the server's; it may be .*: set it; waiting for it$", line
        )
    clock.write_text("0")
    machines.check_finished()
