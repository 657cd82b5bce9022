"""All methods on a simulated accelerator; see tests/simulated_device. No test here says how fast a GPU is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.methods import CASES
from tests.simulated_device import built, compiler
from tests.simulated_device.methods import CHECKS

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the simulated device"),
    pytest.mark.e2e,  # a compiler, and a process for minutes, for which the first test waits
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What a process with the device says of each check and case."""
    built()
    out = tmp_path_factory.mktemp("sim") / "found.json"
    subprocess.run([sys.executable, "-m", "tests.simulated_device.methods", str(out)], check=True)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", CHECKS)
def test_the_simulated_device(outcomes, name):
    assert not outcomes[name]["error"], outcomes[name]["error"]


@pytest.mark.parametrize("name", CASES)
def test_a_method_trains_uploads_resumes_and_is_exported_on_a_device_as_on_the_cpu(outcomes, name):
    """Each step's waits are counted too: values read on the host, copies, results whose shape depends on values."""
    assert not outcomes[name]["error"], outcomes[name]["error"]


def test_most_methods_can_be_exported(outcomes):
    """That the comparison of exports is not of refusals alone."""
    assert {name for name in CASES if not outcomes[name]["exported"]} <= {
        "fedem",
        *(n for n in CASES if "pfedgate" in n),
    }
