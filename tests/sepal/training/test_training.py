"""The local loop: what is trained, on which batches, in which order, and that nothing global is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sepal.training.hooks import Hooks
from sepal.training.optimizers import make_optimizer
from sepal.training.threads import set_threads
from tests.sepal.training.small_trainer import X, Y, make, trained, work


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def order(work, *where):
    return [x[:, 0].tolist() for x, _ in work.batches(*where)]


def test_one_pass_by_hand():
    """Plain SGD over the very batches that `batches` yields, written out."""
    subject, module = work(local_epochs=1), make()
    for x, y in subject.batches(3, "train", 1):
        loss = functional.cross_entropy(module(x), y)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.sub_(0.5 * gradient)
    got, _ = trained(subject, 3)
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(got[name], tensor.numpy(), rtol=1e-6, atol=1e-7)


def test_the_same_again_gives_the_same_bits():
    assert equal(trained(work())[0], trained(work())[0])
    assert trained(work())[1] == trained(work())[1]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"seed": 8}, (1, "train", 1)),
        ({"name": "client-2"}, (1, "train", 1)),
        ({}, (2, "train", 1)),
        ({}, (1, "head", 1)),
        ({}, (1, "train", 2)),
    ],
    ids=["seed", "client", "round", "purpose", "epoch"],
)
def test_batches_depend_on(changes, where):
    assert order(work(**changes), *where) != order(work(), 1, "train", 1)


def test_batches_are_one_pass_in_nearly_equal_parts():
    batches = list(work().batches(1, "train", 1))
    assert [len(y) for _, y in batches] == [3, 2, 2]
    x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    positions = x[:, 0].argsort()
    assert torch.equal(x[positions], X)
    assert torch.equal(y[positions], Y)


@pytest.mark.parametrize(
    ("examples", "size", "expected"),
    [
        (130, 16, [15] * 4 + [14] * 5),  # 8·16 + 2: the last batch would have two examples
        (128, 16, [16] * 8),
        (17, 16, [9, 8]),
        (5, 16, [5]),
        (1, 16, [1]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_no_batch_is_a_short_rest(examples, size, expected):
    subject = work(batch_size=size)
    subject.x, subject.y = torch.zeros(examples, 3), torch.zeros(examples, dtype=torch.int64)
    assert [len(y) for _, y in subject.batches(1, "train", 1)] == expected


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("examples", "size", "expected"),
    [(3, 2, [3]), (5, 1, [3, 2]), (5, 2, [3, 2]), (2, 1, [2]), (1, 16, []), (7, 3, [3, 2, 2])],
)
def test_batch_normalisation_never_sees_a_batch_of_one(examples, size, expected):
    """One value a channel has no variance, and torch refuses it. Other modules take the same batches as ever."""
    subject, module, sizes = work(batch_size=size, local_epochs=1), normed(), []
    subject.x, subject.y = X[:examples], Y[:examples]
    subject.fit(module, 1, Hooks(lambda m, x, y: sizes.append(len(y)) or functional.cross_entropy(m(x), y)))
    assert sizes == expected
    assert subject.spent()["steps"] == len(expected)
    assert (module[1].num_batches_tracked == len(expected)).item()


def test_what_is_trained_depends_on_the_round_through_batches_and_rate():
    assert not equal(trained(work(), 1)[0], trained(work(), 2)[0])
    assert make_optimizer(work(lr_decay=0.5).config, list(make().parameters()), 3).param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_a_gradient_longer_than_the_limit_is_scaled_down(limit):
    """The loss 3·w + 4·b of a weight and a bias has a gradient of norm 5 everywhere: 3 and 4, or 1.8 and 2.4."""
    module = nn.Linear(3, 1)
    weight, bias = module.weight.sum().item(), module.bias.item()
    subject = work(batch_size=99, local_epochs=1, lr=0.1, clip_gradient=limit)
    subject.fit(module, 1, Hooks(lambda m, x, y: 3 * m.weight[0, 0] + 4 * m.bias.sum()))
    moved = [(weight - module.weight.sum().item()) / 0.1, (bias - module.bias.item()) / 0.1]
    assert moved == pytest.approx([3, 4] if limit == 0 else [1.8, 2.4], rel=1e-4)


def test_also_of_a_step_that_a_method_takes_by_itself():
    """As pFedMe does: the limit is the optimizer's, not the loop's. A gradient of (3, 4) becomes (1.8, 2.4)."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = make_optimizer(work(lr=0.1, clip_gradient=3.0).config, [weight], 1)
    weight.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    assert weight.tolist() == pytest.approx([-0.18, -0.24], rel=1e-4)


