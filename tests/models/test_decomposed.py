"""Decomposed layers and models: the worked numbers of Pa3dFL, recovery against loops, widths against each other."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import models
from models.decomposed import Decomposed, cut, initial_weights
from models.factors import DecomposedLayer, Decomposition, components, width_for
from sepal.errors import ModelError

CIFAR = (3, 32, 32)
SHIPPED = {
    "cnn-cifar100-pa3dfl": (CIFAR, 100),
    "cnn-fmnist-pa3dfl": ((1, 28, 28), 10),
    "cnn2-small": ((1, 28, 28), 10),
    "digits-cnn": ((1, 8, 8), 10),
    "mnist-cnn": ((1, 28, 28), 10),  # 10 and 20 channels: R1 = 1, and widths that do not divide
    "har-cnn": ((9, 128), 6),  # one-dimensional convolutions
    "har-mlp": ((9, 128), 6),
}
NORMED = "normed"
RESIDUAL = ("blocks.6.conv2", "blocks.6.shortcut.0", "blocks.7.conv2")


class Normed(nn.Module):
    """Convolutions without bias, a stride, padding, GroupNorm of 2 channels a group."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(16, 32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=2, dilation=2, bias=False),
            nn.GroupNorm(32, 64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.body(x))


def plain_model(name):
    if name == NORMED:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return Normed(), (3, 9, 9)
    shape, classes = SHIPPED[name]
    return models.build(name, shape, classes), shape


def built(name, width=1.0, **options):
    """The model at ``width`` with the first weights of seed 0, and a batch of two."""
    plain, shape = plain_model(name)
    first = initial_weights(Decomposed(plain, shape, **options), 0)
    model = Decomposed(plain, shape, width, **options)
    models.load_weights(model, cut(first, models.layout(model)))
    return model, torch.from_numpy(np.random.default_rng(0).standard_normal((2, *shape), np.float32))


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(module, *shape):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(shape))
    return counter.get_total_flops() // 2


def layers(model):
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, DecomposedLayer)}


# ------------------------------------------------------------------------------------------------- the paper's numbers


def test_table_2_counts_of_the_plain_model():
    plain = models.build("cnn-cifar100-pa3dfl", CIFAR, 10)
    # (3·25 + 1)·64 + (64·25 + 1)·64 + (1600 + 1)·384 + (384 + 1)·192 + (192 + 1)·10
    assert size(plain) == 4_864 + 102_464 + 614_784 + 73_920 + 1_930 == 797_962
    assert round(4 * size(plain) / 2**20, 3) == 3.044
    # outputs × inputs × kernel × positions: 32 - 4 = 28, pooled 14, 14 - 4 = 10, pooled 5
    by_layer = (64 * 3 * 25 * 28**2, 64 * 64 * 25 * 10**2, 1600 * 384, 384 * 192, 192 * 10)
    assert multiply_adds(plain, 1, *CIFAR) == sum(by_layer) == 14_693_248


def test_table_2_sizes_of_the_decomposed_model():
    """R1 = 4, 4, 24, 12 of 64, 64, 384, 192 outputs; R2 = 25 = max(min(3, 64), 25), 64, and R1 where linear."""
    plain = models.build("cnn-cifar100-pa3dfl", CIFAR, 10)
    general = 25 * 4 * 25 + 25 * 4 * 64 + 24 * 24 + 12 * 12  # θ_u: k²R1 × R2, the same at every width
    heads = 2 * (192 * 10 + 10)
    # θ_v: groups × R2 × inputs, of 16 groups at width 1; the first inputs and the last outputs are whole
    narrow = 1 * 25 * 3 + 1 * 64 * 4 + 1 * 24 * (4 * 25) + 16 * 12 * 24 + (4 + 4 + 24 + 192)
    half = 8 * 25 * 3 + 8 * 64 * 32 + 8 * 24 * (32 * 25) + 16 * 12 * 192 + (32 + 32 + 192 + 192)
    for capacity, personal, total, mebibytes in ((1 / 256, narrow, 21_043, 0.0803), (1 / 4, half, 221_376, 0.8445)):
        model = Decomposed(plain, CIFAR, width_for(capacity))
        assert size(model) == general + personal + heads == total
        assert 4 * total / 2**20 == pytest.approx(mebibytes, abs=5e-5)
        assert sum(p.size for p in model.general) == general
        assert sum(p.size for p in model.personal) == personal + heads // 2
    for width, share in ((1 / 16, 0.026), (1 / 8, 0.042), (1 / 2, 0.277)):  # more than p² at small widths
        assert round(size(Decomposed(plain, CIFAR, width)) / size(plain), 3) == share


