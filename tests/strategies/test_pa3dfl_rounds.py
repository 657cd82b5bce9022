"""Pa3dFL with ``personal = "local"`` over two rounds by hand: θ_v, biases and local head go on from round 1.

A convolution 1 → 4 of length 2, ReLU, a linear layer 12 → 4, ReLU, a head 4 → 3; p_min = 1/2. Two clients of widths 1
and 1/2. Everything is computed here in float64: recovered weights output by output, gradients by torch's autograd on
plain tensors, the eleven mixtures one by one.

By the paper's step each round trains from (θ_u as received, personal tensors as kept), and Algorithm 1 then searches α
again. So α never enters a training: what was mixed is only used to predict.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from sepal.method import ClientInfo, Trainer, Upload
from sepal.models.weights import layout
from sepal.rng import derive
from sepal.strategies.assembly import assemble
from sepal.strategies.pa3dfl.client import Pa3dFLClient
from sepal.strategies.pa3dfl.server import Pa3dFLServer
from tests.strategies.baselines import Sent
from tests.strategies.pa3dfl import FLAT

SEED, RATE, LAMBDA, EPOCHS = 3, 1.0, 0.05, 5
KEYS = {
    "batch-size": 100,
    "pa3dfl.personal": "local",
    "pa3dfl.least": 0.5,
    "pa3dfl.lambda": LAMBDA,
    "lr": RATE,
    "local-epochs": EPOCHS,
}
GENERAL = {"body.conv.theta_u": (4, 2), "body.fc.theta_u": (2, 2)}  # k²·R1 = 2·2 and 1·2, R2 = 2
FACTORS = {"body.conv.theta_v": (2, 2, 1), "body.fc.theta_v": (2, 2, 12)}  # T/R1 = 2 groups of (R2, inputs)
VARIANCE = {"body.conv.theta_v": 2 / 2, "body.fc.theta_v": 2 / 12}  # 2 / (inputs·k²); of θ_u 1 / R2
PLAIN = {"conv.weight": (4, 1, 2), "conv.bias": (4,), "fc.weight": (4, 12), "fc.bias": (4,)}
PLAIN |= {"head.weight": (3, 4), "head.bias": (3,)}
CLIENTS = {"wide": (1.0, 12), "narrow": (0.25, 7)}  # capacity, and number of training examples


def drawn(*shape, about):
    return derive(SEED, "test", about).standard_normal(shape, np.float32)


FIRST = {name: drawn(*shape, about=name) / 2 for name, shape in PLAIN.items()}  # W_0


def make():
    module = nn.Sequential()
    for name, layer in (("conv", nn.Conv1d(1, 4, 2)), ("relu", nn.ReLU()), ("flat", nn.Flatten())):
        module.add_module(name, layer)
    for name, layer in (("fc", nn.Linear(12, 4)), ("relu2", nn.ReLU()), ("head", nn.Linear(4, 3))):
        module.add_module(name, layer)
    return module


def data(name, examples):
    """Noisy examples; those of class c have 1 more at place c."""
    y = np.arange(examples) % 3
    return drawn(examples, 1, 4, about=name) + np.eye(4, dtype=np.float32)[y][:, None], y


# By hand


def factors(weights, width):
    """The initial personal tensors of a client: prefixes of those at width 1."""
    conv = 2 if width == 0.5 else 4
    return {
        "body.conv.theta_v": weights["body.conv.theta_v"][: conv // 2],
        "body.fc.theta_v": weights["body.fc.theta_v"][:, :, : 3 * conv],
        "body.conv.bias": FIRST["conv.bias"][:conv],
        "body.fc.bias": FIRST["fc.bias"],
        "local_head.weight": FIRST["head.weight"],
        "local_head.bias": FIRST["head.bias"],
    }


def initial():
    """Factors from the seed: N(0, 1/R2) for θ_u, He's variance for θ_v."""
    sizes = {name: np.sqrt(1 / 2) for name in GENERAL} | {name: np.sqrt(VARIANCE[name]) for name in FACTORS}
    shapes = GENERAL | FACTORS
    return {
        name: derive(SEED, "init", name).standard_normal(shapes[name], np.float32) * np.float32(size)
        for name, size in sizes.items()
    }


def double(arrays):
    return {name: torch.from_numpy(np.array(array)).double() for name, array in arrays.items()}


def recovered(t, head):
    """The plain model: output j·R1 + i of a layer is u_i·v_j, (k², inputs), and R1 = 2 in both."""
    plain = {f"{name}.bias": t[f"body.{name}.bias"] for name in ("conv", "fc")}
    for name, area in (("conv", 2), ("fc", 1)):
        u = t[f"body.{name}.theta_u"]
        rows = [(u[i * area : (i + 1) * area] @ v).T for v in t[f"body.{name}.theta_v"] for i in range(2)]
        plain[f"{name}.weight"] = torch.stack(rows) if area == 2 else torch.stack(rows)[:, :, 0]
    return plain | {f"head.{part}": t[f"{head}.{part}"] for part in ("weight", "bias")}


