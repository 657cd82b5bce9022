"""The whole methods of docs/adding-a-method.md as they stand there: they pass the checks, and do what the page says."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal import method, user_modules
from sepal.cli.main import app
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, capabilities, dense
from sepal.storage.serialize import digest
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import ValueCoding

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
PIECES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
(CODE,) = (piece for piece in PIECES if "class NeighboursServer" in piece)
(PROXIMAL,) = (piece for piece in PIECES if "class ProximalClient" in piece)
(MEDIAN,) = (piece for piece in PIECES if "class MedianBodyServer" in piece)
LAYOUT = (Parameter("w", (2,), Role.WEIGHT),)


@pytest.fixture
def module(tmp_path, monkeypatch):
    file = tmp_path / "neighbours.py"
    file.write_text(CODE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "neighbours", raising=False)
    user_modules.enable(tmp_path)
    spec = importlib.util.spec_from_file_location("neighbours_of_the_page", file)
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copied)
    spec.loader.exec_module(copied)
    return copied


@pytest.fixture
def proximal(tmp_path, monkeypatch):
    (tmp_path / "proximal.py").write_text(PROXIMAL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "proximal", raising=False)
    monkeypatch.setattr(registry, "_loaded", {})
    user_modules.enable(tmp_path)
    yield "proximal:Proximal"
    sys.modules.pop("proximal", None)


@pytest.fixture
def medianbody(tmp_path, monkeypatch):
    (tmp_path / "medianbody.py").write_text(MEDIAN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "medianbody", raising=False)
    monkeypatch.setattr(registry, "_loaded", {})
    user_modules.enable(tmp_path)
    yield user_modules.load("method", "medianbody:MedianBody", ConfigError)
    sys.modules.pop("medianbody", None)


@pytest.mark.parametrize(
    "statement",
    re.findall(r"^from sepal\S* import (?:\([^)]*\)|.*)", "\n".join(PIECES), re.M),
    ids=lambda text: text[:60],
)
def test_every_import_of_the_page_is_there(statement):
    exec(statement, {})


def test_what_authors_import_in_one_line_is_there_and_typed():
    typed = re.findall(r"^    from (\S+) import (\w+) as \2$", Path(method.__file__).read_text(encoding="utf-8"), re.M)
    assert typed == [(module, name) for module, names in method._MODULES.items() for name in names]
    for module, name in typed:
        assert getattr(method, name) is getattr(importlib.import_module(module), name)


def test_the_copied_fedprox_passes_the_checks(proximal):
    result = CliRunner().invoke(app, ["check-method", proximal])
    assert result.exit_code == 0, result.stdout


def test_the_median_of_the_body_passes_the_checks(medianbody):
    result = CliRunner().invoke(app, ["check-method", "medianbody:MedianBody"])
    assert result.exit_code == 0, result.stdout


def test_the_median_is_weighted_and_a_round_without_uploads_leaves_the_state(medianbody):
    """By hand: of the values 1, 2 and 9 with weights 1, 1 and 5, half of the weight, 3.5, lies up to 9; else at 2."""
    setup = assemble({"dataset": "digits", "clients": 2}, medianbody).setup
    server = medianbody.make_server(setup)
    state = server.init()
    assert {name.partition(".")[0] for name in state.weights} == {"conv1", "conv2", "fc1"}, "the last layer stays"
    assert server.aggregate(state, [], Plan(1)) == (state, {})

    def median(*examples):
        sent = []
        for number, (value, count) in enumerate(zip((1, 9, 2), examples, strict=True)):
            model = {part.name: np.full(part.shape, value, np.float32) for part in server.shared()}
            tensors = dense(model, server.shared(), ValueCoding.FP32)
            sent.append(SimpleNamespace(client=ClientInfo(str(number), count), payload=Payload(tensors)))
        after, _ = server.aggregate(state, sent, Plan(1))
        return {float(entry) for array in after.weights.values() for entry in array.flat}

    assert median(1, 5, 1) == {9.0}
    assert median(1, 1, 1) == {2.0}


@pytest.mark.parametrize(
    "keys", [{"compress.name": "stc"}, {"compress.name": "topk"}, {"robust-mean": "median"}, {"privacy.clip": 0.5}]
)
def test_the_copied_fedprox_takes_what_fedavg_takes_and_trains_as_fedprox(proximal, keys):
    flat = {"dataset": "digits", "clients": 2, "rounds": 2, "lr": 0.05, "partition.subsample": 80, **keys}
    copied, original = (
        digest(run_in_process(assemble({**flat, "method": method, f"{name}.mu": 0.3}), workers=1).progress.server)
        for name, method in (("proximal", proximal), ("fedprox", "fedprox"))
    )
    assert copied == original


def test_the_page_says_what_a_subclass_may_override():
    (table,) = re.findall(r"^## What a method can do\n.*?^(\| attribute.*?)^\n", PAGE, re.M | re.S)
    for capability in (capabilities.PRIVATE, capabilities.BATCHED):
        (row,) = (line for line in table.splitlines() if line.startswith(f"| `{capability.attribute}`"))
        first = set() if capability is capabilities.PRIVATE else capabilities.PRIVATE.free
        assert set(re.findall(r"`(\w+)`", row.split("|")[4])) | first == capability.free


def test_it_passes_the_checks(module):
    result = CliRunner().invoke(app, ["check-method", "neighbours:Neighbours"])
    assert result.exit_code == 0, result.stdout
    assert "`sepal check-method neighbours:Neighbours`" in PAGE


def uploads(**models):
    def of(name, values):
        tensors = dense({"w": np.array(values, np.float32)}, LAYOUT, ValueCoding.FP32)
        return SimpleNamespace(client=ClientInfo(name, 10), payload=Payload(tensors))

    return [of(name, values) for name, values in models.items()]


def test_each_client_gets_its_own_mixture_until_its_next_upload(module):
    """By hand, with sharpness 1: a and b are 2 apart, so d² is 0 and 4, its mean 2, and counts are 1 and e^-2."""
    config = SimpleNamespace(values="fp32", robust_mean="none")
    setup = SimpleNamespace(config=config, layout=LAYOUT, weights={"w": np.zeros(2, np.float32)}, hyper=module.Hyper())
    server, plan = module.NeighboursServer(setup), Plan(2)
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
