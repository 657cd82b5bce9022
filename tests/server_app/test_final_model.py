"""``final-model = "best"``: the closing round evaluates, and deploys, what was best on validation data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import sepal
from sepal.data import ClientData, Examples
from sepal.errors import ConfigError
from sepal.protocol.messages import version
from sepal.server.run_state import RoundRecord, RunState
from sepal.server.run_store import DiskRunStore, MemoryRunStore
from sepal.study.run import execute, prepare
from tests.tasks.settings import closing

ROUNDS = 5


def load(client):
    """Validation labels are the opposite of the others: the more a model learns, the worse it is on them."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * client * x[:, 1] > 0).astype(np.int64)
    return ClientData(Examples(x[:60], y[:60]), Examples(x[60:80], 1 - y[60:80]), Examples(x[80:], y[80:]))


def build(shape, classes):
    return nn.Linear(4, classes)


HERE = {"own.data": f"{__name__}:load", "own.shape": "4", "own.classes": 2, "model": f"{__name__}:build"}
KEYS = {"dataset": "own", "clients": 3, "lr": 0.02, "batch-size": 16, "evaluate-every": 2, **HERE}


def run(method, directory, name, **more):
    prepared = prepare({**KEYS, "method": method, "out": str(directory), "name": name, **more}, directory)
    execute(prepared, 1)
    return sepal.load(directory / name, code=[f"{__name__}:load", f"{__name__}:build"])


def last(stored_run):
    return {client["name"]: (client["received"], client["kept"]) for client in stored_run.stored.lines[-1]["clients"]}


@pytest.mark.parametrize("method", ["fedavg", "fedpse", "ditto", "local", "fedadam", "fedper"])
def test_the_closing_round_evaluates_the_models_of_the_best_round_bit_for_bit(method, tmp_path):
    """Round 2 evaluates the models after round 1 and is best: they are those of a run of one round."""
    best = run(method, tmp_path, "best", rounds=ROUNDS, **{"final-model": "best"})
    short, whole = (run(method, tmp_path, name, rounds=rounds) for name, rounds in (("short", 1), ("whole", ROUNDS)))
    assert (best.stored.lines[-1]["best_round"], best.summary["best_round"]) == (2, 2)
    assert "best_round" not in whole.summary
    assert last(best) == last(short)
    for view in ("received", "kept"):
        if best.summary["accuracy"][view] is None:
            continue
        weights = {run.path.name: run.model(1, view).state_dict() for run in (best, short, whole)}
        for name, tensor in weights["best"].items():
            assert (tensor == weights["short"][name]).all(), (view, name)
        assert any((tensor != weights["whole"][name]).any() for name, tensor in weights["best"].items()), view


def test_a_run_in_memory_closes_with_the_best_models_too():
    best_run = closing({**KEYS, "method": "fedavg", "rounds": ROUNDS}, **{"final-model": "best"})
    assert best_run.record.best_round == 2
    short = closing({**KEYS, "method": "fedavg", "rounds": 1})
    losses = [
        {n: reply.metrics["received.loss"] for n, reply in ended.record.replies.items()} for ended in (best_run, short)
    ]
    assert losses[0] == losses[1]


class KilledError(Exception):
    pass


class KillAfter:
    """An observer that ends the process, as it were, after a round."""

    def __init__(self, round):
        self.number = round

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if record.round == self.number:
            raise KilledError

    def closed(self, progress, report):
        pass


@pytest.mark.parametrize("killed", [1, 2, 3, ROUNDS])
def test_a_run_that_was_killed_closes_with_the_same_models(killed, tmp_path):
    keys = {"rounds": ROUNDS, "final-model": "best", "checkpoint-every": 2}
    whole = run("fedpse", tmp_path, "whole", **keys)
    prepared = prepare({**KEYS, "method": "fedpse", "out": str(tmp_path), "name": "killed", **keys}, tmp_path)
    with pytest.raises(KilledError):
        execute(prepared, 1, observers=[KillAfter(killed)])
    again = run("fedpse", tmp_path, "killed", **keys)
    assert again.stored.lines[-1]["best_round"] == 2
    assert last(again) == last(whole)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_a_run_that_has_ended_is_extended_from_its_last_round(tmp_path):
    run("fedavg", tmp_path, "mine", rounds=ROUNDS, **{"final-model": "best"})
    longer = run("fedavg", tmp_path, "mine", rounds=ROUNDS + 2, **{"final-model": "best"})
    whole = run("fedavg", tmp_path, "whole", rounds=ROUNDS + 2)
    assert [line["validation"] for line in longer.stored.lines[:-1]] == [
        line["validation"] for line in whole.stored.lines[:-1]
    ]
    assert longer.summary["best_round"] == 2


