"""An app in the shape of Flower's PyTorch quickstart, with methods of Sepal, in Flower's simulation and deployment."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sepal.engines.flower.engine import Flower

pytestmark = [pytest.mark.e2e, pytest.mark.simulation, pytest.mark.timeout(1200)]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
METHODS = {  # where it is, and rounds in which it learns
    "FedPSE": ("sepal.strategies.fedpse", 3),
    "FedPer": ("sepal.strategies.baselines.fedper", 3),
    "DmPfl": ("sepal.strategies.dmpfl", 10),
}


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    with Flower(environment={"SEPAL_HOME": str(tmp_path_factory.mktemp("home"))}) as flower:
        flower.start_simulation()
        yield flower


def app_with(method, directory, **changes):
    """Return a copy of the app with another method, and with other changes in its files."""
    copy = shutil.copytree(QUICKSTART, directory / "app")
    for file in copy.glob("quickstart/*.py"):
        text = file.read_text().replace(
            "sepal.strategies.fedpse import FedPSE", f"{METHODS[method][0]} import {method}"
        )
        text = text.replace("FedPSE", method)
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)
    return copy


def run(flower, app, **keys):
    return flower.run_app(app, keys, "num-supernodes=4 client-resources-num-cpus=1", timeout=300)


# All methods run so in one process in tests/contract/test_plain_flower.py.
@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[pytest.mark.long] * (method != "FedPSE")) for method in METHODS]
)
def test_the_quickstart_runs_with_two_lines_changed(method, flower, tmp_path):
    rounds = METHODS[method][1]
    ended = run(flower, app_with(method, tmp_path), **{"num-server-rounds": rounds})
    log_text = "\n".join(ended.log)
    numbers = [str(number + 1) for number in range(rounds)]
    assert ended.status == "finished:completed", log_text
    assert re.findall(r"round (\d+)/\d+: received", log_text) == numbers, log_text
    accuracies = re.findall(r"accuracy after round (\d+): (\d\.\d+)", log_text)
    assert [number for number, _ in accuracies] == numbers, log_text
    assert float(accuracies[-1][1]) > 0.6, log_text
    assert "run config: num-server-rounds, fraction-evaluate, learning-rate: your own keys" in log_text


def test_the_cause_of_a_clients_error_reaches_the_log_in_full(flower, tmp_path):
    app = app_with("FedPSE", tmp_path, **{"    prototypes =": '    {}["the ward"]\n    prototypes ='})
    ended = run(flower, app)
    log_text = "\n".join(ended.log)
    assert ended.status == "finished:failed"
    assert "KeyError: 'the ward'" in log_text
    assert "in load_data" in log_text
