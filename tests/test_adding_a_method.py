"""The whole method of docs/adding-a-method.md as it stands there: it passes the checks, and does what the page says."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal import user_modules
from sepal.cli.main import app
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, dense
from sepal.wire.tensors import ValueCoding

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
(CODE,) = (code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "class NeighboursServer" in code)
LAYOUT = (Parameter("w", (2,), Role.WEIGHT),)


@pytest.fixture
def module(tmp_path, monkeypatch):
    file = tmp_path / "neighbours.py"
    file.write_text(CODE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "neighbours", raising=False)
    user_modules.enable(tmp_path)
    spec = importlib.util.spec_from_file_location("neighbours_of_the_page", file)
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


def test_it_passes_the_checks(module):
    done = CliRunner().invoke(app, ["check-method", "neighbours:Neighbours"])
    assert done.exit_code == 0, done.stdout
    assert "sepal check-method neighbours:Neighbours\n" in PAGE


def uploads(**models):
    def of(name, values):
        tensors = dense({"w": np.array(values, np.float32)}, LAYOUT, ValueCoding.FP32)
        return SimpleNamespace(client=ClientInfo(name, 10), payload=Payload(tensors))

    return [of(name, values) for name, values in models.items()]


def test_each_client_gets_its_own_mixture_until_its_next_upload(module):
    """By hand, with sharpness 1: a and b are 2 apart, so d² is 0 and 4, its mean 2, and counts are 1 and e^-2."""
    config = SimpleNamespace(values="fp32", robust_mean="none")
    task = SimpleNamespace(config=config, layout=LAYOUT, weights={"w": np.zeros(2, np.float32)}, hyper=module.Hyper())
    server, plan = module.NeighboursServer(task), Plan(2)
    state, _ = server.aggregate(server.init(), uploads(a=[1, 0], b=[-1, 0]), Plan(1))

    def sent(state, name):
        return server.download(state, ClientInfo(name, 10), plan).tensors["w"].dense().tolist()

    near = 1 / (1 + np.exp(-2))
    assert sent(state, "a") == pytest.approx([2 * near - 1, 0])
    assert sent(state, "b") == pytest.approx([1 - 2 * near, 0])
    newcomer = server.newcomer(state, ClientInfo("c", 10), plan)
    assert newcomer.tensors["w"].dense().tolist() == [0, 0], "the mean"
    after, _ = server.aggregate(state, uploads(b=[5, 5]), plan)
    assert sent(after, "a") == sent(state, "a"), "a has sent nothing since"
    assert sent(after, "b") != sent(state, "b")
    assert server.evicted(after, ["a"]).models.keys() == {"b"}
    assert server.aggregate(after, [], plan) == (after, {})
