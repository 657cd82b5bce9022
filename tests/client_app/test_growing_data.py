"""``data-changes = "accept"``: clients train on their data as they are, and no test example is ever trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sepal.client_app import build
from sepal.client_app.host import COSTS
from sepal.client_app.upload_count import UploadCount
from sepal.data import ClientData, Examples
from sepal.data.growing import GrowingData
from sepal.data.schema import written
from sepal.export.portable import load
from sepal.method.server_base import ServerBase
from sepal.server.run_store import DiskRunStore
from sepal.strategies import registry
from tests.client_app.deployed_clients import NAMES, Deployment, own_nodes
from tests.client_app.test_whole_tables import SCHEMA, table
from tests.contract.harness import Killed
from tests.sepal.server.test_changed_data import BEFORE, GROWS, Growing

ACCEPT = {"data-changes": "accept"}


@pytest.fixture(autouse=True)
def no_chance(monkeypatch):
    """A client's secret is random, and with it how many examples are in which part; returned are the secrets."""
    split, secrets = GrowingData.of, set()

    def of(source, salt, config):
        secrets.add(salt)
        return split(source, "", config)

    monkeypatch.setattr(build, "GrowingData", SimpleNamespace(of=of))
    return secrets


@pytest.fixture
def sites(tmp_path, monkeypatch):
    return own_nodes(tmp_path, monkeypatch, sizes=((40, 0), (40, 0)))


class Rows:
    """A client's own data that are what a test says; its function gives them in parts of its own."""

    private, info, seed = "own", None, 0

    def __init__(self, values, cut):
        x, y = np.array(values, np.float32).reshape(-1, 1), np.arange(len(values)) % 2
        train, test = Examples(x[cut:], y[cut:]), Examples(x[:cut], y[:cut])
        self.data = ClientData(train, train.first(0), test)

    def client(self, number, clients, name):
        return self.data


@settings(max_examples=200, deadline=None)
@given(
    states=some.lists(some.lists(some.integers(-40, 40), min_size=1, max_size=60), min_size=2, max_size=6),
    cuts=some.lists(some.integers(0, 10), min_size=6, max_size=6),
    salt=some.text(max_size=8),
)
def test_no_example_that_was_ever_a_test_is_trained_on_later(states, cuts, salt):
    """Data that grow, shrink, shuffle, repeat themselves, and that the function itself splits anew each time."""
    ever = {"train": set(), "validation": set(), "test": set()}
    for values, cut in zip(states, cuts, strict=False):
        data = GrowingData(Rows(values, cut), salt, 0.25, 0.1).client(0, 1, "a")
        now = {name: getattr(data, name).x[:, 0].tolist() for name in ever}
        assert sorted(chain(*now.values())) == sorted(map(float, values)), "each example is in one part"
        for name in ever:
            ever[name] |= set(now[name])
    assert not ever["train"] & ever["test"]
    assert not ever["train"] & ever["validation"]
    assert not ever["validation"] & ever["test"]


def test_the_parts_have_the_shares_of_the_keys_and_depend_on_the_secret():
    data = [GrowingData(Rows(range(4000), 0), salt, 0.25, 0.1).client(0, 1, "a") for salt in "ab"]
    for parts in data:
        assert abs(len(parts.test) - 1000) < 100
        assert abs(len(parts.validation) - 300) < 60
    assert set(data[0].test.x.ravel()) != set(data[1].test.x.ravel())
    assert [len(part) for part in (data[0].train, data[0].test)] != [
        len(part) for part in (data[1].train, data[1].test)
    ]


def examples(deployment, name):
    return [next(c["examples"] for c in line["clients"] if c["name"] == name) for line in deployment.lines]


