"""What a deployed node tells the server, and what it takes from the run config: the ClientApp as Flower calls it."""

from __future__ import annotations

import os
import re
import resource
import sys
import tracemalloc
from types import SimpleNamespace

import pytest
from flwr.app import Context, Message, RecordDict

from sepal.client_app import guard
from sepal.client_app.app import handle
from sepal.errors import ProtocolError, SepalError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan

SECRET = "row 17: patient 'Jane Roe'"
OWN = {"dataset": "own", "own.shape": "1x8x8", "own.classes": 2, "model": "digits-cnn", "clients": 1}

DATA = """
import numpy as np
def data():
    return np.ones((4, 1, 8, 8)), np.ones(4, int), np.ones((4, 1, 8, 8)), np.ones(4, int)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module on the node's path, from its source."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))

    def write(source, name="clinic_for_tests"):
        (tmp_path / f"{name}.py").write_text(source)
        sys.modules.pop(name, None)
        return name

    return write


def query(run_config, node_config, kind=Kind.QUERY):
    enter_run()
    order = Order("0" * 32, kind, Plan(0 if kind is Kind.QUERY else 1))
    message = Message(write_order(order, Content()), dst_node_id=1, message_type="query")
    context = Context(1, 1, node_config, RecordDict(), run_config)
    return handle(message, context).content


@pytest.mark.parametrize(
    "raised",
    ["ValueError", "sepal.errors.DataError", "sepal.errors.ProtocolError", "KeyError", "OSError", "SystemExit"],
)
def test_private_data_in_an_error_stays_on_the_node(raised, module, caplog):
    arguments = f'"{SECRET}", "x", "{SECRET}"' if "sepal" in raised else f'"{SECRET}"'
    name = module(f"import sepal.errors\ndef data():\n    raise {raised}({arguments})\n")
    records = query(OWN, {"data": f"{name}:data"})
    assert "Jane" not in str(records)
    assert name not in str(records), "nor what the node's files are called"
    with pytest.raises(SepalError) as refused:
        read_reply(records)
    assert "DataError, code " in str(refused.value)
    code = str(refused.value).split("code ")[1][:8]
    assert code in caplog.text
    assert SECRET in caplog.text, "the operator of the node finds it under the code"


def test_an_exception_in_the_training_of_a_node_stays_on_the_node(module, monkeypatch):
    """Flower sends str(exception) to the server; so no exception may leave the app."""
    name = module(DATA)

    def fit(*arguments, **keys):
        raise RuntimeError(SECRET)

    monkeypatch.setattr("sepal.training.trainer.Trainer.fit", fit)
    records = query({**OWN, "method": "local"}, {"data": f"{name}:data"}, Kind.TRAIN)
    assert "Jane" not in str(records)
    with pytest.raises(SepalError, match=r"RuntimeError, code [0-9a-f]{8}"):
        read_reply(records)


def refusal(run_config, node_config):
    with pytest.raises(SepalError) as error:
        read_reply(query(run_config, node_config))
    return re.sub("code [0-9a-f]{8}", "", str(error.value))


@pytest.mark.parametrize("key", ["initial-weights", "data-dir", "state-dir"])
def test_the_server_does_not_learn_which_files_a_node_has_nor_reads_or_writes_them(key, module, tmp_path):
    """The same answer whether the path exists or not, and no file is read or written."""
    path, data = tmp_path / "secrets", {"data": f"{module(DATA)}:data"}
    before = refusal({**OWN, key: str(path)}, data)
    assert not path.exists()
    path.write_text("label\n" + SECRET)
    assert refusal({**OWN, key: str(path)}, data) == before
    assert key in before
    assert "allow" in before
    assert path.read_text() == "label\n" + SECRET


def test_a_profile_of_devices_that_the_server_names_is_not_opened(module, tmp_path):
    """It is the server's, in a simulation: a pipe would hold the node for ever, and an error tell what is there."""
    os.mkfifo(tmp_path / "pipe")
    data = {"data": f"{module(DATA)}:data"}
    for path in (tmp_path / "pipe", tmp_path / "nothing", "/dev/zero", "~nobody-here/x"):
        for keys in ({}, {"deadline": 1.0, "oversample": 2.0, "clients-per-round": 1}):
            assert read_reply(query({**OWN, **keys, "devices": str(path)}, data))[0].kind is Kind.QUERY


