"""``fedpse.listing``: the paper's Appendix E as it runs, which is not its Algorithms 1-4."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.method import Trainer
from sepal.server.strategy import SepalStrategy
from sepal.strategies.assembly import assemble
from sepal.strategies.fedpse.server import FedPSEServer

KEYS = {
    "method": "fedpse",
    "dataset": "digits",
    "clients": 3,
    "partition.name": "lambda-mix",
    "partition.subsample": 240,
    "rounds": 2,
    "evaluate-every": 0,
    "optimizer": "adam",
    "lr": 0.001,
    "fedpse.listing": True,
}


@pytest.fixture(scope="module")
def watched_run():
    """Rounds as (uploads, states after), and the Adam step each fit ended with, by client."""
    rounds, steps = [], {}
    aggregate, fit = FedPSEServer.aggregate, Trainer.fit

    def watched(self, state, uploads, plan):
        after, metrics = aggregate(self, state, uploads, plan)
        rounds.append((self.flat, list(uploads), after, metrics))
        return after, metrics

    def counted(self, *args, optimizer=None, **keys):
        result = fit(self, *args, optimizer=optimizer, **keys)
        state = next(iter(optimizer.state.values()))
        steps.setdefault(self.client.name, []).append(int(state["step"]))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedPSEServer, "aggregate", watched)
        patch.setattr(Trainer, "fit", counted)
        strategy = run_in_process(assemble(KEYS))
    assert isinstance(strategy, SepalStrategy)
    return rounds, steps


def test_a_download_holds_what_the_client_sent_and_a_share_of_the_rest_in_each_tensor(watched_run):
    """M_s is the union of all supports, so it holds M_i: |M_i| + round((1 - d)·(|M_s| - |M_i|)), d of the tensor."""
    rounds, _ = watched_run
    flat, uploads, after, metrics = rounds[0]
    for upload in uploads:
        distances = []
        for parameter in flat.layout:
            sent = [
                other_upload.payload.tensors[parameter.name].dense().reshape(-1).astype(float)
                for other_upload in uploads
            ]
            shares = [
                np.isin(np.arange(parameter.size), o.payload.tensors[parameter.name].positions()) for o in uploads
            ]
            weights = [o.client.examples for o in uploads]
            total = sum(n * values for n, values in zip(weights, sent, strict=True))
            number = sum(n * share for n, share in zip(weights, shares, strict=True))
            update = np.divide(total, number, out=np.zeros(parameter.size), where=number > 0)
            sent_tensor = upload.payload.tensors[parameter.name]
            vector = sent_tensor.dense().reshape(-1)
            d = 0.5 - 0.5 * float(vector @ update) / float(np.linalg.norm(vector) * np.linalg.norm(update))
            distances.append(d)
            down = after.pending[upload.client.name][parameter.name]
            others = int((number > 0).sum()) - sent_tensor.nnz
            assert down.nnz == sent_tensor.nnz + round((1 - d) * others)
            assert np.isin(sent_tensor.positions(), down.positions()).all()
            np.testing.assert_allclose(down.values, update[down.positions()], rtol=1e-5)
        assert metrics[f"distance.{upload.client.name}"] == pytest.approx(np.mean(distances), rel=1e-5)


def test_the_optimizer_goes_on_where_the_last_round_ended(watched_run):
    _, steps = watched_run
    for first, second, *_ in steps.values():
        assert second == 2 * first


def test_the_algorithms_start_a_new_optimizer_each_round():
    steps = []
    fit = Trainer.fit

    def counted(self, *args, optimizer=None, **keys):
        steps.append(optimizer)
        return fit(self, *args, optimizer=optimizer, **keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "fit", counted)
        run_in_process(assemble({**KEYS, "fedpse.listing": False}))
    assert set(steps) == {None}
