"""The page of models and methods, and what it rests on: which tensors are pruned, and layers gated by their weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from referee.matrix import models
from referee.matrix.__main__ import KEYS, PAGE, page
from sepal.layout import Role
from sepal.models.gated import GatedModule
from sepal.models.weights import layout
from sepal.strategies.assembly import assemble
from sepal.strategies.dmpfl.contract import budgets, masked_parts
from sepal.strategies.subfedavg.prunable import Prunable


def test_the_page_is_what_every_model_does_with_every_method():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m referee.matrix"


def test_positions_and_tokens_are_no_weights():
    roles = {parameter.name: parameter.role for parameter in layout(models.vision_transformer((1, 8, 8), 3))}
    assert {roles["1.class_token"], roles["1.encoder.pos_embedding"]} == {Role.BIAS}
    weights = {name for name, role in roles.items() if role is Role.WEIGHT}
    assert {"1.conv_proj.weight", "1.heads.head.weight"} <= weights
    assert any(name.endswith("in_proj_weight") for name in weights)


@pytest.mark.parametrize("method", ["subfedavg", "dmpfl"])
def test_they_are_not_pruned(method):
    module = models.__name__
    data = {"own.data": f"{module}:images", "own.shape": "1x8x8", "model": f"{module}:vision_transformer"}
    setup = assemble({**KEYS, **data, "method": method}).setup
    if method == "dmpfl":
        masked = {part.name for part in masked_parts(setup.layout, budgets(setup.layout, setup.hyper))}
    else:
        masked = {part.name for part in Prunable(setup).parts}
    assert not {"1.class_token", "1.encoder.pos_embedding"} & masked
    assert "1.heads.head.weight" in masked


class Own(nn.Module):
    """A layer of one's own: its weight is called so, its table of positions is not."""

    def __init__(self):
        super().__init__()
        self.weight, self.table = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(3, 3))


def test_a_layer_of_ones_own_names_its_weight():
    assert {p.name: p.role for p in layout(Own())} == {"weight": Role.WEIGHT, "table": Role.BIAS}


def gated(model):
    """A gate over two blocks of each tensor; the first of each is on."""
    blocks = {name: (p.numel() // 2, p.numel() - p.numel() // 2) for name, p in model.named_parameters()}
    on = np.tile([True, False], len(blocks))
    return GatedModule(model, (6, 8), blocks, lambda g: np.repeat(on[None], len(g), 0), gating="batch"), blocks


@pytest.mark.parametrize("build", [models.gru, models.Encoder, models.Attention])
@pytest.mark.parametrize("training", [True, False])
def test_other_layers_are_gated_by_their_weights(build, training):
    """By batch there is one θ' = θ ⊗ M': the plain model with such weights gives the same logits, also where torch's
    own fast path would read the layers' weights itself."""
    torch.manual_seed(0)
    model, x = build((6, 8), 3), torch.randn(4, 6, 8)
    for module in model.modules():
        module.p = 0.0 if isinstance(module, nn.Dropout) else None
    module, blocks = gated(model)
    module.train(training)
    with torch.set_grad_enabled(training):
        gates, _ = module.sparse_weights(x)
        sizes = torch.tensor([size for of in blocks.values() for size in of])
        scales = torch.repeat_interleave(gates[0], sizes).split([p.numel() for p in model.parameters()])
        theta = {n: p * s.view_as(p) for (n, p), s in zip(model.named_parameters(), scales, strict=True)}
        expected = torch.func.functional_call(model, theta, (x,))
        torch.testing.assert_close(module(x), expected)
    if training:
        module(x).sum().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())
        assert module.gate.linear.weight.grad.abs().sum() > 0


def test_linear_layers_on_sequences_are_gated_by_batch():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 5), nn.Flatten(), nn.Linear(30, 3)), torch.randn(4, 6, 8)
    module, blocks = gated(model)
    gates, _ = module.sparse_weights(x)
    sizes = torch.tensor([size for of in blocks.values() for size in of])
    scales = torch.repeat_interleave(gates[0], sizes).split([p.numel() for p in model.parameters()])
    w1, b1, w2, b2 = (p * s.view_as(p) for p, s in zip(model.parameters(), scales, strict=True))
    torch.testing.assert_close(module(x), (x @ w1.T + b1).flatten(1) @ w2.T + b2)
