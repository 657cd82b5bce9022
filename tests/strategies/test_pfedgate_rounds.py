"""pFedGate over two rounds of one client by hand: the gate goes on from round 1, θ from what is received.

The model is one linear layer, 4 → 2. B = 4 cuts its weight of 8 entries into blocks of 2, the first always on, and its
bias of 2 into two blocks of 1. So L = 6, and θ' of an example is θ times M' block by block. All is computed here, in
float64, by torch's autograd on plain tensors: the norms from their definitions, the knapsack by trying all subsets.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sepal.method import ClientInfo, Payload, Plan, Trainer
from sepal.models.weights import layout
from sepal.rng import derive
from sepal.strategies.assembly import assemble
from sepal.strategies.pfedgate.client import PFedGateClient
from sepal.wire.tensors import whole
from tests.strategies.pfedgate import FLAT

SIZES = np.array([2, 2, 2, 2, 1, 1])
BLOCK = np.repeat(np.arange(6), SIZES)  # of each entry of the weight, then of the bias
KEYS = {"batch-size": 100, "local-epochs": 3, "lr": 0.5, "pfedgate.rate": 0.8, "pfedgate.blocks": 4, "lr-decay": 0.9}
SEED, EXAMPLES = 5, 9
TRAINED = ("norm.weight", "norm.bias", "norm.mean_weight", "norm.var_weight", "linear.weight", "linear.bias")
TRAINED += ("batch_norm.weight", "batch_norm.bias")


def drawn(*shape, about):
    return derive(SEED, "test", about).standard_normal(shape, np.float32)


def model(about):
    return {"fc.weight": drawn(2, 4, about=f"{about} w"), "fc.bias": drawn(2, about=f"{about} b")}


def of_method(**keys):
    """The client of the method; its W_0 is ``model("first")``."""

    def make():
        module = nn.Sequential()
        module.add_module("fc", nn.Linear(4, 2))
        return module

    setup = assemble({**FLAT, **KEYS, "seed": SEED, **keys}).setup
    setup = replace(setup, layout=layout(make()), weights=model("first"), make=make, input_shape=(4,))
    x, y = torch.from_numpy(drawn(EXAMPLES, 4, about="x")), torch.arange(EXAMPLES) % 2
    return PFedGateClient(setup, Trainer(ClientInfo("c", EXAMPLES), setup.config, x, y, x[:0], y[:0], make))


class ByHand:
    """A client as numbers: φ with its statistics, and the momentum of all that is trained."""

    def __init__(self, gating, keep, momentum):
        """φ⁰: norms at 1 and 0, statistics at 0 and 1, the linear layer uniform in ±1/√4 from the seed."""
        self.gating, self.momentum, self.velocity = gating, momentum, {}
        self.room = keep * SIZES.sum() - SIZES[0]
        ones, zeros, bounds = torch.ones, torch.zeros, {"linear.weight": (12, 4), "linear.bias": (12,)}
        self.gate = {"norm.weight": ones(1), "norm.bias": zeros(1), "norm.mean_weight": ones(3)}
        self.gate |= {"norm.var_weight": ones(3), "norm.running_mean": zeros(1), "norm.running_var": ones(1)}
        self.gate |= {
            name: torch.from_numpy(derive(SEED, "init", name).uniform(-0.5, 0.5, shape).astype(np.float32))
            for name, shape in bounds.items()
        }
        self.gate |= {"batch_norm.weight": ones(12), "batch_norm.bias": zeros(12)}
        self.gate |= {"batch_norm.running_mean": zeros(12), "batch_norm.running_var": ones(12)}
        self.gate = {name: tensor.double() for name, tensor in self.gate.items()}

    def outputs(self, phi, x, training):
        """M and G, (n, 6) each. In training, batch statistics are used, and a tenth of them enters the running ones.

        With one channel, instance and layer statistics are the same: those of an example's four entries. The running
        variance of BatchNorm is unbiased, that of the switchable norm is not.
        """

        def moved(name, value):
            self.gate[name] = 0.9 * self.gate[name] + 0.1 * value.detach()

        mean, var = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
        batch = (x.mean(), x.var(correction=0)) if training else (phi["norm.running_mean"], phi["norm.running_var"])
        a, b = phi["norm.mean_weight"].softmax(0), phi["norm.var_weight"].softmax(0)
        scaled = x - ((a[0] + a[1]) * mean + a[2] * batch[0])
        scaled = scaled / torch.sqrt((b[0] + b[1]) * var + b[2] * batch[1] + 1e-5)
        z = (scaled * phi["norm.weight"] + phi["norm.bias"]) @ phi["linear.weight"].T + phi["linear.bias"]
        of_z = phi["batch_norm.running_mean"], phi["batch_norm.running_var"]
        if training:
            of_z = z.mean(0), z.var(0, correction=0)
            moved("norm.running_mean", batch[0])
            moved("norm.running_var", batch[1])
            moved("batch_norm.running_mean", of_z[0])
            moved("batch_norm.running_var", z.var(0, correction=1))
        z = (z - of_z[0]) / torch.sqrt(of_z[1] + 1e-5)
        outputs = torch.sigmoid(z * phi["batch_norm.weight"] + phi["batch_norm.bias"])
        outputs = outputs.mean(0, keepdim=True) if self.gating == "batch" else outputs
        return outputs[:, :6], outputs[:, 6:]

    def chosen(self, importance):
        """The best of all subsets of the other five blocks that fit, for each row of G; no two may be close."""
        subsets = [(1, *others) for others in product((0, 1), repeat=5) if np.dot(others, SIZES[1:]) <= self.room]
        subsets = torch.tensor(subsets, dtype=torch.float64)
        values = importance.detach() @ subsets.T
        best = values.topk(min(2, len(subsets)), 1).values
        assert len(subsets) == 32 or (best[:, 0] - best[:, 1]).min() > 1e-4
        return subsets[values.argmax(1)]

    def logits(self, theta, phi, x, training):
        """Logits, and I*. M' = M·I*, where G's gradient is that of M·G."""
        m, g = self.outputs(phi, x, training)
        on = self.chosen(g)
        entries = torch.cat([theta["fc.weight"].flatten(), theta["fc.bias"]]) * (m * (on + g - g.detach()))[:, BLOCK]
        entries = entries.expand(len(x), -1)
        return torch.einsum("noi,ni->no", entries[:, :8].view(-1, 2, 4), x) + entries[:, 8:], on

    def train(self, start, x, y, number):
        """Three steps on all examples: θ, and the blocks that were on. A step leaves θ in blocks that are off."""
        theta, ever = {name: torch.from_numpy(array).double() for name, array in start.items()}, torch.zeros(6)
        for _ in range(3):
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
            phi = {name: tensor.clone().requires_grad_(name in TRAINED) for name, tensor in self.gate.items()}
            logits, on = self.logits(leaves, phi, x, training=True)
            F.cross_entropy(logits, y).backward()
            live, ever = on.sum(0) > 0, ever + on.sum(0)
            live = {"fc.weight": live[BLOCK[:8]].view(2, 4), "fc.bias": live[BLOCK[8:]]}
            for name, leaf in leaves.items():
                theta[name] = torch.where(live[name], self.stepped(name, leaf, 0.5 * 0.9 ** (number - 1)), theta[name])
            for name in TRAINED:
                self.gate[name] = self.stepped(name, phi[name], 0.8 * 0.9 ** (number - 1))
        return theta, ever > 0

    def stepped(self, name, leaf, rate):
        """w - rate·v, v = .9·v + g, or g itself without momentum."""
        if self.momentum:
            self.velocity[name] = self.momentum * self.velocity.get(name, 0) + leaf.grad
        return leaf.detach() - rate * self.velocity.get(name, leaf.grad)


def joined(theta):
    return np.concatenate([np.asarray(theta[name]).reshape(-1) for name in ("fc.weight", "fc.bias")])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kept", [True, False], ids=["optimizer kept", "optimizer anew"])
@pytest.mark.parametrize(("gating", "keep"), [("sample", 1.0), ("sample", 0.5), ("batch", 1.0), ("batch", 0.5)])
def test_the_second_round_goes_on_with_the_gate_of_the_first_and_starts_from_the_download(gating, keep, kept):
    """s = 1: all blocks are on. s = .5: 5 of 10 entries, so beside the first block at most one of 2 and one of 1.

    Round 2 receives another θ than the client has, and the closing view a third.
    """
    keys = {"pfedgate.gating": gating, "pfedgate.keep": keep, "pfedgate.keep-optimizer": kept, "momentum": 0.9}
    client, hand = of_method(**keys), ByHand(gating, keep, 0.9)
    x, y, unseen = client.trainer.x.double(), client.trainer.y, torch.from_numpy(drawn(5, 4, about="unseen"))
    state = client.init()
    for number, start in ((1, model("first")), (2, model("second"))):
        hand.velocity = hand.velocity if kept else {}
        theta, ever = hand.train(start, x, y, number)
        download = Payload({name: whole(array) for name, array in start.items()} if number > 1 else {})
        state, sent = client.train(state, download, Plan(number))
        assert ever.all() or keep < 1
        assert sent.tensors["blocks"].mask().tolist() == ever.tolist()
        close(sent.tensors["delta"].dense(), joined(theta) - joined(start))
        close(joined(state.model), joined(theta))
        assert state.gate.keys() == {*hand.gate, "pooled"}
        for name, expected in hand.gate.items():
            close(state.gate[name], expected)
        velocity = {f"{'model' if name in start else 'gate'}.{name}": v for name, v in hand.velocity.items() if kept}
        assert state.optimizer.keys() == {f"momentum_buffer/{name}" for name in velocity}
        for name, expected in velocity.items():
            close(state.optimizer[f"momentum_buffer/{name}"], expected)
        for received in (model("third"), None):
            download = received and Payload({name: whole(array) for name, array in received.items()})
            logits = client.predictor(state, download, Plan(number + 1))(unseen)
            used = {name: torch.from_numpy(array).double() for name, array in received.items()} if received else theta
            close(logits, hand.logits(used, hand.gate, unseen.double(), training=False)[0])
