"""A client that sends finite but absurd values: bounded, averaged away, or undone; each by an option."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.method import Plan, dense
from sepal.method.interface import resolve
from sepal.method.means import sparse_mean, weighted_mean
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.server.outcome import too_large
from sepal.storage.serialize import digest, flatten
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import at, whole
from tests.attacks.attacked_federation import Hostile, silence
from tests.attacks.test_hostile_replies import uploads
from tests.strategies.baselines import Sent

KEYS = {"dataset": "digits", "clients": 4, "rounds": 2, "partition.name": "iid", "partition.subsample": 160}
ABSURD = Payload({"delta": at(np.full(6, 1e6), np.array([0, 1]))})


class LedgerObserver:
    def __init__(self):
        self.ledger = []

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.ledger += record.ledger

    def closed(self, progress, report):
        pass


def poisoned(name, factor=1e6):
    """The method, with a client 1 whose upload of round 1 is ``factor`` times as large."""
    method = registry.get(name)

    class Poisoning(resolve(method.client)):
        def __init__(self, setup, trainer):
            super().__init__(setup, trainer)
            self.evil = trainer.client.name == "client-00001"

        def train(self, state, download, plan):
            after, upload = super().train(state, download, plan)
            if self.evil and plan.round == 1:
                large = {
                    n: t if t.values is None else replace(t, values=t.values * np.float32(factor))
                    for n, t in upload.tensors.items()
                }
                upload = replace(upload, tensors=large)
            return after, upload

    return replace(method, client=Poisoning)


@pytest.mark.parametrize("name", ["fedavg", "fedpse", "fedstc", "fedscr", "flasc", "fedadam"])
@pytest.mark.parametrize(("factor", "bound"), [(1e6, {}), (8, {"max-update-norm": 3.0})], ids=["guard", "bound"])
def test_an_absurd_upload_is_refused_by_its_norm_and_the_run_goes_on(name, factor, bound):
    observer = LedgerObserver()
    strategy = run_in_process(assemble({**KEYS, **bound}, poisoned(name, factor)), observers=[observer])
    (entry,) = [entry for entry in observer.ledger if entry.status == "refused"]
    assert (entry.round, entry.client) == (1, "client-00001")
    assert re.match(
        "upload: expected a change of " + ("at most " if bound else ".* by a norm of at most "), entry.reason
    )
    assert strategy.progress.closed
    assert all(np.abs(w).max() < 1e3 for w in strategy.algorithm.model(strategy.progress.server).values())


def test_what_a_bound_refuses_leaves_no_trace():
    bounded = Hostile(uploads(ABSURD), max_update_norm=10.0).run()
    silent = Hostile(silence, on_missing="skip").run()
    assert digest(bounded.progress.server) == digest(silent.progress.server)


def test_without_a_bound_large_values_are_accepted_and_absurd_ones_refused():
    """Absurd is a change of more than ten times the norm of the model, at least 10: √2 · 5 is not, √2 · 10^6 is."""
    for size, status in ((5.0, "accepted"), (1e6, "refused")):
        large = Payload({"delta": at(np.full(6, size), np.array([0, 1]))})
        federation = Hostile(uploads(large), on_missing="skip")
        federation.run()
        assert [entry.status for entry in federation.entries()] == [status]
        assert len(federation.records[1].replies) == (4 if status == "accepted" else 3), "nobody else is refused"


def test_of_two_uploads_a_bound_refuses_neither():
    """Not defended: the median of two is their mean m, and the larger one is at most 2·m. Three are needed."""
    large = Payload({"delta": at(np.full(6, 10.0), np.array([0, 1]))})
    federation = Hostile(uploads(large), clients=2, max_update_norm=10.0, on_missing="skip")
    federation.run()
    assert [entry.status for entry in federation.entries()] == ["accepted"]


def test_an_absurd_upload_of_one_of_two_is_refused_by_name():
    federation = Hostile(uploads(ABSURD), clients=2, on_missing="skip", rounds=4)
    federation.run()
    (refused,) = [entry for entry in federation.records[1].ledger if entry.status == "refused"]
    assert refused.client == "client-1"
    assert refused.reason.startswith("upload: expected a change of delta by a norm of at most ")
    assert len(federation.records) == 5, "the rounds after it, and the closing one"


def test_a_robust_mean_by_hand():
    """Entries of five clients: (0, 1, 2, 3, 10^6). Median 2. Trimmed by one at each end: (1 + 2 + 3) / 3 = 2.

    Of four, (0, 1, 2, 10^6): median 1.5, trimmed (1 + 2) / 2. Of two, (0, 1): nothing is trimmed. All weigh the same.
    """
    for values, median, trimmed in (((1e6, 0, 1, 3, 2), 2, 2), ((0, 1e6, 2, 1), 1.5, 1.5), ((0, 1), 0.5, 0.5)):
        tensors = [whole(np.full(3, value, np.float32)) for value in values]
        sent = [Upload(ClientInfo(f"c{n}", 10**n), Payload({"w": tensor})) for n, tensor in enumerate(tensors)]
        for how, expected in (("median", median), ("trimmed", trimmed)):
            mean = weighted_mean(sent, {"w": np.zeros(3, np.float32)}, robust=how)
            np.testing.assert_allclose(mean["w"], expected)
            np.testing.assert_allclose(sparse_mean(sent, {"w": (3,)}, robust=how)["w"], expected)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "median") for name in registry.METHODS if registry.get(name).robust),
        # Both means know both, as the test above says; in a run, of a method with dense and with sparse uploads.
        *((name, "trimmed") for name in ("fedavg", "fedscr")),
    ],
)
def test_a_robust_mean_survives_an_absurd_upload(name, how):
    strategy = run_in_process(assemble({**KEYS, "robust-mean": how}, poisoned(name)))
    arrays = [array for array in flatten(strategy.progress.server)[0].values() if array.dtype.kind == "f"]
    assert all(np.abs(array).max(initial=0) < 1e3 for array in arrays)


@pytest.mark.parametrize("name", [name for name in registry.METHODS if not registry.get(name).robust])
def test_a_method_with_a_mean_of_its_own_refuses_a_robust_one_before_the_run(name):
    with pytest.raises(ConfigError, match=r"robust-mean: expected none: .*methods that take it: fedavg, .*got median"):
        assemble({**KEYS, "method": name, "robust-mean": "median"})


def test_a_poisoned_round_is_undone_from_an_earlier_checkpoint(tmp_path):
    """A run that has ended after five rounds, back to the checkpoint of round 4, with a bound from there on."""
    keys = {**KEYS, "rounds": 5, "method": "fedavg", "checkpoint-every": 2, "evaluate-every": 0}
    command = ["run", "--workers", "1", "--out", str(tmp_path), "--name", "r"]
    command += [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    run = lambda *more: CliRunner().invoke(app, [*command, *more])  # noqa: E731
    bound, metrics = ("--set", "max-update-norm=10.0"), tmp_path / "r" / "metrics.jsonl"
    assert run().exit_code == 0
    before = [json.loads(line)["accuracy"] for line in metrics.read_text().splitlines()]
    assert "expected the round of a checkpoint: 4, 5, 6, got 1" in run("--from-round", "1").output
    assert "max-update-norm: expected 0.0" in run(*bound).output, "without going back, keys do not change"
    again = run(*bound, "--from-round", "4")
    assert again.exit_code == 0, again.output
    assert [json.loads(line)["accuracy"] for line in metrics.read_text().splitlines()] == before, "nobody was refused"
    assert "max-update-norm = 10.0" in (tmp_path / "r" / "config.toml").read_text()
    assert (tmp_path / "r" / "summary.json").exists()


NINE = {  # an upload of nine times the weights, or of nine times the change, in each round
    "weights": lambda sent, start: 9 * sent,
    "change": lambda sent, start: start + 9 * (sent - start),
    "flipped": lambda sent, start: start - 20 * (sent - start),
}


def attacking(name, change):
    """The method, with a client 1 that uploads ``change`` of what it would have sent and what it started from."""
    method = registry.get(name)

    class Attacking(resolve(method.client)):
        def train(self, state, download, plan):
            after, upload = super().train(state, download, plan)
            if self.trainer.client.name != "client-00001":
                return after, upload
            start = self.received_weights(state, download, plan) if name in WEIGHTS else {}
            tensors = {}
            for key, t in upload.tensors.items():
                values = t.values
                if values is not None:
                    begun = start[key].reshape(-1)[t.positions()] if key in start else np.zeros_like(values)
                    values = change(values, begun).astype(np.float32)
                tensors[key] = replace(t, values=values)
            return after, replace(upload, tensors=tensors)

    return replace(method, client=Attacking)


WEIGHTS = ("fedavg", "fedprox", "fedadam", "fedem", "heterofl", "mtl", "feddst", "subfedavg", "pa3dfl")  # are uploaded
DIFFERENCES = ("fedpse", "fedstc", "fedscr", "pfedgate", "pfedhn")


# Every method with one attack; the other two with a method of each kind.
@pytest.mark.parametrize(
    ("name", "attack"),
    [*((name, "weights") for name in (*WEIGHTS, *DIFFERENCES)), *product(("fedavg", "fedpse"), ("change", "flipped"))],
)
def test_the_bound_is_on_what_a_client_changes(name, attack):
    """The norm of weights hides a change: nine times the weights of a model are within ten times their median."""
    observer = LedgerObserver()
    keys = {**KEYS, "max-update-norm": 3.0, "evaluate-every": 0}
    run_in_process(assemble(keys, attacking(name, NINE[attack])), observers=[observer])
    refused = {(entry.round, entry.client) for entry in observer.ledger if entry.status == "refused"}
    assert refused == {(1, "client-00001"), (2, "client-00001")}


@pytest.mark.parametrize("name", ["fedavg", "fedpse"])
def test_one_flipped_upload_does_not_end_the_run_for_everybody(name, caplog):
    """Without any option a sign-flipped update, 20 times as large, makes a model from which no client can train."""
    observer = LedgerObserver()
    keys = {**KEYS, "clients": 10, "rounds": 12, "evaluate-every": 0, "clip-gradient": 0.0}
    flipping = attacking(name, NINE["flipped"])
    del keys["partition.subsample"]
    strategy = run_in_process(assemble(keys, flipping), observers=[observer])
    assert strategy.progress.closed
    assert all(np.isfinite(w).all() for w in strategy.algorithm.model(strategy.progress.server).values())
    refused = {entry.client for entry in observer.ledger if entry.status == "refused"}
    assert refused >= {"client-00001"}, "by its own change, or as far above the median of a round that is repeated"


def test_a_tiny_change_of_one_client_moves_the_bound_to_the_next_one():
    """Not defended, and no further: the median of all is never below that of the others by more than one place."""
    honest = {"a": 1.0, "b": 1.1, "c": 3.2}
    assert too_large(honest, 3.0) == {}
    assert list(too_large({**honest, "liar": 0.0}, 3.0)) == ["c"]
    assert list(too_large({**honest, "d": 1.1, "liar": 0.0}, 3.0)) == []
    with_more = {"a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3}
    assert too_large({**with_more, "liar": 0.0}, 3.0) == {}


@pytest.mark.parametrize(("claimed", "share"), [(1000, 0.1), (1, 0.816)])
def test_who_claims_few_examples_comes_more_often_in_asynchronous_rounds(claimed, share, tmp_path):
    """Ten equal clients train at a time, of which one says how many examples it has; K = 5."""
    profile = tmp_path / "equal.toml"
    profile.write_text('name = "equal"\nstep-seconds.median = 0.5\ndown.median = 1e30\nup.median = 1e30\n')
    keys = {"method": "fedbuff", "dataset": "digits", "clients": 10, "clients-per-round": 0, "fedbuff.buffer": 5}
    assembly = assemble({**keys, "devices": str(profile)})
    server = assembly.method.make_server(assembly.setup)
    clients = {f"c{number}": ClientInfo(f"c{number}", claimed if number == 0 else 1000) for number in range(10)}
    state, jobs = server.joined(server.init(), list(clients.values())), Counter()
    sent = Payload(dense(assembly.setup.weights, server.layout, server.coding))
    for number in range(1, 41):
        names = server.participants(state, Plan(number))
        jobs.update(names)
        state, _ = server.aggregate(state, Sent([Upload(clients[name], sent) for name in names]), Plan(number))
    assert jobs["c0"] / jobs.total() == pytest.approx(share, abs=1e-3)
