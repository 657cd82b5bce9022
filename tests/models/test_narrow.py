"""The cut model computes what the masked full model does, forward and backward, and it is really smaller."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sepal import models
from sepal.errors import ModelError
from sepal.masks.cuts import Cut, parameters, windows
from sepal.rng import derive


def group_norm_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, stride=2, padding=2, dilation=2, bias=False, padding_mode="circular"),
        nn.GroupNorm(6, 12, eps=0.1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 10),
        nn.ReLU(),
        nn.Linear(10, 3),
    )


def shipped(name, shape, classes):
    return lambda: models.build(name, shape, classes)


MODELS = {
    "lenet5-bn": (shipped("lenet5-bn", (3, 32, 32), 10), (3, 32, 32)),
    "mnist-cnn-bn": (shipped("mnist-cnn-bn", (1, 28, 28), 10), (1, 28, 28)),
    "lenet5": (shipped("lenet5", (3, 32, 32), 10), (3, 32, 32)),
    "digits-cnn": (shipped("digits-cnn", (1, 8, 8), 10), (1, 8, 8)),
    "har-cnn": (shipped("har-cnn", (9, 128), 6), (9, 128)),
    "har-mlp": (shipped("har-mlp", (9, 128), 6), (9, 128)),
    "GroupNorm": (group_norm_cnn, (1, 8, 8)),
}


def any_channels(groups, rng):
    """Return a random set of every group, of whole units."""
    kept = {}
    for group in groups:
        units = np.sort(rng.choice(group.size // group.unit, max(1, group.size // group.unit // 2), replace=False))
        kept[group.name] = (units[:, None] * group.unit + np.arange(group.unit)).reshape(-1)
    return kept


CHOICES = {
    "prefix": lambda groups: windows(groups, 0.4),
    "rolled": lambda groups: windows(groups, 0.6, 5, rounding="down"),
    "any": lambda groups: any_channels(groups, derive(0, "test-cuts")),
    "convolutions": lambda groups: any_channels(
        [g for g in groups if g.name.startswith("conv")], derive(1, "test-cuts")
    ),
}


def trained_looking(make, seed):
    """Return the model with random values in norms and statistics, which at first are the same for every channel."""
    module = make()
    rng = derive(seed, "test-weights")
    weights = models.initial_weights(module, seed)
    for name, array in weights.items():
        if array.ndim == 1:
            weights[name] = rng.uniform(0.2, 1.5, array.shape).astype(np.float32)
    models.load_weights(module, weights)
    return module


def without(module, cut, groups):
    """Return a copy in which every removed channel's row, bias, scale and shift are 0; what reads it is as it was."""
    masks, weights = cut.masks(), models.read_weights(module)
    for group in groups:
        for axis in group.axes:
            if axis.axis == 0 and "running" not in axis.tensor:
                gone = ~masks[axis.tensor].any(axis=tuple(range(1, masks[axis.tensor].ndim)))
                weights[axis.tensor][gone] = 0
    copied = copy.deepcopy(module)
    models.load_weights(copied, weights)
    return copied


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_cut_model_computes_what_the_masked_model_does(name, choice, training):
    make, shape = MODELS[name]
    module = trained_looking(make, 3)
    groups = models.coupling(module)
    cut = Cut(models.layout(module), groups, CHOICES[choice](groups))
    masked, small = without(module, cut, groups), models.cut_model(lambda: copy.deepcopy(module), cut)
    x = torch.from_numpy(derive(4, "test-inputs").standard_normal((5, *shape), np.float32))
    y, outputs = torch.tensor([0, 1, 2, 1, 0]), []
    for model in (masked, small):
        model.train(training)
        logits = model(x)
        functional.cross_entropy(logits, y).backward()
        outputs.append((logits.detach().numpy(), {n: p.grad.numpy() for n, p in model.named_parameters()}))
    (logits, gradients), (small_logits, small_gradients) = outputs
    assert np.abs(logits).max() > 0.01
    close(small_logits, logits)
    for tensor, gradient in cut.take(gradients).items():
        close(small_gradients[tensor], gradient)
    # Running statistics of what is kept are the same, too, after a batch in training and without one.
    after, small_after = cut.take(models.read_weights(masked)), models.read_weights(small)
    for tensor in after:
        if "running" in tensor:
            close(small_after[tensor], after[tensor])


