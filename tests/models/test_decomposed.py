"""Decomposed layers and models: recovery against loops, heads, the regulariser, first weights, refusals."""

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError
from sepal.models.decomposed import Decomposed, initial_weights
from sepal.models.factors import DecomposedLayer, Decomposition
from tests.models.decomposed import NORMED, SHIPPED, built, filled, layers, plain_model

# ------------------------------------------------------------------------------------------------------------ recovery


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
    other_seed = initial_weights(model, 1)
    assert not np.array_equal(other_seed["body.conv1.theta_u"], again["body.conv1.theta_u"])
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
            r"to decompose it .*got 1 \(BatchNorm2d",
        ),
        (
            sequence(nn.Conv2d(3, 9, 3, groups=3), nn.Flatten(), nn.Linear(9, 2)),
            {},
            r"one group.*got 0 \(Conv2d, 3 groups\)",
        ),
        (sequence(nn.Conv2d(3, 8, 3, padding_mode="circular"), nn.Flatten(), nn.Linear(8, 2)), {}, "padded with zeros"),
        (sequence(nn.Embedding(9, 4), nn.Linear(4, 2)), {}, r"got 0 \(Embedding\)"),
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
    with pytest.raises(ModelError, match="got scale of Own"):
        Decomposed(Own(), (4,))
