"""The gated module: one model per example as the reference, gradients, what it remembers."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import models
from models.gate import straight_through
from models.gated import GatedModule
from sepal.client.multiply_adds import multiply_adds
from sepal.errors import ModelError
from strategies.pfedgate.blocks import split
from strategies.pfedgate.knapsack import Knapsack


class SmallResidual(nn.Module):
    """All that a gated layer can be: strides, no bias, GroupNorm, a way around, two axes less at the end."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 8)
        self.shortcut = nn.Sequential(nn.Conv2d(2, 8, 1, stride=2))
        self.fc = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.stem(x)) + self.shortcut(x)).mean((2, 3)))


PLAIN = {
    "lenet5": (lambda: models.build("lenet5", (3, 32, 32), 10), (3, 32, 32)),
    "digits-cnn": (lambda: models.build("digits-cnn", (1, 8, 8), 10), (1, 8, 8)),
    "har-cnn": (lambda: models.build("har-cnn", (3, 40), 6), (3, 40)),
    "residual": (SmallResidual, (2, 9, 9)),
    "two rows": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 4)),  # borders cut a row twice
}


def gated(name, keep=0.5, parts=5, **options):
    torch.manual_seed(0)
    build, shape = PLAIN[name]
    model = build()
    blocks = split(models.layout(model), parts, keep)
    return GatedModule(model, shape, blocks.by_tensor(), Knapsack(blocks, keep), **options), blocks


def batch(name, size=6, dtype=torch.float32):
    return torch.randn(size, *PLAIN[name][1], dtype=dtype, generator=torch.Generator().manual_seed(3))


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
        found = torch.autograd.grad((out.tanh() * weights).sum(), [gates, *parameters.values()])
        outputs.append(out)
        gradients.append(dict(zip(["M'", *parameters], found, strict=True)))
    for key, mine, other in [
        ("logits", *outputs),
        *((key, gradients[0][key], gradients[1][key]) for key in gradients[0]),
    ]:
        scale = other.abs().max().clamp(min=1e-30)
        assert ((mine - other).abs().max() / scale).item() <= tolerance, key


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


def test_straight_through_of_the_worked_example():
    # d/dM' = 1: dM = I*, and dG = M as if M' were M·G: the dropped block has a gradient, too (the code gives it none).
    importance = torch.tensor([[0.6, 0.7, 0.3]], requires_grad=True)
    weights = torch.tensor([[0.5, 0.8, 0.4]], requires_grad=True)
    chosen = torch.tensor([[1.0, 0.0, 1.0]])
    sparse = straight_through(weights, importance, chosen)
    assert torch.equal(sparse, weights * chosen)
    sparse.sum().backward()
    assert torch.equal(importance.grad, weights.detach())
    assert torch.equal(weights.grad, chosen)


def numeric(function, tensor, index, step=1e-6):
    flat = tensor.data.view(-1)
    before = flat[index].item()
    values = []
    for value in (before + step, before - step):
        flat[index] = value
        values.append(function().item())
    flat[index] = before
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("gating", ["sample", "batch"])
@pytest.mark.parametrize("paths", [1, 2])
def test_gradients_against_finite_differences(gating, paths):
    # With one path M' = M·I*, which has true gradients for θ and φ while I* stays. With two, the gradient goes to G's
    # half as if I* were G, so finite differences exist for M's half of the linear layer only.
    module, blocks = gated("digits-cnn", gating=gating, paths=paths)
    module.double()
    x, y = batch("digits-cnn", dtype=torch.float64), torch.arange(6)
    count = len(blocks.names)

    def loss():
        return F.cross_entropy(module(x), y)

    loss().backward()
    rng = np.random.default_rng(0)
    names = ["model.conv1.weight", "model.fc1.weight", "model.fc2.bias", "gate.linear.weight", "gate.batch_norm.bias"]
    names += ["gate.norm.weight", "gate.norm.mean_weight", "gate.norm.var_weight"] if paths == 1 else []
    for name in names:
        parameter = module.get_parameter(name)
        half = parameter.numel() * count // len(parameter) if name.startswith("gate.linear") else parameter.numel()
        half = count if name == "gate.batch_norm.bias" else half
        for index in rng.choice(half, min(half, 5), replace=False):
            found = parameter.grad.view(-1)[index].item()
            assert found == pytest.approx(numeric(loss, parameter, index), rel=1e-4, abs=1e-8), (name, index)