def test_multiply_adds_at_half_width():
    """Per example: two convolutions, v then u of two linear layers, two heads; once a batch: two recoveries."""
    model, _ = built("cnn-cifar100-pa3dfl", 1 / 2)
    heads = 2 * 192 * 100
    example = 32 * 3 * 25 * 28**2 + 32 * 32 * 25 * 10**2 + (800 * 192 + 192 * 24) + (192 * 192 + 192 * 12) + heads
    batch = (4 * 25) * 25 * (8 * 3) + (4 * 25) * 64 * (8 * 32)  # (k²R1 × R2) · (R2 × groups·S)
    assert multiply_adds(model, 128, *CIFAR) == 128 * example + batch


@pytest.mark.parametrize(("width", "share"), [(1 / 16, 0.065), (1 / 4, 0.1025), (1 / 2, 0.2225), (1, 0.7025)])
def test_equation_13_share_of_a_convolution(width, share):
    """(k²·R1·R2 + p²·(T/R1)·R2·S)/(T·S·k²) with T = S = 64, k² = 25, R1 = 4, R2 = 64: .0625 + .64 p²."""
    layer = DecomposedLayer(nn.Conv2d(64, 64, 5, bias=False), round(64 * width), width)
    assert size(layer) / (64 * 64 * 25) == pytest.approx(share, abs=1e-12)


def test_personal_factors_of_a_square_convolution_are_sixteen_ninths_of_the_plain_weight():
    """T = S = 64, k² = 9, p = 1: R2 · (T/R1) · S = 64 · 16 · 64 entries of θ_v beside 64 · 64 · 9."""
    layer = DecomposedLayer(nn.Conv2d(64, 64, 3, bias=False), 64, 1.0)
    assert layer.theta_v.numel() / (64 * 64 * 9) == pytest.approx(16 / 9, abs=1e-12)


def test_a_decomposed_resnet18_is_larger_than_the_plain_one():
    """θ_u and θ_v of all convolutions at p = 1: 20.25 M parameters with both heads, against 11.17 M.

    19.0 M of them, with the 1 × 1 convolutions of the three shortcuts as they are. Decoders of rank 64 have 64 entries
    for each personal one: 5.0 GB; 4.7 GB without the shortcuts' θ_v.
    """
    plain = models.build("resnet18-gn", CIFAR, 10).to("meta")
    model = Decomposed(plain, CIFAR, whole=RESIDUAL)
    shortcuts = [layer for name, layer in layers(model).items() if "shortcut" in name]
    assert [(layer.rank, layer.inputs, layer.outputs) for layer in shortcuts] == [
        (64, 64, 128),
        (128, 128, 256),
        (256, 256, 512),
    ]
    factors = sum(layer.theta_u.numel() + layer.theta_v.numel() for layer in shortcuts)
    assert factors == (8 * 64 + 16 * 128 + 32 * 256) + 16 * (64**2 + 128**2 + 256**2)
    kept = 64 * 128 + 128 * 256 + 256 * 512
    assert size(plain) == 11_173_962
    assert size(model) == 20_247_688
    assert round((size(model) - factors + kept) / 1e6, 1) == 19.0
    personal = sum(p.size for p in model.personal)
    assert round(4 * 64 * personal / 1e9, 1) == 5.0
    assert round(4 * 64 * (personal - 16 * (64**2 + 128**2 + 256**2)) / 1e9, 1) == 4.7


