"""Keys of the training loop: label smoothing, precision, augmentation; and that all that is random follows the seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, ProtocolError
from sepal.strategies.assembly import assemble
from sepal.training.augment import augmentation, crop_flip
from sepal.training.devices import check_precision
from sepal.training.hooks import Hooks
from tests.sepal.training.small_trainer import X, make, trained, work

DIGITS = {"dataset": "digits", "clients": 2, "rounds": 2, "partition.subsample": 100, "lr": 0.05, "evaluate-every": 0}


def equal(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_label_smoothing_by_hand():
    """Logits (ln 3, 0) have probabilities 3/4 and 1/4. At .2, the target of class 0 is (.9, .1)."""
    subject, outputs = work(label_smoothing=0.2), torch.tensor([[np.log(3.0), 0.0]])
    expected = -0.9 * np.log(0.75) - 0.1 * np.log(0.25)
    assert subject.loss(outputs, torch.tensor([0])).item() == pytest.approx(expected, rel=1e-6)
    assert subject.loss_each(outputs, torch.tensor([0])).tolist() == pytest.approx([expected], rel=1e-6)
    assert work().loss(outputs, torch.tensor([0])).item() == pytest.approx(-np.log(0.75), rel=1e-6)


def test_bf16_is_the_format_of_the_forward_pass_alone():
    dtypes = []

    def loss(module, x, y):
        outputs = module(x)
        dtypes.append((outputs.dtype, subject.loss(outputs, y).dtype, module[0].weight.dtype))
        return subject.loss(outputs, y)

    subject, module = work(precision="bf16"), make()
    subject.fit(module, 1, Hooks(loss, lambda m: dtypes.append(m[0].weight.grad.dtype)))
    assert set(dtypes) == {(torch.bfloat16, torch.float32, torch.float32), torch.float32}
    assert not torch.is_autocast_enabled("cpu")
    plain, half = trained(work())[0], trained(work(precision="bf16"))[0]
    assert not equal(plain, half)
    assert all(np.abs(plain[name] - half[name]).max() < 0.02 for name in plain)
    assert not equal(work().gradient(make()), work(precision="bf16").gradient(make()))


# With a loop or a loss of their own, or with products of factors.
WAYS_OF_THEIR_OWN = ["apfl", "feddst", "fedem", "fedmask", "fedpm", "fjord", "heterofl", "pa3dfl", "pfedme"]


@pytest.mark.parametrize("method", WAYS_OF_THEIR_OWN)
def test_methods_with_ways_of_their_own_take_the_keys(method):
    keys = {**DIGITS, "rounds": 1, "method": method}
    hashes = set()
    for more in ({}, {"precision": "bf16"}, {"label-smoothing": 0.3}, {"augment": "crop-flip"}):
        state = run_in_process(assemble({**keys, **more})).progress.server
        hashes.add(str([np.asarray(value).sum() for value in vars(state).get("weights", vars(state)).values()]))
    assert len(hashes) == 4, "a key without effect"


def test_crop_and_flip_by_hand():
    """Pixels that tell where they come from: a shift by up to 4 along each axis, mirrored or not, 0 outside."""
    x = torch.arange(1.0, 61.0).view(1, 2, 5, 6).repeat(200, 1, 1, 1)
    images = crop_flip(x, np.random.default_rng(0))
    padded, crops = functional.pad(x[0], (4, 4, 4, 4)), []
    for image in images:
        matches = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            if torch.equal(image.flip(2) if flip else image, padded[:, top : top + 5, left : left + 6])
        ]
        assert matches, "no crop of the padded image"
        crops.append(matches[0])
    assert {top for top, _, _ in crops} == {left for _, left, _ in crops} == set(range(9))
    assert 70 < sum(flip for _, _, flip in crops) < 130


def batches(subject, *where):
    return torch.cat([x for x, _ in subject.batches(*where)])


def noisy(x, rng):
    return x + torch.from_numpy(rng.standard_normal(x.shape).astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "where"), [({"seed": 8}, (1, "a", 1)), ({"name": "b"}, (1, "a", 1)), ({}, (2, "a", 1))]
)
def test_what_is_augmented_follows_from_seed_client_and_round(changes, where):
    subject, first = replace(work(), augment=noisy), (1, "a", 1)
    assert torch.equal(batches(subject, *first), batches(replace(work(), augment=noisy), *first))
    changed = replace(work(**changes), augment=noisy)
    noise = [
        (batches(trainer, *at) - batches(replace(trainer, augment=None), *at))
        for trainer, at in ((subject, first), (changed, where))
    ]
    assert not torch.allclose(*noise)
    assert equal(trained(subject)[0], trained(replace(work(), augment=noisy))[0])
    assert not equal(trained(subject)[0], trained(work())[0])


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x, rng: x[1:], r"torch\.float32 \(1, 3\)"),
        (lambda x, rng: x.numpy(), "ndarray"),
        (lambda x: x, "TypeError"),
    ],
)
def test_an_own_function_is_tried_first(function, got, monkeypatch):
    monkeypatch.setattr("sepal.training.augment.load", lambda *arguments: function)
    with pytest.raises(
        ConfigError, match=rf"augment: expected a:b\(x, rng\) to return a tensor like x, .* got .*{got}"
    ):
        augmentation("a:b", X[:2])
    assert augmentation("", X) is None
    assert augmentation("crop-flip", X) is crop_flip


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"augment": "crop"}, "augment: expected crop-flip, or package.module:function of your own, got crop"),
        (
            {"augment": "crop-flip", "dataset": "har"},
            "augment: expected nothing, or .* for data of kind signal, got crop",
        ),
        (
            {"precision": "bf16", "method": "pfedgate"},
            "precision: expected fp32 with pfedgate, whose knapsack .*, got bf16",
        ),
        (
            {
                "label-smoothing": 0.1,
                "task": "regression",
                "dataset": "own",
                "own.shape": "10",
                "model": "tests.strategies.own_models:number",
            },
            "label-smoothing: expected 0 for the task regression, whose targets are no classes .*, got 0.1",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_the_run(keys, error):
    with pytest.raises(ConfigError, match=error):
        assemble({**DIGITS, **keys})


def test_a_device_without_autocast_and_foreign_code_are_refused():
    with pytest.raises(
        ConfigError, match="precision: expected fp32 on meta, for which torch has no autocast, got bf16"
    ):
        check_precision("bf16", "meta")
    check_precision("bf16", "cpu")
    with pytest.raises(ProtocolError, match=r"augment: expected code that this node allows .*, got a\.b:c"):
        local_config({"augment": "a.b:c"}, Node())


def test_dropout_follows_from_the_seed_and_leaves_torchs_generator_alone():
    def after(**settings):
        torch.rand(3)  # whoever else draws
        subject = work(local_epochs=1, **settings)
        module = nn.Sequential(nn.Linear(3, 64), nn.Dropout(), nn.Linear(64, 2))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.1)
        before = torch.get_rng_state()
        subject.fit(module, 1)
        assert torch.equal(before, torch.get_rng_state())
        return module[0].weight.detach()

    assert torch.equal(after(), after())
    assert not torch.equal(after(), after(name="client-2"))