def features(plain, x):
    h = F.relu(F.conv1d(x, plain["conv.weight"], plain["conv.bias"])).flatten(1)
    return F.relu(h @ plain["fc.weight"].T + plain["fc.bias"])


def logits(plain, x):
    return features(plain, x) @ plain["head.weight"].T + plain["head.bias"]


def loss(t, x, y):
    """Of the global head, of the local head on detached features, and λ·Σ_i of u_iᵀu_i off its diagonal, squared.

    Only the convolution has a regulariser: its u_i are rows 2i and 2i + 1 of θ_u.
    """
    features_seen = features(recovered(t, "global_head"), x)
    local = features_seen.detach() @ t["local_head.weight"].T + t["local_head.bias"]
    total = F.cross_entropy(features_seen @ t["global_head.weight"].T + t["global_head.bias"], y) + F.cross_entropy(
        local, y
    )
    for u in t["body.conv.theta_u"].split(2):
        total = total + LAMBDA * 2 * (u[:, 0] @ u[:, 1]) ** 2
    return total


def trained(t, x, y):
    """Steps of SGD on all examples; the global head stays."""
    fixed = {name: tensor for name, tensor in t.items() if name.startswith("global_head")}
    for _ in range(EPOCHS):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in t.items() if name not in fixed}
        loss(leaves | fixed, x, y).backward()
        t = fixed | {name: leaf.detach() - RATE * leaf.grad for name, leaf in leaves.items()}
    return t


def chosen(received, after, x, y):
    """α of most correct predictions, then least loss: M_0 has the global head, M_1 the local one."""
    ranks, mixed = [], []
    for step in range(11):
        m0, m1 = recovered(received, "global_head"), recovered(after, "local_head")
        mixed.append({name: m0[name] + step / 10 * (m1[name] - m0[name]) for name in m0})
        z = logits(mixed[-1], x)
        ranks.append((int((z.argmax(1) == y).sum()), -float(F.cross_entropy(z, y))))
    best = ranks.index(max(ranks))
    assert sorted(ranks)[-2][0] < ranks[best][0] or ranks[best][1] - sorted(ranks)[-2][1] > 1e-4, "α is not clear"
    return best / 10, mixed[best]


# The method


def of_method():
    """The server of the method and its two clients. The validation parts are such that α is never 0 or 1."""
    setup = assemble({**FLAT, **KEYS, "seed": SEED}).setup
    setup = replace(setup, layout=layout(make()), weights=FIRST, make=make, input_shape=(1, 4))
    clients = {}
    for name, (capacity, examples) in CLIENTS.items():
        parts = [torch.from_numpy(part) for part in (*data(name, examples), *data(f"{name} validation 55", 20))]
        clients[name] = Pa3dFLClient(setup, Trainer(ClientInfo(name, examples, capacity), setup.config, *parts, make))
    return Pa3dFLServer(setup), clients


def close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(actual[name], tensor, rtol=1e-4, atol=1e-5, err_msg=name)


def test_two_rounds_of_two_widths_with_personal_tensors_kept_locally():
    """θ_u is the plain mean, although the clients have unlike numbers of examples. α: .3 and .9, then .8 and .6."""
    server, clients = of_method()
    state, states = server.init(), {name: client_algorithm.init() for name, client_algorithm in clients.items()}
    first = initial()
    general, alphas = double({name: first[name] for name in GENERAL}), []
    head = double({f"global_head.{part}": FIRST[f"head.{part}"] for part in ("weight", "bias")})
    personal = {name: double(factors(first, capacity**0.5)) for name, (capacity, _) in CLIENTS.items()}
    for number in (1, 2):
        plan, uploads, sent = server.plan(number), Sent(), []
        for name, client_algorithm in clients.items():
            x, xv = client_algorithm.trainer.x.double(), client_algorithm.trainer.x_validation.double()
            received = general | personal[name] | head
            after = trained(received, x, client_algorithm.trainer.y)
            alpha, mixed = chosen(received, after, xv, client_algorithm.trainer.y_validation)
            download = server.download(state, client_algorithm.trainer.client, plan)
            view = client_algorithm.predictor(states[name], download, plan)(client_algorithm.trainer.x_validation)
            np.testing.assert_allclose(view, logits(recovered(received, "global_head"), xv), rtol=1e-4, atol=1e-5)
            states[name], payload = client_algorithm.train(states[name], download, plan)
            uploads.append(Upload(client_algorithm.trainer.client, payload))
            personal[name] = {part: after[part] for part in personal[name]}
            close({part: tensor.dense() for part, tensor in payload.tensors.items()}, {p: after[p] for p in GENERAL})
            close(states[name].personal, personal[name])
            assert states[name].alpha == alpha
            close(states[name].model, mixed)
            view = client_algorithm.predictor(states[name], None, plan)(client_algorithm.trainer.x_validation)
            np.testing.assert_allclose(view, logits(mixed, xv), rtol=1e-4, atol=1e-5)
            sent.append(after)
            alphas.append(alpha)
        state, _ = server.aggregate(state, uploads, plan)
        general = {name: (sent[0][name] + sent[1][name]) / 2 for name in GENERAL}
        close(state.general, general)
    assert alphas == [0.3, 0.9, 0.8, 0.6]