def test_components_divide_the_outputs():
    assert [components(channels) for channels in (64, 192, 32, 16, 10, 1, 512)] == [4, 12, 2, 1, 1, 1, 32]
    assert components(100) == 5  # 6.25 → 6 → 5
    assert components(20, 1 / 4) == 5
    assert components(7, 1 / 2) == 1  # 3.5 → 4 (to even) → 1


def test_rank_of_a_layer():
    """Equation 5: max(min(S, T), k²) of a convolution, R1 of a linear layer."""
    plain = (nn.Conv2d(64, 16, 3), nn.Conv2d(16, 64, 3), nn.Conv2d(4, 16, 3), nn.Conv1d(4, 16, 5), nn.Linear(9, 32))
    inputs = (64, 16, 4, 4, 9)
    made = [DecomposedLayer(layer, count, 1.0) for layer, count in zip(plain, inputs, strict=True)]
    assert [layer.rank for layer in made] == [16, 16, 9, 5, 2]


# ------------------------------------------------------------------------------------------------------------ recovery


def filled(layer):
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape, np.float32)))
    return layer


@pytest.mark.parametrize("plain", [nn.Conv2d(12, 32, 3), nn.Conv1d(6, 32, 5), nn.Linear(12, 32)])
def test_recovered_weight_is_the_loop_over_u_i_v_j(plain):
    layer = filled(DecomposedLayer(plain, 6, 3 / 8, 1 / 8))
    u, v, weight = layer.theta_u, layer.theta_v, layer.weight()
    r1 = 4
    assert layer.components == r1
    assert weight.shape == (3 * r1, 6, *plain.weight.shape[2:])  # 3 of 8 groups, 6 of the inputs
    for j in range(3):
        for i in range(r1):
            product = u[i * layer.area : (i + 1) * layer.area] @ v[j]  # (k², R2) · (R2, S)
            expected = product.T.reshape(weight.shape[1:])
            torch.testing.assert_close(weight[j * r1 + i], expected)


@pytest.mark.parametrize("plain", [nn.Conv2d(12, 32, 3), nn.Linear(12, 32)])
def test_flancs_recovered_weight_is_the_loop_over_its_columns(plain):
    layer = filled(DecomposedLayer(plain, 6, 1 / 2, 1 / 4, Decomposition.FLANC))
    r1 = 3  # of the 12 inputs, of which two parts are kept
    assert layer.components == r1
    assert layer.theta_v.shape == (16, 2, layer.rank)
    weight = layer.weight()
    for o in range(layer.outputs):
        for part in range(2):
            column = layer.theta_u @ layer.theta_v[o, part]  # (k²R1,)
            for i in range(r1):
                expected = column[i * layer.area : (i + 1) * layer.area].reshape(weight.shape[2:])
                torch.testing.assert_close(weight[o, part * r1 + i], expected)


@pytest.mark.parametrize("decomposition", Decomposition)
@pytest.mark.parametrize("name", [*SHIPPED, NORMED])
def test_model_computes_what_the_recovered_plain_one_does(name, decomposition):
    model, batch = built(name, 1 / 4, decomposition=decomposition)
    for logits, head in zip(model(batch), ("global_head", "local_head"), strict=True):
        recovered = model.recovered(head)
        assert not layers(recovered)
        torch.testing.assert_close(recovered(batch), logits, rtol=1e-4, atol=1e-5)
    assert type(recovered) is type(plain_model(name)[0])


# -------------------------------------------------------------------------------------------------------------- widths


@pytest.mark.parametrize("width", [1 / 16, 3 / 16, 1 / 2, 15 / 16])
@pytest.mark.parametrize("name", [*SHIPPED, NORMED])
def test_cutting_a_full_model_is_building_it_narrower(name, width):
    """The recovered weights are the first entries of the full ones, along both axes, and so the outputs are those of a
    plain narrow network with these."""
    full, _ = built(name)
    narrow, batch = built(name, width)
    whole = full.recovered("local_head")
    expected = narrow.recovered("local_head")  # a plain model of the narrow shapes, filled from the full one
    models.load_weights(expected, cut(models.read_weights(whole), models.layout(expected)))
    torch.testing.assert_close(expected(batch), narrow(batch)[1], rtol=1e-4, atol=1e-5)
    *hidden, last = layers(narrow)
    assert layers(narrow)[last].outputs == layers(full)[last].outputs
    for layer_name in hidden:
        layer, r1 = layers(narrow)[layer_name], components(layers(full)[layer_name].outputs)
        assert layer.outputs == r1 * max(1, round(width * layers(full)[layer_name].outputs / r1))
    first = next(iter(layers(full)))
    assert layers(narrow)[first].inputs == layers(full)[first].inputs