@pytest.mark.parametrize("key", ["model", "own.data"])
def test_the_run_config_imports_nothing_that_the_node_does_not_allow(key, module, tmp_path):
    mark = tmp_path / "imported"
    name = module(f"open({str(mark)!r}, 'w').close()\n{DATA}\nfrom models.cnn import DigitsCnn as build\n")
    target = f"{name}:{'build' if key == 'model' else 'data'}"
    others = {"data": f"{module(DATA, 'mine')}:data"} if key == "model" else {}
    assert f"{key}: expected code that this node allows" in refusal({**OWN, key: target}, others)
    assert not mark.exists()
    reply, _ = read_reply(query({**OWN, key: target}, {**others, "allow": f"another:thing,{target}"}))
    assert reply.kind is Kind.QUERY
    assert mark.exists()


def test_a_nodes_own_paths_and_data_win_over_those_of_the_run(module, tmp_path):
    nothing = "nobody.has:this"
    node_config = {"data": f"{module(DATA)}:data", "state-dir": str(tmp_path / "mine"), "data-dir": str(tmp_path)}
    keys = {**OWN, "own.data": nothing, "state-dir": "/proc/nowhere", "data-dir": "/root"}
    assert read_reply(query(keys, node_config))[0].kind is Kind.QUERY
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize(
    "sizes",
    [
        {"own.shape": "65536x65536x64"},
        {"own.shape": "1x64x64", "batch-size": 2**40},
        {"own.shape": "1x30000x30000", "model": "cnn2"},
        {"own.classes": 1_000_000, "own.shape": "200000000", "model": "har-mlp"},
        {"own.shape": "1x30000x30000", "model": "auto"},
        {"own.shape": "16", "own.vocabulary": 2**40, "model": "auto"},
    ],
)
def test_sizes_that_do_not_fit_the_node_are_refused_before_anything_is_allocated(sizes, module):
    tracemalloc.start()
    try:
        words = refusal({**OWN, **sizes}, {"data": f"{module(DATA)}:data"})
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "of this node's memory" in words


LARGE_DATA = """
import numpy as np
def data():
    return np.ones((256, 1, 64, 64), np.float32), np.arange(256) % 2, np.ones((4, 1, 64, 64)), np.ones(4, int)
"""
# A few MB by check_sizes: activations of a batch (134 MB and more), and models that a method trains together.
DEMANDS = [
    {"own.shape": "1x64x64", "batch-size": 256, "method": "fedavg", "local-epochs": 1},
    {"own.shape": "1x64x64", "batch-size": 8, "method": "fedem", "fedem.models": 100, "local-epochs": 1},
]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("keys", DEMANDS)
def test_a_server_cannot_take_the_nodes_memory_by_the_run_config(keys, module, monkeypatch):
    monkeypatch.setattr(guard, "available", lambda: 100 << 20)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    records = query({**OWN, **keys}, {"data": f"{module(LARGE_DATA)}:data", "device": "cpu"}, Kind.TRAIN)
    with pytest.raises(ProtocolError, match=r"memory: expected an answer within .* GiB of this node's, got .*more"):
        read_reply(records)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_what_fits_the_nodes_memory_is_trained(module):
    records = query(
        {**OWN, "method": "fedavg", "local-epochs": 1}, {"data": f"{module(DATA)}:data", "device": "cpu"}, Kind.TRAIN
    )
    assert read_reply(records)[0].kind is Kind.TRAIN


def test_a_simulation_on_one_machine_takes_code_and_paths_from_its_run(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    reply, _ = read_reply(query({**OWN, "own.data": f"{module(DATA)}:data"}, {}))
    assert reply.kind is Kind.QUERY


def test_a_method_of_code_is_refused_unless_the_node_allows_it(module, tmp_path):
    mark = tmp_path / "imported"
    code = f"open({str(mark)!r}, 'w').close()"
    target = f"{module(code)}:FedMine"
    node_config = {"data": f"{module(DATA, 'mine')}:data"}
    assert "method: expected code that this node allows" in refusal({**OWN, "method": target}, node_config)
    assert not mark.exists()
    refusal({**OWN, "method": target}, {**node_config, "allow": target})
    assert mark.exists(), "imported where it is allowed; it has no FedMine"
