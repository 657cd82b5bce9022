"""A method in a ServerApp of the user's own, for clients of Sepal's ClientApp, over any Grid."""

from __future__ import annotations

import re
import sys
from functools import partial

import pytest
from flwr.app import Array, ArrayRecord

from sepal.client_app.app import make_app
from sepal.config import RunConfig, agreement, kebab
from sepal.config.agreement import disagreement, inert_values
from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.errors import ConfigError, RosterError
from sepal.flower.simulation import SIMULATION
from sepal.server.strategy import SepalStrategy
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvg
from sepal.strategies.fedpse import FedPSE

RENEWED = "clip-gradient"  # a key with a former value, 0
FLAT = {"dataset": "digits", "clients": 3, "rounds": 3, "partition.subsample": 150}


def grid(method, tmp_path, **keys):
    clients = Clients(assemble({**FLAT, "method": method, **keys}), tmp_path)
    return InProcessGrid({number + 1: partial(clients.answer, number) for number in range(3)})


def test_a_method_runs_in_an_own_serverapp(tmp_path):
    strategy = FedPSE.durable(FLAT, keep=0.2)
    result = strategy.start(grid("fedpse", tmp_path, **{"fedpse.keep": 0.2}), num_rounds=2)
    assert strategy.progress.round == 3
    assert list(result.arrays) == [parameter.name for parameter in strategy.setup.layout]
    assert 0 <= result.evaluate_metrics_clientapp[3]["trained.mean"] <= 1


def test_keys_that_clients_read_differently_are_refused_by_name_before_round_1(tmp_path):
    """README's example with another ``keep`` than the clients' run config: once, every upload was refused."""
    strategy = FedPSE.durable(FLAT, keep=0.2)
    expected = "fedpse.keep: expected 0.2 (server: argument keep=0.2), got 0.1 (client: default)"
    with pytest.raises(RosterError) as caught:
        strategy.start(grid("fedpse", tmp_path), num_rounds=2)
    assert f"{expected} (client-00000, " in str(caught.value)
    assert strategy.progress.round == 0


@pytest.mark.parametrize(
    ("server", "client", "words"),
    [
        ({"seed": 3}, {}, "seed: expected 3 (server: run config), got 0 (client: default)"),
        ({}, {"batch-size": 5}, "batch-size: expected 16 (server: default), got 5 (client: run config)"),
        ({"method": "fedavg"}, {}, None),
        ({"rounds": 7, "timeout": 9.0, "device": "cpu"}, {"rounds": 5, "timeout": 8.0, "data-dir": "/x"}, None),
    ],
)
def test_where_each_value_was_set_is_said_and_keys_of_one_side_may_differ(server, client, words):
    server_keys, client_keys = (assemble({**FLAT, "method": "fedavg", **keys}).agreed for keys in (server, client))
    error = disagreement("a", server_keys, client_keys)
    assert (str(error) if error else None) == (f"a: {words}" if words else None)


def test_another_version_alone_is_no_disagreement(monkeypatch):
    """Whether two releases work together is decided by their protocols (tests/sepal/protocol)."""
    server_keys = assemble({**FLAT, "method": "fedavg"}).agreed
    monkeypatch.setattr(agreement, "__version__", "9.9")
    assert disagreement("a", server_keys, assemble({**FLAT, "method": "fedavg"}).agreed) is None


@pytest.mark.parametrize("reported", ["", "x", "\t\t\t\n", "seed\t0\tx", "\x00" * 9999])
def test_a_reply_without_the_keys_is_refused(reported):
    error = disagreement("a", assemble({**FLAT, "method": "fedavg"}).agreed, reported)
    assert re.fullmatch(r"a: [a-z]+: expected .+ \(server: .+\), got nothing \(client: unknown\)", str(error))


def lines_without(text, key):
    return "\n".join(line for line in text.split("\n") if not line.startswith(f"{key}\t"))