@pytest.mark.parametrize("gating", ["sample", "batch"])
def test_gradient_of_importance_is_the_stated_one(gating):
    # dG_j = dM'_j · M_j for every block, on or off, then through sigmoid, mean and BatchNorm as any other output.
    module, blocks = gated("digits-cnn", gating=gating)
    x, count = batch("digits-cnn"), len(blocks.names)
    outputs = module.gate(x).detach().requires_grad_()
    module.gate.forward = lambda _: outputs
    kept = {}
    original = module.sparse_weights

    def keep(x):
        gates, on = original(x)
        gates.retain_grad()
        kept["gates"] = gates
        return gates, on

    module.sparse_weights = keep
    F.cross_entropy(module(x), torch.arange(6)).backward()
    weights = outputs[:, :count].detach()
    weights = weights if gating == "sample" else weights.mean(0, keepdim=True)
    expected = kept["gates"].grad * weights / (1 if gating == "sample" else len(x))
    torch.testing.assert_close(outputs.grad[:, count:], expected.expand(len(x), -1))
    off = (kept["gates"] == 0).any(0)
    assert (outputs.grad[:, count:][:, off] != 0).any()
    dropped = kept["gates"] == 0
    assert (outputs.grad[:, :count][dropped.expand(len(x), -1)] == 0).all()


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
    one = GatedModule(model, (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    two = GatedModule(PLAIN["digits-cnn"][0](), (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert torch.equal(one.gate.linear.weight, two.gate.linear.weight)


# By batch BatchNorm holds the mean outputs near the shift whatever the data, so training starts from M = .95.
@pytest.mark.parametrize(("gating", "shift"), [("sample", 0.0), ("batch", 3.0), ("client", 3.0)])
def test_trains_like_any_module(gating, shift):
    module, blocks = gated("digits-cnn", 0.8, gating=gating, shift=shift)
    x, y = batch("digits-cnn", 20), torch.arange(20) % 10
    optimizer = torch.optim.SGD(
        [
            {"params": module.model.parameters(), "lr": 1.0},
            {"params": module.gate.parameters(), "lr": 0.1},
        ]
    )
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        assert all(p.grad is not None for p in module.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert blocks.share(module.on) <= (1 if gating == "sample" else 0.8)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    ],
)
@pytest.mark.parametrize("gating", ["sample", "batch"])
def test_a_block_that_is_off_for_the_whole_batch_does_not_move(gating, optimizer):
    def train(hold):
        module, blocks = gated("digits-cnn", 0.3, gating=gating)
        stepper = optimizer(module.parameters())
        names = [name for name, _ in module.model.named_parameters()]
        violations = 0
        ever = np.zeros(len(blocks.names), bool)
        start = np.concatenate([models.read_weights(module.model)[name].ravel() for name in names])
        for number in range(4):
            before = np.concatenate([models.read_weights(module.model)[name].ravel() for name in names])
            stepper.zero_grad()
            x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(number))
            F.cross_entropy(module(x), torch.arange(3)).backward()
            if hold:
                module.hold()
            stepper.step()
            if hold:
                module.restore()
            after = np.concatenate([models.read_weights(module.model)[name].ravel() for name in names])
            violations += (blocks.changed(before, after) & ~module.on).sum()
            ever |= module.on
        assert np.array_equal(module.ever, ever)
        assert not ever.all()
        assert violations or not (blocks.changed(start, after) & ~ever).any()
        return violations

    assert train(hold=True) == 0
    assert train(hold=False) > 0


@pytest.mark.parametrize("gating", ["sample", "batch"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_block_that_is_off_for_the_whole_batch_has_no_gradient(name, gating):
    module, blocks = gated(name, 0.3, gating=gating)
    module(batch(name)).square().sum().backward()
    gradient = np.concatenate([p.grad.numpy().ravel() for p in module.model.parameters()])
    moved = blocks.changed(np.zeros_like(gradient), gradient)
    assert not module.on.all()
    assert not (moved & ~module.on).any()


def test_blocks_that_were_ever_on_in_a_round():
    # Three steps, each of which halves what is on and what is off: q = 1 − Π(1 − .5) = .5, .75, .875.
    model = nn.Linear(8, 8, bias=False)
    blocks = split(models.layout(model), 8, 1.0)
    number = np.arange(8)
    masks = iter([(number & bit) == 0 for bit in (1, 2, 4, 1)])
    module = GatedModule(model, (8,), blocks.by_tensor(), lambda values: next(masks)[None].repeat(len(values), 0))
    shares = []
    for _ in range(3):
        module(torch.randn(4, 8))
        shares.append(blocks.share(module.ever))
    assert shares == [0.5, 0.75, 0.875]
    module.ever[:] = False  # a new round
    module(torch.randn(4, 8))
    assert np.array_equal(module.ever, (number & 1) == 0)


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


def test_multiply_adds_count_the_gate():
    # The gate has 64 inputs and 2 · 40 outputs: forward, for its input and for its weight.
    plain = multiply_adds(PLAIN["digits-cnn"][0](), torch.zeros(1, 1, 8, 8))
    for gating in ("sample", "batch", "client"):
        counts = multiply_adds(gated("digits-cnn", gating=gating)[0], torch.zeros(1, 1, 8, 8))
        assert counts["gate.linear.weight"] == 3 * 64 * 80
        assert sum(counts.values()) == sum(plain.values()) + 3 * 64 * 80


def test_a_batch_of_one_cannot_train_and_can_be_evaluated():
    module, _ = gated("digits-cnn")
    assert module.least_batch == 2
    with pytest.raises(ModelError, match="batch: expected at least 2 examples to train a gate, got 1"):
        module(batch("digits-cnn", 1))
    assert module.eval()(batch("digits-cnn", 1)).shape == (1, 10)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: models.build("embedding-linear", (4,), 2, 10), "embedding: Embedding"),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), "1: BatchNorm2d"),
        (lambda: nn.Conv2d(4, 4, 3, groups=2), "Conv2d.*one group"),
        (Tied, "sizes that add up"),
        (Bare, "Bare"),
        (lambda: nn.LSTM(4, 4), "LSTM"),
    ],
)
def test_models_that_cannot_be_gated(model, words):
    module = model()
    blocks = split(models.layout(module), 5, 0.5)
    with pytest.raises(ModelError, match=words) as caught:
        GatedModule(module, (4,), blocks.by_tensor(), Knapsack(blocks, 0.5))
    assert "\n" not in str(caught.value)


def test_blocks_of_another_model_are_refused():
    blocks = split(models.layout(PLAIN["lenet5"][0]()), 5, 0.5)
    with pytest.raises(ModelError, match="sizes that add up to those of the model's parameters"):
        GatedModule(PLAIN["digits-cnn"][0](), (1, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))


def test_linear_layers_over_sequences_are_refused():
    model = nn.Linear(4, 3)
    blocks = split(models.layout(model), 5, 0.5)
    module = GatedModule(model, (5, 4), blocks.by_tensor(), Knapsack(blocks, 0.5))
    with pytest.raises(ModelError, match=r"linear layers on \(batch, features\) for a gate, got \(6, 5, 4\)"):
        module(torch.zeros(6, 5, 4))


def test_resnet_with_group_norm_can_be_gated():
    model = models.build("resnet18-gn", (3, 8, 8), 10)
    blocks = split(models.layout(model), 5, 0.5)
    module = GatedModule(model, (3, 8, 8), blocks.by_tensor(), Knapsack(blocks, 0.5))
    module(torch.randn(2, 3, 8, 8)).sum().backward()
    assert module(torch.randn(2, 3, 8, 8)).shape == (2, 10)
