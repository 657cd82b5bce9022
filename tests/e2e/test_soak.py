"""A year in one deployment, in a few rounds: `make -C tools soak` with fewer rounds and a shorter pause."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.machines import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(2400)]


def test_a_short_soak_ends_and_all_was_as_it_should_be():
    command = [sys.executable, "-m", "tools.soak", "--rounds", "16", "--pause", "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2300)
    assert (done.returncode, "At the end, all was as it should be" in done.stdout) == (0, True), (
        f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
