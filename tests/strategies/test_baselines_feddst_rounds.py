"""FedDST over three rounds by hand: the masks of a round are those that the round before left.

Eight weights and a bias, four weights kept. Round 1 only trains. Rounds 2 and 3 readjust: each client prunes its
smallest kept weight and grows the free entry with the largest gradient. Everything is computed here in NumPy, in
float64; messages go over the wire.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, RunSetup, Trainer, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines import feddst
from tests.strategies.baselines import BASE, Sent

FIRST = np.array([0.3, 1.0, -0.1, 0.7, 1.3, 0.0, 0.2, 0.8])  # the first mask is {1, 3, 4, 7}
KEPT, RATE = 4, 0.4
DATA = {  # x (n, 8), and labels
    "a": ([[-0.7, 0.7, -3.0, 1.5, -0.9, 0.1, 0.5, -0.8]], [1]),
    "b": ([[-2.2, -0.6, -1.0, 0.2, 0.0, 0.8, -1.1, 0.2], [-0.8, -0.2, 2.5, 1.1, 0.7, 0.1, 0.5, -1.1]], [0, 1]),
}
DATA = {name: (np.array(x), np.array(y)) for name, (x, y) in DATA.items()}


class Row(nn.Module):
    """The logits of x (n, 8) are (w·x + b, 0)."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(1, 8)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([x @ self.w.T + self.b, torch.zeros(len(x), 1)], 1)


def slope(w, b, x, y):
    """With z = w·x + b, the loss of class 0 is ln(1 + e^-z), its slope σ(z) - 1; of class 1 ln(1 + e^z), slope σ(z)."""
    by_logit = (1 / (1 + np.exp(-(x @ w + b))) - (y == 0)) / len(y)
    return by_logit @ x, by_logit.sum()


def trained(w, b, mask, data, steps):
    """Steps of SGD on all examples; what is masked stays 0."""
    for _ in range(steps):
        by_w, by_b = slope(w, b, *data)
        w, b = (w - RATE * by_w) * mask, b - RATE * by_b
    return w, b


def of(indices):
    mask = np.zeros(8, bool)
    mask[list(indices)] = True
    return mask


def client(w, b, mask, data, after, readjust):
    """A client's weights and mask after two epochs; ``after`` of them follow where it readjusts."""
    w, b = trained(w, b, mask, data, 2 - after if readjust else 2)
    if not readjust:
        return w, b, mask, None, None
    positions = np.flatnonzero(mask)
    gone = positions[np.abs(w[positions]).argmin()]
    left = of(set(positions) - {gone})
    free = np.flatnonzero(~left)  # what was just pruned is free, too
    grown = free[np.abs(slope(w, b, *data)[0][free]).argmax()]
    mask = left | of([grown])
    w, b = trained(w * left, b, mask, data, after)  # what is grown starts at 0, also where it was just pruned
    return w, b, mask, gone, grown


def mean(sent):
    """Each entry's mean over the clients that kept it, weighted by n; and the union of their masks."""
    total = sum(n * w for n, w, _, _ in sent)
    weight = sum(n * mask for n, _, mask, _ in sent)
    bias = sum(n * b for n, _, _, b in sent) / sum(n for n, *_ in sent)
    return np.divide(total, weight, out=np.zeros(8), where=weight > 0), bias, weight > 0


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def of_method(after):
    """The server of the method and its two clients."""
    config = assemble({**BASE, "method": "feddst", "lr": RATE, "optimizer": "sgd", "local-epochs": 2}).setup.config
    hyper = feddst.Hyper(keep=0.5, fraction=0.25, train_after=after, readjust_every=1, until=3)
    layout = Parameter("w", (1, 8), Role.WEIGHT), Parameter("b", (1,), Role.BIAS)
    setup = RunSetup(layout, {"w": FIRST[None].astype(np.float32), "b": np.zeros(1, np.float32)}, config, hyper)
    clients = {}
    for name, arrays in DATA.items():
        x, y = torch.from_numpy(arrays[0]).float(), torch.from_numpy(arrays[1])
        clients[name] = feddst.FedDSTClient(setup, Trainer(ClientInfo(name, len(y)), config, x, y, x[:0], y[:0], Row))
    return feddst.FedDSTServer(setup), clients


@pytest.mark.parametrize("after", [0, 1])
def test_three_rounds_of_two_clients_two_of_them_readjusting(after):
    """In round 2 both prune 3 and grow 2. In round 3 both prune 2; a grows it again, b grows 0.

    With ``after`` = 0 a grown weight is sent as 0, and with 1 after one step from 0, also a's 2, which was not 0.
    The server keeps the four largest means of all that any client kept, ties by the lowest index: with ``after`` = 0
    those of 0 and 2 are both 0 in round 3, and 0 stays.
    """
    server, clients = of_method(after)
    state, states = server.init(), {name: client_algorithm.init() for name, client_algorithm in clients.items()}
    mask = of(np.argsort(-np.abs(FIRST))[:KEPT])
    w, b, moves, supports = FIRST * mask, 0.0, [], []
    for number in (1, 2, 3):
        plan, uploads, sent = server.plan(number), Sent(), []
        for name, client_algorithm in clients.items():
            info, give = client_algorithm.trainer.client, server.newcomer if number == 1 else server.download
            download = unseal(seal(give(state, info, plan)), client_algorithm.download_schema(states[name], plan))
            states[name], payload = client_algorithm.train(states[name], download, plan)
            uploads.append(Upload(info, unseal(seal(payload), server.upload_schema(state, info, plan))))
            weights, bias, client_mask, *move = client(w, b, mask, DATA[name], after, readjust=number > 1)
            tensors = uploads[-1].payload.tensors
            assert tensors["w"].positions().tolist() == np.flatnonzero(client_mask).tolist()
            close(tensors["w"].dense()[0], weights)
            close(tensors["b"].dense(), [bias])
            close(states[name].model["w"][0], weights)
            sent.append((len(DATA[name][1]), weights, client_mask, bias))
            moves.append(move)
        before, (w, b, union) = mask, mean(sent)
        mask = of(np.argsort(-np.where(union, np.abs(w), -1), kind="stable")[:KEPT])
        w = w * mask
        state, metrics = server.aggregate(state, uploads, plan)
        assert state.masks["w"][0].tolist() == mask.tolist()
        close(state.weights["w"][0], w)
        close(state.weights["b"], [b])
        assert metrics == {"grown": (mask & ~before).sum()}
        supports.append(np.flatnonzero(mask).tolist())
    assert moves == [[None, None]] * 2 + [[3, 2], [3, 2], [2, 2], [2, 0]]
    assert supports == [[1, 3, 4, 7], [1, 2, 4, 7], [0, 1, 4, 7]]
