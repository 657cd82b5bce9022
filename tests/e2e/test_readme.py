"""The blocks of README and the tutorial as they stand: ``sepal`` alone, and ``flwr run`` with Flower's simulation.

The three terminals of ``serve`` are in test_serving.py. The ServerApp of flower-app.md is run in Flower's simulation,
as an app of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.engines.flower.processes import MARK, Processes
from tests.test_readme import BLOCKS, ROOT, TUTORIAL, commands, page, photographs

pytestmark = [pytest.mark.e2e, pytest.mark.simulation, pytest.mark.timeout(1200)]
BIN = Path(sys.executable).parent


def shell(block: str, directory: Path, home: Path) -> str:
    """Run a block of README in ``directory`` with this environment's commands; return what it printed."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    environment |= {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with Processes(home) as processes:  # ends the SuperLink that `flwr run` leaves in the background
        environment[MARK] = processes.environment[MARK]
        completed = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert processes.left() == []
    assert completed.returncode == 0, f"{block}\n{completed.stdout[-2000:]}\n{completed.stderr[-2000:]}"
    return completed.stdout


def test_the_commands_work_as_they_stand(tmp_path):
    """Each once: those of the tutorial are mostly README's."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    photographs(tmp_path / "PHOTOS")
    lines = dict.fromkeys([*commands(BLOCKS), *commands(TUTORIAL)])
    assert {line.split()[0] for line in lines} == {"run", "show", "methods", "keys", "compare"}
    for line in lines:
        assert shell(f"sepal {line}\n", tmp_path, tmp_path / "home")
    assert (tmp_path / "runs" / "first" / "summary.json").exists()
    assert (tmp_path / "runs" / "compare" / "report.html").exists()


def test_readmes_simulation_works_as_it_stands(tmp_path):
    """With the block's own keys; only the runs' directory is another one."""
    (block,) = (block for _, block in BLOCKS if "flwr run" in block)
    shell(block.replace("$PWD/runs", str(tmp_path / "runs")), ROOT, tmp_path / "home")
    (summary,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json"))
    assert summary["complete"]
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("fedpse", 5, 10)


@pytest.mark.long
def test_a_serverapp_of_ones_own_runs_in_flowers_simulation(tmp_path):
    """The block of flower-app.md, in an app that has Sepal's keys, with fewer rounds; clients run Sepal's ClientApp.

    In one process it runs in tests/test_readme.py.
    """
    (code,) = (block for language, block in page("flower-app.md") if language == "python" and ".durable(" in block)
    assert code.count("num_rounds=20") == 1
    app_directory = tmp_path / "own"
    app_directory.mkdir()
    begin = "from flwr.serverapp import ServerApp\n\nfrom sepal.strategies.fedpse import FedPSE\n\napp = ServerApp()\n"
    end = "    print('rounds:', sorted(result.evaluate_metrics_clientapp), flush=True)\n"
    (app_directory / "own_server.py").write_text(begin + code.replace("num_rounds=20", "num_rounds=2") + end)
    settings = (ROOT / "pyproject.toml").read_text()
    assert settings.count('"sepal.apps:server_app"') == 1
    (app_directory / "pyproject.toml").write_text(settings.replace('"sepal.apps:server_app"', '"own_server:app"'))
    flwr = (
        "flwr run . --stream --federation-config 'num-supernodes=3 client-resources-num-cpus=1' "
        "--run-config \"method='fedpse' fedpse.keep=0.1 dataset='digits' clients=3 rounds=2\""
    )
    output = shell(f"export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1\n{flwr}\n", app_directory, tmp_path / "home")
    assert "rounds: [3]" in output, "two rounds, and the closing one, which evaluates"