def test_general_tensors_are_the_same_at_every_width_and_names_are_stable():
    full, _ = built("cnn-cifar100-pa3dfl")
    narrow, _ = built("cnn-cifar100-pa3dfl", 1 / 16)
    assert narrow.general == full.general
    assert [(p.name, p.shape) for p in full.general] == [
        ("body.conv1.theta_u", (100, 25)),
        ("body.conv2.theta_u", (100, 64)),
        ("body.fc1.theta_u", (24, 24)),
        ("body.fc2.theta_u", (12, 12)),
    ]
    assert [(p.name, p.shape) for p in narrow.personal] == [
        ("body.conv1.theta_v", (1, 25, 3)),
        ("body.conv1.bias", (4,)),
        ("body.conv2.theta_v", (1, 64, 4)),
        ("body.conv2.bias", (4,)),
        ("body.fc1.theta_v", (1, 24, 100)),
        ("body.fc1.bias", (24,)),
        ("body.fc2.theta_v", (16, 12, 24)),
        ("body.fc2.bias", (192,)),
        ("local_head.weight", (100, 192)),
        ("local_head.bias", (100,)),
    ]
    assert [p.name for p in full.personal] == [p.name for p in narrow.personal]
    names = {p.name for p in models.layout(full)} - {p.name for p in (*full.general, *full.personal)}
    assert names == {"global_head.weight", "global_head.bias"}


def test_channels_in_a_group_of_a_norm_stay_the_same():
    model, _ = built(NORMED, 3 / 16)
    first, second = (layer for layer in model.modules() if isinstance(layer, nn.GroupNorm))
    assert (first.num_channels, first.num_groups) == (6, 3)  # 32 channels in 16 groups before
    assert (second.num_channels, second.num_groups) == (12, 6)
    assert "body.body.1.weight" in {p.name for p in model.personal}


