"""The gated module: one model per example as the reference, its state, the mask of a batch and of a client."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from sepal import models
from sepal.errors import ModelError
from sepal.models.gated import GatedModule
from sepal.models.gated_layers import affine
from sepal.strategies.pfedgate.blocks import split
from sepal.strategies.pfedgate.knapsack import Knapsack
from sepal.training.multiply_adds import multiply_adds
from tests.models.gated import PLAIN, batch, gated


def with_gates(module, gates):
    """Have the module take these M' instead of the gate's."""
    module.sparse_weights = lambda x: (gates, (gates.detach() != 0).any(0).numpy())
    return module


def random_gates(blocks, rows, dtype=torch.float32, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.random((rows, len(blocks.names))) * (rng.random((rows, len(blocks.names))) < 0.6)
    values[:, blocks.first] = rng.uniform(0.1, 1, (rows, blocks.first.sum()))
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def one_model_per_example(plain, blocks, gates, x):
    """The reference: θ'_n = θ ⊗ M'_n in full for every example, entry by entry."""
    parameters = dict(plain.named_parameters())
    outputs = []
    for n, example in enumerate(x):
        row = gates[n if len(gates) > 1 else 0].repeat_interleave(torch.from_numpy(blocks.sizes))
        pieces = row.split([parameter.numel() for parameter in parameters.values()])
        scaled = {k: p * piece.view(p.shape) for (k, p), piece in zip(parameters.items(), pieces, strict=True)}
        outputs.append(functional_call(plain, scaled, example[None]))
    return torch.cat(outputs)


def compare(name, rows, parts, dtype, tolerance):
    module, blocks = gated(name, parts=parts)
    module.to(dtype)
    plain = PLAIN[name][0]().to(dtype)
    plain.load_state_dict(module.model.state_dict())
    x, gates = batch(name, dtype=dtype), random_gates(blocks, rows, dtype)
    weights = torch.randn(len(x), 1, dtype=dtype)
    outputs, gradients = [], []
    for forward, owner in (
        (lambda: with_gates(module, gates)(x), module.model),
        (lambda: one_model_per_example(plain, blocks, gates, x), plain),
    ):
        out = forward()
        parameters = dict(owner.named_parameters())
        computed = torch.autograd.grad((out.tanh() * weights).sum(), [gates, *parameters.values()])
        outputs.append(out)
        gradients.append(dict(zip(["M'", *parameters], computed, strict=True)))
    for key, actual, expected in [
        ("logits", *outputs),
        *((key, gradients[0][key], gradients[1][key]) for key in gradients[0]),
    ]:
        scale = expected.abs().max().clamp(min=1e-30)
        assert ((actual - expected).abs().max() / scale).item() <= tolerance, key


@pytest.mark.parametrize("parts", [2, 5, 7])
@pytest.mark.parametrize("name", PLAIN)
def test_each_example_has_its_own_model_exactly(name, parts):
    compare(name, 6, parts, torch.float64, 1e-13)


@pytest.mark.parametrize("name", PLAIN)
def test_each_example_has_its_own_model_in_single_precision(name):
    compare(name, 6, 5, torch.float32, 1e-5)
    module, blocks = gated(name)
    x, gates = batch(name), random_gates(blocks, 6).detach()
    reference = one_model_per_example(copy.deepcopy(plain_of(module, name)), blocks, gates, x)
    assert ((with_gates(module, gates)(x) - reference).abs().max() / reference.abs().max()).item() <= 1e-6


def test_the_norm_that_scales_rows_has_an_eps_above_zero_and_leaves_no_trace(monkeypatch):
    """torch 2.11 refuses eps = 0 in inference."""
    plain, eps_values = F.batch_norm, []
    monkeypatch.setattr(F, "batch_norm", lambda *args, **keys: eps_values.append(keys["eps"]) or plain(*args, **keys))
    x, scale, shift = torch.randn(3, 4, 5), torch.randn(3, 4), torch.zeros(3, 4)
    assert torch.equal(affine(x, scale, shift), x * scale[..., None])
    assert eps_values
    assert min(eps_values) > 0


def plain_of(module, name):
    plain = PLAIN[name][0]()
    plain.load_state_dict(module.model.state_dict())
    return plain


@pytest.mark.parametrize("name", PLAIN)
def test_a_batch_has_one_model_exactly(name):
    compare(name, 1, 5, torch.float64, 1e-13)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("name", PLAIN)
def test_without_gradients_rows_that_are_off_change_nothing(name, rows):
    module, blocks = gated(name)
    gates = random_gates(blocks, rows).detach()
    gates[:, ~blocks.first & (np.arange(len(blocks.names)) % 3 > 0)] = 0  # off for all examples
    with_gates(module, gates)
    full = module(batch(name))
    with torch.no_grad():
        torch.testing.assert_close(module(batch(name)), full.detach(), rtol=2e-6, atol=2e-6)


def test_inference_costs_what_rows_that_are_on_cost():
    # 10 rows of 8 weights, 5 blocks of two rows: with blocks 0 and 3 on, 4 rows of 10 are multiplied. With gradients
    # all are, since G's gradient takes in what is off. Two flops to a multiply-add.
    model = nn.Linear(8, 10, bias=False)
    blocks = split(models.layout(model), 5, 1.0)
    module = GatedModule(model, (8,), blocks.by_tensor(), Knapsack(blocks, 1.0))
    gates = torch.tensor([[0.5, 0, 0, 0.5, 0]])
    with_gates(module, gates)
    for grad, rows in ((False, 4), (True, 10)):
        with torch.set_grad_enabled(grad), FlopCounterMode(display=False) as counter:
            module(torch.ones(7, 8))
        assert counter.get_total_flops() == 2 * 7 * 8 * rows


@pytest.mark.parametrize("gating", ["batch", "client"])
@pytest.mark.parametrize("name", PLAIN)
def test_all_gates_at_one_are_the_plain_model_bit_for_bit(name, gating):
    module, blocks = gated(name, 1.0, gating=gating)
    plain, x = plain_of(module, name), batch(name)
    with_gates(module, torch.ones(1, len(blocks.names)))
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (plain, module.model)]
    for _ in range(3):
        for m, optimizer in zip((plain, module), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(m(x), torch.arange(6) % 2).backward()
            optimizer.step()
    for key, tensor in plain.state_dict().items():
        assert torch.equal(tensor, module.model.state_dict()[key]), key


def test_state_is_apart_and_theta_has_the_plain_names():
    module, blocks = gated("lenet5")
    names = list(module.state_dict())
    assert [name for name, _ in models.build("lenet5", (3, 32, 32), 10).named_parameters()] == list(
        module.model.state_dict()
    )
    assert all(name.startswith(("model.", "gate.")) for name in names)
    assert len(models.read_weights(module.gate)["pooled"]) == 2 * len(blocks.names)
    first = models.initial_weights(module.gate, 5)
    models.load_weights(module.gate, first)
    assert all(np.array_equal(first[name], array) for name, array in models.initial_weights(module.gate, 5).items())
    assert not np.array_equal(first["linear.weight"], models.initial_weights(module.gate, 6)["linear.weight"])


def test_torch_generator_is_left_as_it_was():
    model = PLAIN["digits-cnn"][0]()
    blocks = split(models.layout(model), 5, 0.5)
    before = torch.get_rng_state()
    first = GatedModule(model, (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    second = GatedModule(PLAIN["digits-cnn"][0](), (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert torch.equal(first.gate.linear.weight, second.gate.linear.weight)


def test_evaluation_leaves_what_training_remembers():
    module, _ = gated("digits-cnn")
    module(batch("digits-cnn"))
    on, ever = module.on, module.ever
    state = copy.deepcopy(module.state_dict())
    module.eval()
    with torch.no_grad():
        module(batch("digits-cnn", 9))
    assert module.on is on
    assert module.ever is ever
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())


def test_by_client_the_mask_is_the_mean_over_the_training_part():
    module, blocks = gated("digits-cnn", gating="client")
    train, test = batch("digits-cnn", 23), torch.randn(8, 1, 8, 8)
    module(train)  # by batch, and there are statistics
    module.eval()
    with torch.no_grad(), pytest.raises(ModelError, match=r"pool\(\) on the training part"):
        module(test)
    with torch.no_grad():
        mean = module.gate(train).mean(0)
    module.train()
    module.pool(train.split(5))  # as evaluation sees the data, whatever the mode
    assert module.gate.training
    module.eval()
    torch.testing.assert_close(module.gate.pooled, mean)
    with torch.no_grad():
        gates, on = module.sparse_weights(test)
        count = len(blocks.names)
        chosen = Knapsack(blocks, 0.5)(mean[None, count:].numpy())
        assert np.array_equal(on, chosen[0])
        torch.testing.assert_close(gates, mean[None, :count] * torch.from_numpy(chosen))
        torch.testing.assert_close(module(test)[:1], module(test[:1]))  # whatever else is in the batch
    module.train()
    module(train)
    assert not module.gate.pooled.any()


def test_by_batch_the_mask_is_that_of_the_mean_outputs():
    module, blocks = gated("digits-cnn", gating="batch")
    module.eval()
    x, count = batch("digits-cnn"), len(blocks.names)
    with torch.no_grad():
        gates, _ = module.sparse_weights(x)
        mean = module.gate(x).mean(0, keepdim=True)
    chosen = Knapsack(blocks, 0.5)(mean[:, count:].numpy())
    torch.testing.assert_close(gates, mean[:, :count] * torch.from_numpy(chosen))


@pytest.mark.parametrize("gating", ["sample", "batch", "client"])
def test_multiply_adds_count_the_gate_and_what_a_training_step_computes(gating):
    """The gate has 64 inputs and 2 · 40 outputs: forward, for its input and for its weight.

    By sample, the rows that a block border cuts are computed once more for each of their parts.
    """
    plain = sum(multiply_adds(PLAIN["digits-cnn"][0](), torch.zeros(1, 1, 8, 8)).values())
    module = gated("digits-cnn", gating=gating)[0]
    counts = multiply_adds(module, torch.zeros(1, 1, 8, 8))
    assert counts["gate.linear.weight"] == 3 * 64 * 80
    counted = sum(counts.values()) - counts["gate.linear.weight"]
    assert counted > plain if gating == "sample" else counted == plain
    x = batch("digits-cnn", 16)
    with FlopCounterMode(display=False) as step:
        module.train()(x).sum().backward()
    assert step.get_total_flops() == 2 * 16 * sum(counts.values())


def test_a_batch_of_one_cannot_train_and_can_be_evaluated():
    module, _ = gated("digits-cnn")
    assert module.least_batch == 2
    with pytest.raises(ModelError, match="batch: expected at least 2 examples to train a gate, got 1"):
        module(batch("digits-cnn", 1))
    assert module.eval()(batch("digits-cnn", 1)).shape == (1, 10)