def test_between_two_protocols_a_key_may_be_missing_where_its_value_changes_nothing():
    """A client without the key does what its former value says. Another value is refused, by name."""
    for value, fits in ((0.0, True), (2.5, False)):
        assembly = assemble({**FLAT, "method": "fedavg", RENEWED: value})
        server, inert = assembly.agreed, inert_values(assembly.setup.config, assembly.setup.hyper)
        older = lines_without(server, RENEWED)
        assert disagreement("a", server, older, 0, inert), "within one protocol both have the same keys"
        refused = disagreement("a", server, older, -1, inert)
        assert (refused is None) == fits
    assert str(refused) == (
        f"a: {RENEWED}: expected 2.5 (server: run config), "
        "got nothing (client: a release without this key: upgrade the client)"
    )
    assert disagreement("a", older, server, 1) is None, "a newer client has further keys"
    assert disagreement("a", older, server, 0)
    assert disagreement("a", lines_without(server, "seed"), server.replace("seed\t0", "seed\t1"), -1, inert)


def test_an_unknown_key_of_the_method_is_refused():
    with pytest.raises(ConfigError, match=r"fedpse\.kep: expected a known key"):
        FedPSE.durable(FLAT, kep=0.2)


def test_simulated_time_decides_nothing_where_clients_say_themselves_what_they_computed(monkeypatch):
    """A client could claim no work at all and be the first of each round, or none, which would end the run for all."""
    keys = {**FLAT, "devices": "phones", "deadline": 60.0}
    with pytest.raises(ConfigError, match="devices: expected nothing in a deployment with oversample or deadline"):
        FedAvg.durable(keys)
    FedAvg.durable({**FLAT, "deadline": 60.0})
    monkeypatch.setitem(sys.modules, SIMULATION, None)
    FedAvg.durable(keys)


def test_other_initial_arrays_are_refused(tmp_path):
    strategy = FedAvg.durable(FLAT)
    arrays = ArrayRecord({name: Array(value + 1) for name, value in strategy.setup.weights.items()})
    with pytest.raises(ConfigError, match="initial_arrays: expected the run config's initial weights"):
        strategy.start(grid("fedavg", tmp_path), arrays)


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_flowers_array_mods_are_refused_with_one_line(name):
    from flwr.clientapp import mod

    with pytest.raises(ConfigError, match=f"mods: expected mods that leave arrays alone .*, got {name}"):
        make_app([getattr(mod, name)])


def test_the_local_privacy_mod_is_refused_and_a_size_mod_is_not():
    from flwr.clientapp.mod import LocalDpMod, message_size_mod

    with pytest.raises(ConfigError, match="LocalDpMod"):
        make_app([LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
    make_app([message_size_mod])


def test_clients_read_none_of_the_keys_that_only_the_server_has(tmp_path, monkeypatch):
    """Otherwise such a key would have to be compared. Every method's client is asked in a round and the closing one."""
    read = set()
    plain = RunConfig.__getattribute__

    def watched(config, name):
        read.add(kebab(name))
        return plain(config, name)

    few = {"lr": 0.01, "local-epochs": 1, "partition.subsample": 60}
    for name in registry.names():
        clients = grid(name, tmp_path / name, **few)
        assembled = assemble({**FLAT, **few, "method": name})
        strategy = SepalStrategy(assembled.method, assembled.setup)
        handle = clients._nodes[1]

        def spy(message, handle=handle):
            with monkeypatch.context() as patch:
                patch.setattr(RunConfig, "__getattribute__", watched)
                return handle(message)

        clients._nodes[1] = spy
        strategy.start(clients, num_rounds=1)
    assert "local-epochs" in read
    assert read & agreement.SERVER_ONLY == set()


def test_with_a_schedule_clients_and_server_agree_on_the_rounds_and_start_changes_them_not(tmp_path):
    keys = {**FLAT, "method": "fedavg", "rounds": 4, "schedule": "cosine"}
    assembled = assemble(keys)
    assert "\nrounds\t4\t" in assembled.agreed
    assert "\nrounds\t" not in assemble({**keys, "schedule": "constant"}).agreed
    with pytest.raises(ConfigError, match="num_rounds: expected rounds = 4, on which the schedule of cosine depends"):
        SepalStrategy(assembled.method, assembled.setup).start(grid("fedavg", tmp_path), num_rounds=3)
