"""Sizes of decomposed layers and models: the worked numbers of Pa3dFL."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sepal import models
from sepal.models.decomposed import Decomposed
from sepal.models.factors import DecomposedLayer, components, width_for
from tests.models.decomposed import CIFAR, RESIDUAL, built, layers


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(module, *shape):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(shape))
    return counter.get_total_flops() // 2


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
    entries = 64 * 128 + 128 * 256 + 256 * 512
    assert size(plain) == 11_173_962
    assert size(model) == 20_247_688
    assert round((size(model) - factors + entries) / 1e6, 1) == 19.0
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
    layers = [DecomposedLayer(layer, count, 1.0) for layer, count in zip(plain, inputs, strict=True)]
    assert [layer.rank for layer in layers] == [16, 16, 9, 5, 2]
