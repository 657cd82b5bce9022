"""The gate by definition: switchable norm, size, start, and what each ablation of Table 2 leaves out."""

import pytest
import torch
from torch.nn import functional as F

from sepal.errors import ModelError
from sepal.models.gate import Gate, SwitchNorm


@pytest.mark.parametrize("variance", ["biased", "unbiased"])
def test_switchable_norm_by_definition(variance):
    """Unbiased, as published: the instance variance is over n - 1 = 29 values instead of 30, and the others follow.

    The layer's and the batch's are means of it plus the biased variance of the means: E[var + mean²] - E[mean]².
    """
    norm = SwitchNorm(3, variance=variance).double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = 5 + torch.randn(4, 3, 6, 5, dtype=torch.float64) * torch.arange(1.0, 4).view(1, 3, 1, 1)

    def definition(means, variances):
        a, b = norm.var_weight.softmax(0), norm.mean_weight.softmax(0)
        mean = sum(weight * m for weight, m in zip(b, means, strict=True))
        var = sum(weight * v for weight, v in zip(a, variances, strict=True))
        channels = (1, 3, 1, 1)
        return (x - mean) / (var + 1e-5).sqrt() * norm.weight.view(channels) + norm.bias.view(channels)

    axes = ((2, 3), (1, 2, 3), (0, 2, 3))  # instance, layer, batch
    means = [x.mean(a, keepdim=True) for a in axes]
    variances = [x.var(a, correction=0, keepdim=True) for a in axes]
    if variance == "unbiased":
        instance = variances[0] * 30 / 29
        whole = instance + means[0] ** 2
        variances = [instance, *(whole.mean(a, keepdim=True) - m**2 for a, m in ((1, means[1]), (0, means[2])))]
    torch.testing.assert_close(norm(x), definition(means, variances))
    first = 0.9 if variance == "biased" else 0.0
    running = [0.1 * means[2], first + 0.1 * variances[2]]  # from 0, and from 1 or 0; momentum .1
    torch.testing.assert_close(norm.running_mean, running[0].flatten())
    torch.testing.assert_close(norm.running_var, running[1].flatten())
    norm.eval()
    torch.testing.assert_close(norm(x), definition([*means[:2], running[0]], [*variances[:2], running[1]]))


def test_a_channel_of_one_value_has_no_unbiased_variance():
    with pytest.raises(ModelError, match="model: expected inputs of more than one value a channel"):
        Gate((4, 1), 3, variance="unbiased")
    with pytest.raises(ValueError, match="variance: expected one of biased, unbiased"):
        SwitchNorm(3, variance="other")


def test_large_constant_images_have_no_negative_variance():
    assert SwitchNorm(3)(torch.full((4, 3, 32, 32), 255.0)).isfinite().all()


def test_size_of_the_papers_gate():
    # CIFAR-10's LeNet has 50 blocks: 2 · 50 outputs of 3,072 inputs and a bias, BatchNorm's 2 · 100, and the switchable
    # norm's 2 · 3 + 6. One path has half of all but the last.
    assert sum(p.numel() for p in Gate((3, 32, 32), 50).parameters()) == 100 * 3072 + 100 + 200 + 12 == 307_512
    assert sum(p.numel() for p in Gate((3, 32, 32), 50, paths=1).parameters()) == 153_762


def test_gate_starts_around_one_half_and_a_shift_moves_it():
    x = torch.randn(64, 3, 8, 8)
    assert Gate((3, 8, 8), 20)(x).mean().item() == pytest.approx(0.5, abs=0.02)
    assert Gate((3, 8, 8), 20, shift=3.0)(x).mean().item() == pytest.approx(0.93, abs=0.03)


@pytest.mark.parametrize("without", ["none", "pre-norm", "post-norm", "sigmoid"])
def test_each_ablation_of_table_2_leaves_out_one_part_of_the_gate(without):
    """Two paths of 7 blocks over 3 channels of 4 × 4: the first norm has 12 parameters, the second 2 · 14."""
    torch.manual_seed(0)
    gate, whole = (Gate((3, 4, 4), 7, without=part) for part in (without, "none"))
    x = 2 + 3 * torch.randn(9, 3, 4, 4)
    z = x if without == "pre-norm" else SwitchNorm(3).train()(x)
    z = F.linear(z.flatten(1), gate.linear.weight, gate.linear.bias)
    if without != "post-norm":
        z = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(gate.train()(x), z if without == "sigmoid" else z.sigmoid())
    count = {name: sum(p.numel() for p in module.parameters()) for name, module in (("ours", gate), ("all", whole))}
    assert count["all"] - count["ours"] == {"pre-norm": 12, "post-norm": 28}.get(without, 0)