class OverTokens(nn.Module):
    """Linear layers on (batch, tokens, features), and their mean over the tokens."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 32), nn.Linear(32, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.two(self.one(x).relu()).mean(1))


@pytest.mark.parametrize("decomposition", Decomposition)
def test_a_linear_layers_inputs_are_its_last_axis(decomposition):
    model = filled(Decomposed(OverTokens(), (3, 6), 1 / 4, decomposition=decomposition))
    assert layers(model)["body.two"].inputs == 8
    batch = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 3, 6), np.float32))
    torch.testing.assert_close(model.recovered("local_head")(batch), model(batch)[1], rtol=1e-4, atol=1e-4)


def test_a_residual_network_with_its_last_sum_whole():
    plain = models.build("resnet18-gn", CIFAR, 10)
    with pytest.raises(ModelError, match=r"layers that fit each other at width 0\.25"):
        Decomposed(plain, CIFAR, 1 / 4)
    model = Decomposed(plain, CIFAR, 1 / 4, whole=RESIDUAL)
    filled(model)
    batch = torch.from_numpy(np.random.default_rng(1).standard_normal((2, *CIFAR), np.float32))
    assert layers(model)["body.blocks.6.conv1"].outputs == 128
    assert layers(model)["body.blocks.7.conv2"].outputs == 512
    torch.testing.assert_close(model.recovered("local_head")(batch), model(batch)[1], rtol=1e-3, atol=1e-3)


def test_on_the_device_meta_only_shapes_are_made():
    plain, shape = plain_model("cnn-fmnist-pa3dfl")
    model = Decomposed(plain.to("meta"), shape, 1 / 2)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.personal == built("cnn-fmnist-pa3dfl", 1 / 2)[0].personal


@pytest.mark.parametrize(
    ("capacity", "least", "width"),
    [
        (1, 1 / 16, 1),
        (0.99, 1 / 16, 15 / 16),
        (1 / 4, 1 / 16, 1 / 2),
        (0.01, 1 / 16, 1 / 16),  # p = .1, lowered
        (1 / 256, 1 / 16, 1 / 16),
        (0.09, 0.1, 0.3),
        (0.01, 0.1, 0.1),  # .1² is 0.010000000000000002 in binary
        ((15 / 22) ** 2, 1 / 22, 15 / 22),  # its root times 22 is 14.999999999999998 in binary
        (0.5, 1, None),
        (0.0039, 1 / 16, None),
        (1.01, 1 / 16, None),
        (math.nan, 1 / 16, None),
    ],
)
def test_width_for_a_capacity(capacity, least, width):
    if width is None:
        with pytest.raises(ModelError, match=r"capacity: expected .* \(the smallest width .* to 1, got"):
            width_for(capacity, least)
    else:
        assert width_for(capacity, least) == width


# ------------------------------------------------------------------------------------------------ heads and regulariser


def test_only_the_global_heads_loss_trains_the_body_and_it_never_moves():
    model, batch = built("digits-cnn", 1 / 2)
    target = torch.tensor([1, 7])

    def moved(head):
        model.zero_grad()
        nn.functional.cross_entropy(model(batch)[head], target).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        return {name for name, gradient in gradients.items() if gradient is not None and gradient.abs().sum() > 0}

    local = {"local_head.weight", "local_head.bias"}
    assert moved(1) == local
    assert moved(0) == {p.name for p in (*model.general, *model.personal)} - local


def test_both_heads_start_as_the_plain_models():
    plain, shape = plain_model("digits-cnn")
    start = models.initial_weights(plain, 3)
    models.load_weights(plain, start)
    model = Decomposed(plain, shape, 1 / 2)
    weights = models.read_weights(model)
    for name in ("weight", "bias"):
        assert np.array_equal(weights[f"global_head.{name}"], start[f"fc2.{name}"])
        assert np.array_equal(weights[f"local_head.{name}"], start[f"fc2.{name}"])
    assert np.array_equal(weights["body.conv2.bias"], start["conv2.bias"][:16])
    with torch.no_grad():
        model.local_head.bias.add_(1)
    assert np.array_equal(models.read_weights(plain)["fc2.bias"], start["fc2.bias"])  # a copy


def test_regulariser_is_the_sum_over_components_of_convolutions():
    model = filled(built("cnn-cifar100-pa3dfl", 1 / 4)[0])
    expected = 0.0
    for name in ("conv1", "conv2"):
        for u in model.body.get_submodule(name).theta_u.detach().double().reshape(4, 25, -1):
            gram = u.T @ u
            expected += float((gram - torch.diag(gram.diagonal())).square().sum())
    assert float(model.regulariser().detach()) == pytest.approx(expected, rel=1e-5)
    assert float(built("har-mlp")[0].regulariser()) == 0


def test_regulariser_of_orthogonal_columns_is_zero_and_flanc_has_one_component():
    layer = DecomposedLayer(nn.Conv2d(4, 16, 3), 4, 1.0)  # R1 = 1, R2 = max(4, 9) = 9
    with torch.no_grad():
        layer.theta_u.copy_(torch.eye(9) * 3)
    assert float(layer.regulariser().detach()) == 0
    flanc = filled(DecomposedLayer(nn.Conv2d(32, 16, 3), 32, 1.0, decomposition=Decomposition.FLANC))
    gram = (flanc.theta_u.T @ flanc.theta_u).detach()
    expected = float((gram - torch.diag(gram.diagonal())).square().sum())
    assert float(flanc.regulariser().detach()) == pytest.approx(expected, rel=1e-5)


# ------------------------------------------------------------------------------------------------------- first weights


def test_first_weights_recover_hes_variance_and_leave_torchs_generator():
    before = torch.get_rng_state()
    model, _ = built("cnn-cifar100-pa3dfl")
    assert torch.equal(torch.get_rng_state(), before)
    for layer in layers(model).values():
        assert float(layer.theta_u.detach().var()) == pytest.approx(1 / layer.rank, rel=0.2)
        fan_in = layer.inputs * layer.area
        assert float(layer.weight().detach().var()) == pytest.approx(2 / fan_in, rel=0.25)
    again = initial_weights(model, 0)
    assert all(np.array_equal(again[name], value) for name, value in models.read_weights(model).items())
    other = initial_weights(model, 1)
    assert not np.array_equal(other["body.conv1.theta_u"], again["body.conv1.theta_u"])
    with pytest.raises(ModelError, match=r"width: expected 1 for first weights, got 0\.5"):
        initial_weights(built("digits-cnn", 1 / 2)[0], 0)


# ------------------------------------------------------------------------------------------------------------ bad input


def sequence(*modules):
    return nn.Sequential(*modules)


@pytest.mark.parametrize(
    ("plain", "options", "words"),
    [
        (
            sequence(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2)),
            {},
            "to decompose it, got 1: Ba",
        ),
        (sequence(nn.Conv2d(3, 9, 3, groups=3), nn.Flatten(), nn.Linear(9, 2)), {}, "one group.*got 0: Conv2d"),
        (sequence(nn.Conv2d(3, 8, 3, padding_mode="circular"), nn.Flatten(), nn.Linear(8, 2)), {}, "padded with zeros"),
        (sequence(nn.Embedding(9, 4), nn.Linear(4, 2)), {}, "got 0: Embedding"),
        (nn.Linear(3, 2), {}, "a linear head after"),
        (sequence(nn.Linear(3, 4), nn.Conv2d(3, 8, 3)), {}, "a linear head after .* got Linear, Conv2d"),
        (sequence(nn.Flatten(), nn.ReLU()), {}, "got none"),
        (sequence(nn.Flatten(), nn.Linear(27, 8), nn.Linear(8, 2)), {"width": 0.3}, "multiple of 0.0625 .* got 0.3"),
        (sequence(nn.Flatten(), nn.Linear(27, 8), nn.Linear(8, 2)), {"width": 0}, "multiple of 0.0625 .* got 0"),
        (sequence(nn.Flatten(), nn.Linear(27, 8), nn.Linear(8, 2)), {"width": 2.0}, "got 2"),
        (sequence(nn.Flatten(), nn.Linear(27, 8), nn.Linear(8, 2)), {"least": 0.3}, "1/n for a whole n, got 0.3"),
        (sequence(nn.Flatten(), nn.Linear(27, 8), nn.Linear(8, 2)), {"whole": ("2",)}, "among 1, got 2"),
        (
            sequence(nn.Conv2d(3, 9, 3), nn.GroupNorm(3, 9), nn.Flatten(), nn.Linear(9, 9), nn.Linear(9, 2)),
            {"width": 1 / 2},
            "channels kept in 1 to be a multiple of 3, its channels per group, got 4",
        ),
        (
            sequence(nn.Conv2d(3, 20, 1), nn.Flatten(), nn.Linear(180, 8), nn.Linear(8, 2)),
            {"width": 1 / 16, "decomposition": Decomposition.FLANC},
            r"inputs kept to be a multiple of 10 \(FLANC\), got 9",
        ),
    ],
)
def test_refusals_are_one_line(plain, options, words):
    with pytest.raises(ModelError, match=words) as caught:
        Decomposed(plain, (3, 3, 3), **{"width": 1 / 2, **options})
    assert "\n" not in str(caught.value)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.two(x))


class Own(Unused):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def test_a_layer_that_is_not_used_and_a_parameter_outside_of_layers_are_refused():
    with pytest.raises(ModelError, match="uses each of its layers, got one unused"):
        Decomposed(Unused(), (4,))
    with pytest.raises(ModelError, match="got the model itself: Own"):
        Decomposed(Own(), (4,))