def test_new_numbers_are_weights_from_the_next_round_on(sites, monkeypatch, caplog):
    nodes, change = sites
    seen, weigh = [], ServerBase.weigh
    monkeypatch.setattr(ServerBase, "weigh", lambda self, upload: seen.append(upload.client) or weigh(self, upload))
    changes = {1: lambda: change((70, 0), (40, 0)), 2: lambda: change((90, 0), (40, 0))}
    deployment = Deployment(nodes, changes=changes, **ACCEPT, **{"data-growth": 3.0})
    progress = deployment.start().progress
    counts = examples(deployment, "site-a")
    first, second, third = counts[:3]
    assert first < second < third == counts[3] == counts[4]
    weights = [client.examples for client in seen if client.name == "site-a"]
    assert list(dict.fromkeys(weights)) == [first, second, third]
    assert weights.index(second) > weights.index(first)
    assert (progress.roster["site-a"].examples, dict(progress.began)) == (third, {"site-a": first})
    said = [line for line in caplog.messages if "the run can no longer be repeated" in line]
    assert len(said) == 1, "once"
    assert said[0].startswith("round 2: the data of site-a have changed")
    digests = [record.replies["site-a"].client.data for record in deployment.records]
    assert len(set(digests[:3])) == 3, "the record has the digest of each round"
    assert len({record.replies["site-b"].client.data for record in deployment.records}) == 1


def test_the_round_in_which_data_change_has_the_weight_of_the_one_before(sites, monkeypatch):
    nodes, change = sites
    weights = []
    weigh = ServerBase.weigh
    monkeypatch.setattr(
        ServerBase, "weigh", lambda self, upload: weights.append(upload.client.examples) or weigh(self, upload)
    )
    by_round = {}

    def note(round, then=lambda: None):
        by_round[round] = set(weights)
        weights.clear()
        then()

    changes = {1: lambda: note(1, lambda: change((70, 0), (70, 0))), 2: lambda: note(2), 3: lambda: note(3)}
    deployment = Deployment(nodes, changes=changes, **ACCEPT)
    deployment.start()
    assert by_round[1] == by_round[2] != by_round[3]


def test_the_split_depends_on_each_clients_own_secret(sites, tmp_path, no_chance):
    Deployment(sites[0], **ACCEPT, rounds=1).start()
    assert no_chance == {f"split|{path.read_text()}" for path in (tmp_path / "states").glob("*/*/identity")}
    assert len(no_chance) == 2


def test_more_than_data_growth_costs_only_that_clients_rounds(sites, caplog):
    nodes, change = sites
    changes = {1: lambda: change((400, 0), (40, 0)), 3: lambda: change((50, 0), (40, 0))}
    deployment = Deployment(nodes, changes=changes, **ACCEPT)
    progress = deployment.start().progress
    assert progress.closed
    assert deployment.statuses("site-a") == [["accepted"], ["refused"], ["refused"], ["accepted"], ["accepted"]]
    assert deployment.statuses("site-b") == [["accepted"]] * 5
    began = progress.began["site-a"]
    words = f"at most {2 * began} training examples (data-growth = 2 times the {began} at first), got"
    assert words in deployment.reason(2, "site-a")
    assert any(line.startswith("round 2 goes on without a client") and words in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (("c" * 64, 10**9), f"{GROWS}: data: expected at most 20 training examples"),
        (("c" * 64, 21), f"{GROWS}: data: expected at most 20 training examples"),
        ((BEFORE[0], 20), "client.examples: expected 10, got 20"),
        (("\x1b[31mowned", 20), f"{GROWS}: data: expected 64 hexadecimal digits"),
        (("", 20), f"{GROWS}: data: expected 64 hexadecimal digits"),
    ],
)
def test_no_claim_weighs_more_than_data_growth_allows(claim, words):
    federation = Growing(data_changes="accept", dataset="own")
    honest = federation.host
    federation.host = lambda name: replace(honest(name), changes=True)
    federation.changes = {(2, GROWS): claim}
    progress = federation.run().progress
    assert progress.closed
    assert federation.statuses(GROWS)[2:] == [["refused"]] * 5
    assert progress.roster[GROWS].examples == 10
    assert next(e.reason for e in federation.records[2].ledger if e.status == "refused").startswith(words)


def test_growth_is_counted_from_the_start_and_not_from_the_last_round():
    federation = Growing(data_changes="accept", dataset="own")
    honest = federation.host
    federation.host = lambda name: replace(honest(name), changes=True)
    federation.changes = {(1, GROWS): ("c" * 64, 18), (2, GROWS): ("d" * 64, 20), (3, GROWS): ("e" * 64, 36)}
    progress = federation.run().progress
    assert federation.statuses(GROWS) == [["accepted"]] * 3 + [["refused"]] * 4
    assert (progress.roster[GROWS].examples, dict(progress.began)) == (20, {GROWS: 10})