@pytest.mark.parametrize("name", MODELS)
def test_the_cut_model_is_smaller_and_keeps_names_and_values(name):
    make, _ = MODELS[name]
    module = trained_looking(make, 5)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked.fill_(1)
    groups = models.coupling(module)
    cut = Cut(models.layout(module), groups, windows(groups, 0.5))
    small = models.cut_model(lambda: copy.deepcopy(module), cut)
    assert models.layout(small) == cut.layout
    assert list(small.state_dict()) == list(module.state_dict())
    assert sum(parameter.numel() for parameter in small.parameters()) == parameters(cut.layout) < parameters(cut.full)
    expected = cut.take(models.read_weights(module))
    for tensor, array in models.read_weights(small).items():
        np.testing.assert_array_equal(array, expected[tensor])
    counters = [t for t in small.state_dict() if t.endswith("num_batches_tracked")]
    assert all(small.state_dict()[t] == module.state_dict()[t] == 1 for t in counters)
    put = cut.put(expected, models.read_weights(module))
    for tensor, array in models.read_weights(module).items():
        np.testing.assert_array_equal(put[tensor], array)


def test_settings_of_a_layer_outlive_the_cut():
    def make():
        module = group_norm_cnn().eval()
        module[0].requires_grad_(False)
        return module.double()

    groups = models.coupling(make())
    full = make()
    before = torch.get_rng_state()
    small = models.cut_model(lambda: full, Cut(models.layout(full), groups, windows(groups, 0.5)))
    assert torch.equal(torch.get_rng_state(), before)
    assert not small[0].weight.requires_grad
    assert not small[0].training
    assert small[0].weight.dtype == torch.float64
    assert small[4].bias is None
    assert small[4].padding_mode == "circular"
    assert (small[4].stride, small[4].dilation) == ((2, 2), (2, 2))
    assert (small[5].num_groups, small[5].num_channels, small[5].eps) == (3, 6, 0.1)


def test_a_cut_of_another_model_is_refused():
    module = models.build("lenet5", (3, 32, 32), 10)
    cut = Cut(models.layout(module), models.coupling(module), {})
    with pytest.raises(ModelError, match="cut: expected one of the tensors of MnistCnn, got one of another model"):
        models.cut_model(shipped("mnist-cnn", (1, 28, 28), 10), cut)


def test_nothing_is_replaced_where_nothing_is_cut():
    module = models.build("lenet5-bn", (3, 32, 32), 10)
    layers = list(module.children())
    small = models.cut_model(lambda: module, Cut(models.layout(module), models.coupling(module), {}))
    assert all(layer is original for layer, original in zip(small.children(), layers, strict=True))


@pytest.mark.parametrize("name", ["lenet5", "lenet5-bn"])
def test_multiply_adds_fall_as_sub_fedavg_counts_them(name):
    # Outputs × inputs × 5 × 5 kernel × places: 6 · 3 · 25 · 28² + 16 · 6 · 25 · 10²; the maps are then 5 × 5.
    convolutions = 6 * 3 * 25 * 28**2 + 16 * 6 * 25 * 10**2
    assert convolutions + 400 * 120 + 120 * 84 + 84 * 10 == 651_720
    assert 3 * 3 * 25 * 28**2 + 8 * 3 * 25 * 10**2 + 200 * 120 + 120 * 84 + 84 * 10 == 271_320
    module, example = models.build(name, (3, 32, 32), 10), torch.zeros(1, 3, 32, 32)
    cut = Cut(models.layout(module), models.coupling(module), {"conv1": np.arange(3), "conv2": np.arange(1, 16, 2)})
    small = models.cut_model(shipped(name, (3, 32, 32), 10), cut)
    counts = [models.forward_multiply_adds(model, example) for model in (module, small)]
    assert [sum(count.values()) for count in counts] == [651_720, 271_320]
    assert counts[1]["conv2.weight"] == 8 * 3 * 25 * 10**2
    assert round(651_720 / 271_320, 2) == 2.40
    alone = [sum(of for tensor, of in count.items() if tensor.startswith("conv")) for count in counts]
    assert alone == [592_800, 236_400]  # 2.51, what the paper says that it counts
    # Weights and biases: 3 · 76 + 8 · 76 + 120 · 201 + 84 · 121 + 10 · 85, and scale and shift of 11 norms.
    assert parameters(cut.layout) == 35_970 + (22 if name.endswith("bn") else 0)


def test_multiply_adds_of_pa3dfls_table():
    # Table 2, full CNN with 10 classes: 64 · 3 · 25 · 28² + 64² · 25 · 10² + 1600 · 384 + 384 · 192 + 1920.
    module = models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10)
    before = copy.deepcopy(module.state_dict())
    assert sum(models.forward_multiply_adds(module, torch.zeros(1, 3, 32, 32)).values()) == 14_693_248
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_multiply_adds_are_counted_without_touching_statistics():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    assert models.forward_multiply_adds(module, torch.zeros(7, 4)) == {"0.weight": 12, "2.weight": 6}
    assert module[1].num_batches_tracked == 0
    assert module.training