@pytest.mark.parametrize("method", ["fedavg", "fedpse", "local", "fedper"])
@pytest.mark.parametrize("checkpoint_every", [1, 10])
def test_a_run_that_deployed_its_last_models_deploys_the_best_if_asked_and_the_last_again(
    method, checkpoint_every, tmp_path
):
    """The states of the best round are kept beside the last ones, of the server and of each client."""
    keys = {"rounds": ROUNDS, "checkpoint-every": checkpoint_every}
    continued = run(method, tmp_path, "asked", **keys)
    whole = last(continued)
    assert "best_round" not in continued.summary
    best = run(method, tmp_path, "best", **keys, **{"final-model": "best"})
    continued = run(method, tmp_path, "asked", **keys, **{"final-model": "best"})
    assert continued.summary["best_round"] == 2
    assert last(continued) == last(best) != whole
    assert continued.summary["clients_sha256"] == best.summary["clients_sha256"]
    assert continued.summary["bytes"] == best.summary["bytes"], "the closing round counts once"
    continued = run(method, tmp_path, "asked", **keys)
    assert (last(continued), "best_round" in continued.summary) == (whole, False)


def test_states_between_the_best_and_the_newest_are_not_kept(tmp_path):
    run("fedavg", tmp_path, "mine", rounds=9, **{"checkpoint-every": 1})
    stored = sorted(int(path.name.split("-")[0]) for path in (tmp_path / "mine/clients").rglob("client-00001/*-*"))
    assert stored[0] == 1, "the best full evaluation is that of round 2"
    assert len(stored) < 6


@pytest.mark.parametrize("keys", [{"evaluate-every": 7}, {"split.validation": 0.0}])
def test_a_run_that_knows_no_best_models_refuses_to_deploy_them(keys, tmp_path):
    whole = run("fedavg", tmp_path, "mine", rounds=2, **keys)
    with pytest.raises(ConfigError, match="final-model: expected last"):
        run("fedavg", tmp_path, "mine", rounds=2, **keys, **{"final-model": "best"})
    assert sepal.load(tmp_path / "mine").summary == whole.summary


def test_without_an_evaluation_or_without_the_stored_state_the_last_models_are_taken_and_it_is_said(tmp_path, caplog):
    early = run("fedavg", tmp_path, "early", rounds=1, **{"final-model": "best"})
    assert "best_round" not in early.stored.lines[-1]
    assert "no full evaluation has validation figures; the last round's models" in caplog.text
    keys = {**KEYS, "method": "fedavg", "out": str(tmp_path), "name": "lost", "rounds": 3, "final-model": "best"}
    keys["checkpoint-every"] = 1
    prepared = prepare(keys, tmp_path)
    with pytest.raises(KilledError):
        execute(prepared, 1, observers=[KillAfter(3)])
    (tmp_path / "lost" / "checkpoints" / "best.safetensors").write_bytes(b"damaged")
    lost = run("fedavg", tmp_path, "lost", rounds=3, **{"final-model": "best", "checkpoint-every": 1})
    assert lost.summary["complete"]
    assert "best_round" not in lost.summary
    assert "that of round 2 is lost; the last round's models" in caplog.text


@pytest.mark.parametrize("more", [{"split.validation": 0.0}, {"evaluate-every": 0}, {"roster": "open"}, {"clients": 0}])
def test_where_no_best_model_can_be_known_it_is_refused(more, tmp_path):
    with pytest.raises(ConfigError, match="final-model: expected last with"):
        prepare({**KEYS, "final-model": "best", **more}, tmp_path)


@pytest.mark.parametrize("store", [lambda directory: DiskRunStore(directory, dict), lambda directory: MemoryRunStore()])
def test_clients_keep_the_versions_of_the_best_state_and_an_undone_one_is_forgotten(store, tmp_path):
    store, state = store(tmp_path), RunState("0" * 32, 0, {})
    versions = {round: {"a": version(round, "", "d", "u")} for round in range(1, 9)}
    store.checkpoint(state)
    store.keep_best(replace(state, round=2, versions=versions[2]))
    for round in (4, 6, 8):
        store.checkpoint(replace(state, round=round, versions=versions[round]))
    assert (store.durable(), store.best_versions()) == (versions[6], versions[2])
    assert store.best().versions == versions[2]
    nothing = RoundRecord(4, (), (), {}, {}, (), False, {})
    store.undo(nothing)
    assert store.best() is not None, "the evaluation of round 3 was not undone"
    store.undo(replace(nothing, round=2))
    assert store.best() is None