def test_a_restart_between_two_growths_goes_on_with_the_numbers_of_then(sites, tmp_path, caplog):
    nodes, change = sites
    keys = {**ACCEPT, "checkpoint-every": 10}  # so that rounds are replayed

    def killed():
        raise Killed

    def begun(changes):
        deployment = Deployment(nodes, changes=changes, **keys)
        deployment.store = DiskRunStore(tmp_path / "server", deployment.assembly.method.server_state)
        return deployment

    first = begun({1: lambda: change((60, 0), (40, 0)), 2: killed})
    with pytest.raises(Killed):
        first.start()
    assert len([line for line in caplog.messages if "can no longer be repeated" in line]) == 1
    change((70, 0), (40, 0))
    second = begun({3: lambda: change((75, 0), (40, 0))})
    progress = second.start().progress
    assert progress.closed
    assert second.statuses("site-a") == [["accepted"]] * 5
    counts = examples(second, "site-a")
    assert counts == sorted(counts)
    assert len(set(counts)) == 4
    assert dict(progress.began) == {"site-a": counts[0]}


def test_a_table_that_grows_is_exported_with_the_means_of_its_last_training_part(tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    tables = [table(tmp_path / site) for site in NAMES]
    schema = tmp_path / "schema.toml"
    schema.write_text(written(SCHEMA))
    both = {"state-dir": str(tmp_path / "states"), "device": "cpu"}
    nodes = [
        {**both, "name": site, "data-dir": str(own), "export": str(tmp_path / f"{site}.safetensors")}
        for site, own in zip(NAMES, tables, strict=True)
    ]
    keys = {"dataset": "folder", "own.shape": "", "own.classes": 0, "model": "auto", "rounds": 2}
    changes = {1: lambda: table(tables[0], rows=90)}
    run = tmp_path / "runs" / "grown"
    deployment = Deployment(nodes, changes=changes, directory=run, **keys, **ACCEPT, **{"folder.schema": str(schema)})
    assert deployment.start().progress.closed
    assert json.loads((run / "summary.json").read_text())["data_changed"] == ["site-a"]
    assert deployment.statuses("site-a") == [["accepted"]] * 3
    counts = examples(deployment, "site-a")
    assert counts[0] < counts[1] == counts[2]
    assert 20 < load(tmp_path / "site-a.safetensors").origin.offset[0] < 110


STRICT = {"no-accuracies": True, "least-noise": 0.5, "most-uploads": 4}
NOISE = {"privacy.clip": 1.0, "privacy.noise": 0.5}


@pytest.mark.parametrize("choice", ["refuse", "freeze", "accept"])
def test_an_operators_demands_hold_while_data_grow(sites, choice, monkeypatch):
    """A refused round sends no upload, and none is counted; the others have noise, and no figure but costs."""
    nodes, change = sites
    spent, spend = [], UploadCount.spend
    monkeypatch.setattr(UploadCount, "spend", lambda self, name: spent.append(self) or spend(self, name))
    changes = {1: lambda: change((60, 0), (40, 0)), 3: lambda: change((40, 0), (40, 0))}
    strict = [{**node, **STRICT} for node in nodes]
    deployment = Deployment(strict, changes=changes, **NOISE, **{"data-changes": choice})
    assert deployment.start().progress.closed
    status = "refused" if choice == "refuse" else "accepted"
    assert deployment.statuses("site-a") == [["accepted"], [status], [status], ["accepted"], ["accepted"]]
    charged = 2 * (4 + (2 if choice == "refuse" else 4))  # each upload once before training, once before it is sent
    assert len(spent) == charged
    assert {key for r in deployment.records for reply in r.replies.values() for key in reply.metrics} <= COSTS


@pytest.mark.parametrize("method", registry.names())
def test_every_methods_state_takes_data_that_grow(method, sites):
    """No method keeps anything by example; one that did would fail, or be refused, in the round after the growth."""
    nodes, change = sites
    changes = {1: lambda: change((60, 3), (60, 5))}
    keys = {"rounds": 2, "method": method, "lr": 0.01, **({"model": "digits-cnn-bn"} if method == "fedbn" else {})}
    deployment = Deployment(nodes, changes=changes, **ACCEPT, **keys)
    assert deployment.start().progress.closed
    for name in NAMES:
        assert set(chain(*deployment.statuses(name))) <= {"accepted"}
