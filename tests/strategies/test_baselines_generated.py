"""FLANC, pFedHN and MTL: two rounds beside independent NumPy, limit cases, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ModelError, RoundError
from sepal.protocol.payloads import seal
from sepal.storage.serialize import digest
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.pfedhn import Hyper, shapes
from tests.strategies.baselines import BASE, Sent, run
from tests.strategies.by_hand import data, gradients
from tests.strategies.federation import Federation

MLP = {"model": "tests.strategies.federation:mlp", "split.validation": 0.0}


# FLANC


def test_two_rounds_of_flanc_by_hand():
    """fc1's weight: R1 = 64/16 = 4 parts of the inputs, so W[o, 4a + i] = Σ_r u[i, r]·v[o, a, r], u 4 × 4.

    With D = uᵀu - I the pull is λ·mean(D²), whose gradient is λ·4uD/16. One client of width 1, two of width .5 (they
    differ in number of examples): u is the plain mean of three, all else of those of a width. Width .25 has nobody.
    """
    federation = Federation([1.0, 0.25, 0.3], method="flanc", **{"flanc.lambda": 0.3, **MLP})
    state = federation.server.init()
    w = {name: value.astype(np.float64) for name, value in state.weights.items()}
    u, head = "body.fc1.theta_u", "local_head"
    assert set(w) == {u} | {
        f"{level}/{name}"
        for level in ("0.25", "0.5", "0.75", "1")
        for name in ("body.fc1.theta_v", "body.fc1.bias", f"{head}.weight", f"{head}.bias")
    }
    for round in (1, 2):
        new = {name: [] for name in w}
        for host, level in zip(federation.hosts, ("1", "0.5", "0.5"), strict=True):
            x, y = data(host)
            v = w[f"{level}/body.fc1.theta_v"]
            plain = {
                "fc1.weight": np.einsum("ir,oar->oai", w[u], v).reshape(8, 64),
                "fc1.bias": w[f"{level}/body.fc1.bias"],
                "fc2.weight": w[f"{level}/{head}.weight"],
                "fc2.bias": w[f"{level}/{head}.bias"],
            }
            slope, _ = gradients(plain, np.arange(8), x, np.eye(10)[y])
            by_weight = slope["fc1.weight"].reshape(8, 16, 4)
            by_u = np.einsum("oai,oar->ir", by_weight, v) + 0.3 * 4 * w[u] @ (w[u].T @ w[u] - np.eye(4)) / 16
            by_v = np.einsum("oai,ir->oar", by_weight, w[u])
            new[u].append(w[u] - 0.5 * by_u)
            new[f"{level}/body.fc1.theta_v"].append(v - 0.5 * by_v)
            new[f"{level}/body.fc1.bias"].append(plain["fc1.bias"] - 0.5 * slope["fc1.bias"])
            new[f"{level}/{head}.weight"].append(plain["fc2.weight"] - 0.5 * slope["fc2.weight"])
            new[f"{level}/{head}.bias"].append(plain["fc2.bias"] - 0.5 * slope["fc2.bias"])
        w = {name: np.mean(new[name], axis=0) if new[name] else w[name] for name in w}
        before = state.weights
        state, _ = federation.round(state, round)
        for name, value in w.items():
            np.testing.assert_allclose(state.weights[name], value, rtol=1e-4, atol=2e-5, err_msg=f"{round} {name}")
        assert all(np.array_equal(state.weights[n], before[n]) for n in w if n.startswith(("0.25/", "0.75/")))


def test_only_the_basis_and_the_own_widths_coefficients_travel():
    federation = Federation([1.0, 0.25], method="flanc")
    state, _ = federation.round(federation.server.init(), 1)
    plan = federation.server.plan(2)
    wide, narrow = (federation.server.download(state, host.info, plan).tensors for host in federation.hosts)
    assert wide["body.conv2.theta_u"].shape == narrow["body.conv2.theta_u"].shape
    assert narrow["body.conv2.theta_v"].shape == (16, 8, 16)  # half of 32 outputs, half of 16 inputs in parts of 1
    assert wide["body.conv2.theta_v"].shape == (32, 16, 16)
    assert "global_head.weight" not in wide
    np.testing.assert_array_equal(wide["body.conv2.theta_u"].dense(), narrow["body.conv2.theta_u"].dense())


def test_flanc_refuses_what_does_not_fit_in_one_line():
    with pytest.raises(ModelError, match=r"width: expected a multiple of 0\.0625"):
        Federation([1.0], method="flanc", **{"flanc.widths": "0.3,1"})
    with pytest.raises(ModelError, match=r"capacity: expected at least 0\.0625"):
        Federation([0.05], method="flanc")
    with pytest.raises(ModelError, match="model: expected layers of the kinds convolution"):
        Federation([1.0], method="flanc", model="digits-cnn-bn").server.init()


# pFedHN


def relu(x):
    return np.maximum(x, 0)


def test_two_rounds_of_pfedhn_by_hand():
    """v_i (2), hidden 3, one more hidden layer: θ = H·relu'd features + c for each tensor.

    Each client takes one step of its own (lr .05, decay .01): Δθ = .05·(∇ + .01·θ). The server's steps, client by
    client: decay .1 is added to the gradient at the round's state, clipped at 2 with all parameters; momentum .5; rate
    .2. Momentum and decay move the other client's embedding, too.
    """
    keys = {"embedding": 2, "hidden": 3, "depth": 1, "rate": 0.2, "momentum": 0.5, "decay": 0.1, "clip": 2.0}
    keys |= {"steps": 1, "inner-rate": 0.05, "inner-momentum": 0.0, "inner-decay": 0.01}
    federation = Federation([1.0, 1.0], method="pfedhn", **{f"pfedhn.{k}": v for k, v in keys.items()}, **MLP)
    server = federation.server
    names = [host.info.name for host in federation.hosts]
    state = server.joined(server.init(), [host.info for host in federation.hosts])
    w = {name: value.astype(np.float64) for name, value in state.weights.items()}
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    sizes = {p.name: p.shape for p in federation.setup.layout}
    for round in (1, 2):
        start = {name: value.copy() for name, value in w.items()}
        for host, name in zip(federation.hosts, names, strict=True):
            x, y = data(host)
            v = start[f"embedding/{name}"]
            first = start["mlp.0.weight"] @ v + start["mlp.0.bias"]
            h = start["mlp.1.weight"] @ relu(first) + start["mlp.1.bias"]
            theta = {n: (start[f"head.{n}.weight"] @ h + start[f"head.{n}.bias"]).reshape(s) for n, s in sizes.items()}
            slope, _ = gradients(theta, np.arange(8), x, np.eye(10)[y])
            norm = np.sqrt(sum((g**2).sum() for g in slope.values()))
            change = {n: 0.05 * (slope[n] * min(1, 2 / norm) + 0.01 * theta[n]) for n in sizes}
            by = {n: np.zeros_like(value) for n, value in start.items()}
            for n in sizes:
                by[f"head.{n}.weight"], by[f"head.{n}.bias"] = np.outer(change[n], h), change[n].reshape(-1)
            by_h = sum(start[f"head.{n}.weight"].T @ change[n].reshape(-1) for n in sizes)
            by["mlp.1.weight"], by["mlp.1.bias"] = np.outer(by_h, relu(first)), by_h
            by_first = (start["mlp.1.weight"].T @ by_h) * (first > 0)
            by["mlp.0.weight"], by["mlp.0.bias"] = np.outer(by_first, v), by_first
            by[f"embedding/{name}"] = start["mlp.0.weight"].T @ by_first
            norm = np.sqrt(sum((g**2).sum() for g in by.values()))
            velocity = {n: 0.5 * velocity[n] + by[n] * min(1, 2 / norm) + 0.1 * value for n, value in w.items()}
            w = {n: value - 0.2 * velocity[n] for n, value in w.items()}
        state, _ = federation.round(state, round)
        for n, value in w.items():
            np.testing.assert_allclose(state.weights[n], value, rtol=1e-4, atol=2e-5, err_msg=f"{round} {n}")


def test_a_gradient_beyond_the_clip_is_scaled_to_it():
    keys = {"pfedhn.steps": 1, "pfedhn.momentum": 0.0, "pfedhn.decay": 0.0, "pfedhn.rate": 1.0, "pfedhn.clip": 1e-3}
    federation = Federation([1.0], method="pfedhn", **{**keys, "pfedhn.inner-rate": 100.0}, **MLP)
    state = federation.server.joined(federation.server.init(), [federation.hosts[0].info])
    after, metrics = federation.round(state, 1)
    assert metrics["hypernetwork.norm"] > 1e-3
    squares = sum(((after.weights[n].astype(np.float64) - w) ** 2).sum() for n, w in state.weights.items())
    assert np.sqrt(squares) == pytest.approx(1e-3, rel=1e-2)


def test_a_step_to_weights_that_are_not_finite_ends_the_run_with_its_name():
    """1e38 · 1 · 50 (the clip) is more than float32 holds."""
    keys = {"pfedhn.steps": 1, "pfedhn.rate": 1e38, "pfedhn.clip": 50.0, "pfedhn.inner-rate": 1e5}
    federation = Federation([1.0], method="pfedhn", **keys, **MLP)
    state = federation.server.joined(federation.server.init(), [federation.hosts[0].info])
    with pytest.raises(RoundError, match=r"round 1: the hypernetwork's step: expected finite weights .* got norms up"):
        federation.round(state, 1)


def test_the_embedding_has_one_entry_more_than_a_quarter_of_the_clients():
    layout = assemble({"method": "pfedhn"}).setup.layout
    assert shapes(layout, Hyper(), 10)["mlp.0.weight"] == (100, 3)
    assert shapes(layout, Hyper(), 100)["mlp.0.weight"] == (100, 26)
    assert [name for name in shapes(layout, Hyper(), 10) if name.startswith("mlp")][-1] == "mlp.3.bias"
    with pytest.raises(ConfigError, match=r"pfedhn\.embedding: expected a size"):
        shapes(layout, Hyper(), 0)


def test_a_hypernetwork_above_the_limit_is_refused_in_one_line():
    with pytest.raises(ModelError, match=r"hypernetwork: expected at most 1 MiB .* got 4"):
        Federation([1.0], method="pfedhn", **{"pfedhn.most-mib": 1})


def test_who_joins_late_has_an_embedding_from_its_name_which_never_leaves_the_server():
    federation = Federation([1.0, 1.0, 1.0], method="pfedhn", **{"pfedhn.steps": 1})
    infos = [host.info for host in federation.hosts]
    server, state = federation.server, federation.server.joined(federation.server.init(), infos_before(federation))
    state, _ = federation.round(state, 1, [0, 1])
    late = server.joined(state, infos)
    new = late.weights[f"embedding/{infos[2].name}"]
    np.testing.assert_array_equal(new, server.joined(server.init(), infos[2:]).weights[f"embedding/{infos[2].name}"])
    np.testing.assert_array_equal(
        late.weights[f"embedding/{infos[0].name}"], state.weights[f"embedding/{infos[0].name}"]
    )
    after, _ = federation.round(late, 2, [2])
    assert (after.weights[f"embedding/{infos[2].name}"] != new).all()
    content = seal(server.download(after, infos[2], server.plan(3))).data
    embeddings = [value for name, value in after.weights.items() if name.startswith("embedding/")]
    assert len(embeddings) == 3
    assert all(value.tobytes() not in content for value in embeddings)


def infos_before(federation):
    return [host.info for host in federation.hosts[:2]]


# MTL


def test_two_rounds_of_mtl_by_hand():
    """The gradient of F_i + λ·(‖W‖² + tr(WΩWᵀ)) by column i, by autograd, with W as it is when the round begins.

    In round 1 a client knows of no other column: W is its own, and Ω = (1 - 1)² = 0. In round 2 W has both.
    """
    federation = Federation([1.0, 1.0], method="mtl", **{"mtl.lambda": 0.05, **MLP})
    state = federation.server.init()
    models = [{n: v.astype(np.float64) for n, v in federation.setup.weights.items()} for _ in range(2)]
    names = list(models[0])
    for round in (1, 2):
        m = round
        omega = torch.eye(m, dtype=torch.float64) - torch.ones(m, m, dtype=torch.float64) / m
        omega, flat = omega @ omega, [np.concatenate([w[n].reshape(-1) for n in names]) for w in models]
        new = []
        for i, host in enumerate(federation.hosts):
            x, y = data(host)
            columns = [flat[i]] if m == 1 else flat
            matrix = torch.tensor(np.stack(columns, 1), requires_grad=True)
            (matrix.square().sum() + torch.trace(matrix @ omega @ matrix.T)).mul(0.05).backward()
            pull, at = matrix.grad[:, 0 if m == 1 else i].numpy(), 0
            slope, _ = gradients(models[i], np.arange(8), x, np.eye(10)[y])
            stepped = {}
            for n in names:
                size = models[i][n].size
                stepped[n] = models[i][n] - 0.5 * (slope[n] + pull[at : at + size].reshape(models[i][n].shape))
                at += size
            new.append(stepped)
        models = new
        state, _ = federation.round(state, round)
        for i, host in enumerate(federation.hosts):
            for n in names:
                column = state.columns[host.info.name][n]
                np.testing.assert_allclose(column, models[i][n], rtol=1e-4, atol=2e-5, err_msg=f"{round} {i} {n}")
                np.testing.assert_array_equal(federation.states[i].model[n], column)


def test_the_strength_is_that_of_the_script():
    """9,258 entries have 4 digits: 10⁻⁵."""
    federation = Federation([1.0], method="mtl")
    client = federation.hosts[0].algorithm
    zero = {p.name: np.zeros(p.shape, np.float32) for p in client.shared()}
    module = torch.nn.Module()
    module.fc2 = torch.nn.Linear(2, 2)
    client.trainer.network()
    hooks = client.pull({"fc2.weight": zero["fc2.weight"][:2, :2]}, 1)
    module.fc2.weight.grad = torch.zeros(2, 2)
    hooks.before_step(module)
    torch.testing.assert_close(module.fc2.weight.grad, 2e-5 * module.fc2.weight.detach())


def test_without_a_pull_mtl_is_local_training_bit_for_bit():
    """A strength of 1e-30 is none in float32."""
    mtl, local = run("mtl", **{"mtl.lambda": 1e-30}), run("local")
    assert mtl.report.accuracy["trained"] == local.report.accuracy["trained"]


def test_only_the_pulled_layers_travel():
    federation = Federation([1.0, 1.0], method="mtl", **{"mtl.layers": 1})
    state, _ = federation.round(federation.server.init(), 1)
    down = federation.download(state, 0, federation.server.plan(2))
    assert list(down.tensors) == ["fc2.weight", "fc2.bias"]
    other_column = state.columns[federation.hosts[1].info.name]["fc2.bias"]
    np.testing.assert_allclose(down.tensors["fc2.bias"].dense(), other_column / 2, rtol=1e-6)


def test_an_evicted_clients_embedding_and_its_momentum_are_gone():
    """All else of the hypernetwork stays; a name that the server does not know changes nothing."""
    federation = Federation([1.0, 1.0], method="pfedhn", **MLP)
    server, plan = federation.server, federation.server.plan(1)
    first = server.joined(server.init(), [host.info for host in federation.hosts])
    state, _ = server.aggregate(first, Sent(federation.trained(first, number, plan) for number in range(2)), plan)
    name = f"embedding/{federation.hosts[1].info.name}"
    assert name in state.weights
    left = server.evicted(state, [federation.hosts[1].info.name, "stranger"])
    assert set(state.weights) - set(left.weights) == set(state.momentum) - set(left.momentum) == {name}


def test_mtl_has_no_received_model():
    strategy = run_in_process(assemble({**BASE, "method": "mtl", "rounds": 1, "evaluate-every": 0}))
    assert "received" not in strategy.report.accuracy


def test_nobody_is_pulled_to_an_evicted_client_of_mtl():
    """W is as if it had never uploaded; a name that the server does not know changes nothing."""
    federation = Federation([1.0, 1.0, 1.0], method="mtl", **MLP)
    server, plan = federation.server, federation.server.plan(1)
    uploads = [federation.trained(server.init(), number, plan) for number in range(3)]
    state, _ = server.aggregate(server.init(), Sent(uploads), plan)
    without, _ = server.aggregate(server.init(), Sent([uploads[0], uploads[2]]), plan)
    left = server.evicted(state, [uploads[1].client.name, "stranger"])
    assert digest(left) == digest(without) != digest(state)
    names = [upload.client.name for upload in uploads]
    assert server.model(server.evicted(state, names)) == {}