def test_hooks_come_in_order_and_the_loss_is_the_mean_of_the_last_pass():
    calls, losses = [], []

    def loss(module, x, y):
        assert module.training
        assert all(parameter.grad is None for parameter in module.parameters())
        calls.append(f"loss {len(y)}")
        losses.append((functional.cross_entropy(module(x), y), len(y)))
        return losses[-1][0]

    def before(module):
        assert all(parameter.grad is not None for parameter in module.parameters())
        calls.append("before")

    hooks = Hooks(loss, before, lambda m: calls.append("after"), lambda m, epoch: calls.append(f"epoch {epoch}"))
    module = make().eval()
    mean = work().fit(module, 1, hooks)
    step = ["before", "after"]
    one_pass = ["loss 3", *step, "loss 2", *step, "loss 2", *step]
    assert calls == [*one_pass, "epoch 1", *one_pass, "epoch 2"]
    assert mean == pytest.approx(sum(float(value.detach()) * n for value, n in losses[3:]) / 7)


def test_a_hook_can_change_the_gradient_and_the_weights():
    def none(module):
        for parameter in module.parameters():
            parameter.grad.zero_()

    start = {name: tensor.numpy() for name, tensor in make().state_dict().items()}
    assert equal(trained(work(), hooks=Hooks(before_step=none))[0], start)

    def project(module):
        with torch.no_grad():
            module[0].weight.zero_()

    assert not trained(work(), hooks=Hooks(after_step=project))[0]["0.weight"].any()


def test_only_the_given_parameters_are_trained():
    start = {name: tensor.numpy() for name, tensor in make().state_dict().items()}
    module = make()
    norms = []
    hooks = Hooks(before_step=lambda m: norms.append(float(m[0].weight.grad.norm())))
    work(momentum=0.9).fit(module, 1, hooks, parameters=list(module[2].parameters()), epochs=20)
    after = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert equal({n: after[n] for n in ("0.weight", "0.bias")}, start)
    assert not np.array_equal(after["2.weight"], start["2.weight"])
    assert max(norms) < 5, "gradients of what is not trained do not pile up from batch to batch"


def test_no_parameters_are_not_all_parameters():
    with pytest.raises(ValueError, match="empty parameter list"):
        work().fit(make(), 1, parameters=[])


def test_no_epochs_change_nothing():
    start = {name: tensor.numpy() for name, tensor in make().state_dict().items()}
    got, loss = trained(work(), epochs=0)
    assert equal(got, start)
    assert loss == 0.0


def test_epochs_override_the_configuration():
    assert equal(trained(work(), epochs=3)[0], trained(work(local_epochs=3))[0])
    assert not equal(trained(work(), epochs=3)[0], trained(work())[0])


def test_adam_first_step_by_hand():
    """Adam's first step is lr·g/(|g| + eps): every entry moves by lr against its gradient's sign."""
    module = make()
    start = [parameter.detach().clone() for parameter in module.parameters()]
    gradients = []
    hooks = Hooks(before_step=lambda m: gradients.extend(p.grad.clone() for p in m.parameters()))
    work(optimizer="adam", lr=0.01, batch_size=7).fit(module, 1, hooks, epochs=1)
    for before, after, gradient in zip(start, module.parameters(), gradients, strict=True):
        torch.testing.assert_close(after.detach(), before - 0.01 * gradient / (gradient.abs() + 1e-8))


def test_momentum_and_weight_decay_reach_the_optimizer():
    group = make_optimizer(work(momentum=0.9, weight_decay=0.01).config, list(make().parameters()), 1).param_groups[0]
    assert (group["momentum"], group["weight_decay"]) == (0.9, 0.01)
    group = make_optimizer(work(optimizer="adam", weight_decay=0.01).config, list(make().parameters()), 1).param_groups[
        0
    ]
    assert group["weight_decay"] == 0.01


def test_each_call_starts_with_a_new_optimizer():
    """Momentum of an earlier call would move the weights even with a gradient of zero."""
    subject, module = work(momentum=0.9), make()
    subject.fit(module, 1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    subject.fit(module, 2, Hooks(before_step=lambda m: [p.grad.zero_() for p in m.parameters()]))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_no_global_generator_is_touched():
    module = make()
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    work().fit(module, 1)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_the_gradient_is_that_of_the_mean_loss_over_the_whole_training_part():
    """1,100 examples, which are more than fit into one pass; with batch normalisation on its running statistics."""
    subject, module = work(), normed()
    generator = torch.Generator().manual_seed(1)
    subject.x, subject.y = torch.randn(1100, 3, generator=generator), torch.arange(1100) % 2
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    got = subject.gradient(module)
    expected = torch.autograd.grad(
        functional.cross_entropy(module.eval()(subject.x), subject.y), list(module.parameters())
    )
    for (name, _), gradient in zip(module.named_parameters(), expected, strict=True):
        np.testing.assert_allclose(got[name], gradient.numpy(), rtol=1e-4, atol=1e-6)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    forward_and_backward = 1100 * (2 * 12 + 3 * 8)  # 3x4 needs no gradient of its input
    assert subject.spent()["multiply-adds"] == forward_and_backward


def test_the_gradient_of_what_takes_no_part_is_zero():
    module = make()
    got = work().gradient(module, lambda m, x, y: functional.cross_entropy(m[2](m[1](x @ m[0].weight.T)), y))
    assert not got["0.bias"].any()
    assert got["0.weight"].any()


def test_threads_are_set_once(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    set_threads(1)
    set_threads(2)
    assert calls == [2]
