"""Every model: published parameter count, right logits, errors in one line, and no trace in torch's generator."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError
from sepal.layout import Role

# name: (shape of an example, classes, vocabulary, parameters), the last from the papers' and methods' pages
PUBLISHED = {
    "cnn-cifar100": ((3, 32, 32), 100, 0, 3_537_444),
    "cnn-cifar100-pa3dfl": ((3, 32, 32), 100, 0, 815_332),
    "cnn-emnist": ((1, 28, 28), 62, 0, 2_278_334),
    "cnn-fmnist-pa3dfl": ((1, 28, 28), 10, 0, 1_725_194),
    "cnn2": ((1, 28, 28), 10, 0, 582_026),
    "cnn2-small": ((1, 28, 28), 10, 0, 108_618),
    "digits-cnn": ((1, 8, 8), 10, 0, 9_258),
    "digits-cnn-bn": ((1, 8, 8), 10, 0, 9_354),  # and scale and shift of 16 + 32 channels
    "embedding-linear": ((256,), 2, 10_000, 160_034),
    "har-cnn": ((9, 128), 6, 0, 36_806),
    "har-cnn-bn": ((9, 128), 6, 0, 36_998),  # and scale and shift of 32 + 64 channels
    "har-mlp": ((9, 128), 6, 0, 148_358),
    "lenet-cifar10": ((3, 32, 32), 10, 0, 256_830),
    "lenet5": ((3, 32, 32), 10, 0, 62_006),
    "lenet5-bn": ((3, 32, 32), 10, 0, 62_050),  # and scale and shift of 6 + 16 channels
    "mnist-cnn": ((1, 28, 28), 10, 0, 21_840),
    "mnist-cnn-bn": ((1, 28, 28), 10, 0, 21_900),  # and scale and shift of 10 + 20 channels
    "resnet18-gn": ((3, 32, 32), 10, 0, 11_173_962),
    "shakespeare-lstm": ((80,), 80, 82, 819_936),  # LEAF's 817,872, and 2 x 1,024 biases and 2 x 8 of the embedding
}


def batch(shape, vocabulary, size=2):
    if vocabulary:
        return torch.arange(size * shape[0]).reshape(size, *shape) % vocabulary
    return torch.linspace(-1, 1, size * int(np.prod(shape))).reshape(size, *shape)


def test_every_model_is_counted():
    assert tuple(sorted(PUBLISHED)) == models.names()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_as_published(name):
    shape, classes, vocabulary, parameters = PUBLISHED[name]
    module = models.build(name, shape, classes, vocabulary)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert sum(p.size for p in models.layout(module) if p.role is not Role.STATISTIC) == parameters
    logits = module.eval()(batch(shape, vocabulary))
    assert logits.shape == (2, classes)
    assert logits.dtype == torch.float32
    assert f"{parameters:,} parameters" in type(module).__doc__


def test_counts_of_the_papers_with_ten_classes():
    emnist = models.build("cnn-emnist", (1, 28, 28), 10)  # pFedGate, appendix E
    assert sum(parameter.numel() for parameter in emnist.parameters()) == 2_171_786
    pa3dfl = models.build("cnn-cifar100-pa3dfl", (3, 32, 32), 10)  # Pa3dFL, table 2
    assert sum(parameter.numel() for parameter in pa3dfl.parameters()) == 797_962


def test_counts_of_sub_fedavg():
    # Section 4: "30900 total parameters". That is MNIST at 32 × 32, with norms and with the convolutions' biases:
    # 10 · 26 + 20 · 251 + 2 · 30 + 50 · (20 · 25 + 1) + 10 · 51.
    mnist = models.build("mnist-cnn-bn", (1, 32, 32), 10)
    assert sum(parameter.numel() for parameter in mnist.parameters()) == 30_900


def test_norms_stand_between_convolution_and_activation():
    module = models.build("mnist-cnn-bn", (1, 28, 28), 10)
    parts = dict(module.named_children())
    models.load_weights(module, {**models.initial_weights(module, 0), "norm2.bias": np.linspace(-1, 1, 20)})
    block = [nn.ReLU(), nn.MaxPool2d(2)]
    body = nn.Sequential(parts["conv1"], parts["norm1"], *block, parts["conv2"], parts["norm2"], *block)
    head = nn.Sequential(nn.Flatten(), parts["fc1"], nn.ReLU(), parts["fc2"])
    images = batch((1, 28, 28), 0, 4)
    torch.testing.assert_close(module(images), head(body(images)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["har-cnn-bn", "lenet5-bn", "mnist-cnn-bn"])
def test_a_channel_without_scale_and_shift_vanishes(name):
    shape, classes, *_ = PUBLISHED[name]
    module = models.build(name, shape, classes).train()
    weights = models.initial_weights(module, 0)
    weights["norm2.weight"][3] = weights["norm2.bias"][3] = 0
    models.load_weights(module, weights)
    images = batch(shape, 0, 4)
    before = module(images)
    weights["conv2.weight"][3] = 7
    weights["conv2.bias"][3] = 7
    models.load_weights(module, weights)
    torch.testing.assert_close(module(images), before, rtol=0, atol=0)
    assert [p.role for p in models.layout(module) if p.name.startswith("norm1")] == [
        Role.NORM,
        Role.NORM,
        Role.STATISTIC,
        Role.STATISTIC,
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_parameter_gets_a_gradient(name):
    shape, classes, vocabulary, _ = PUBLISHED[name]
    module = models.build(name, shape, classes, vocabulary)
    models.load_weights(module, models.initial_weights(module, 1))
    nn.functional.cross_entropy(module(batch(shape, vocabulary)), torch.tensor([0, 1])).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", PUBLISHED)
def test_torch_generator_is_left_as_it_was(name):
    shape, classes, vocabulary, _ = PUBLISHED[name]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    module = models.build(name, shape, classes, vocabulary)
    models.initial_weights(module, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_two_builds_are_equal():
    first, second = (models.read_weights(models.build("digits-cnn", (1, 8, 8), 10)) for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "vocabulary", "words"),
    [
        ("cnn3", (1, 28, 28), 10, 0, "expected one of cnn-cifar100, .*got cnn3"),
        ("cnn2", (28, 28), 10, 0, r"expected images .* for Cnn2, got data of shape \(28, 28\)"),
        ("cnn2", (28, 28, 1), 10, 0, r"expected images \(channels, height, width\)"),
        ("cnn2", (1, 8, 8), 10, 0, "expected images of at least 16 × 16 for Cnn2, got 8 × 8"),
        ("cnn2", (1, 28, 28), 1, 0, "at least 2 classes"),
        ("cnn2", (0, 28, 28), 10, 0, "positive sides"),
        ("cnn2", (), 10, 0, "positive sides"),
        ("cnn2", (256,), 2, 10_000, "expected a model for text, such as 'embedding-linear', got cnn2"),
        ("cnn-fmnist-pa3dfl", (1, 3, 3), 10, 0, "at least 4 × 4"),
        ("resnet18-gn", (32, 32, 3), 10, 0, "images"),
        ("resnet18-gn", (9, 128), 6, 0, "images"),
        ("har-cnn", (1, 28, 28), 10, 0, "series"),
        ("har-cnn", (9, 35), 6, 0, "at least 36"),
        ("har-mlp", (1, 8, 8), 10, 0, "series"),
        ("embedding-linear", (1, 8, 8), 10, 0, "expected text"),
        ("embedding-linear", (2, 256), 2, 100, "expected text"),
        ("no_such_module:build", (1, 8, 8), 10, 0, "can be imported"),
        (":build", (1, 8, 8), 10, 0, "package.module:function, got :build"),
        ("math:nothing", (1, 8, 8), 10, 0, "can be imported"),
        ("math:pi", (1, 8, 8), 10, 0, "math:pi to be a function"),
        ("math:floor", (1, 8, 8), 10, 0, "got TypeError"),
        ("builtins:max", (1, 8, 8), 10, 0, "torch.nn.Module, got TypeError"),
    ],
)
def test_refusals_are_one_line(name, shape, classes, vocabulary, words):
    with pytest.raises(ModelError, match=words) as caught:
        models.build(name, shape, classes, vocabulary)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "least"), [("cnn2", 16), ("cnn2-small", 10), ("digits-cnn", 4), ("cnn-fmnist-pa3dfl", 4)]
)
def test_least_image_side_is_what_the_error_says(name, least):
    models.build(name, (1, least, least), 2)(torch.zeros(1, 1, least, least))
    with pytest.raises(ModelError, match=f"at least {least} × {least}"):
        models.build(name, (1, least - 1, least), 2)


def own_model(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), classes), nn.Dropout(torch.rand(1).item()))


@pytest.fixture
def own_package(monkeypatch):
    module = types.ModuleType("a_package.nets")
    module.build = own_model
    module.not_a_module = lambda input_shape, classes: 3
    module.three_logits = lambda input_shape, classes: own_model(input_shape, 3)
    module.for_color = lambda input_shape, classes: nn.Conv2d(3, classes, 1)
    monkeypatch.setitem(sys.modules, "a_package", types.ModuleType("a_package"))
    monkeypatch.setitem(sys.modules, "a_package.nets", module)


@pytest.mark.usefixtures("own_package")
def test_anyones_own_model():
    before = torch.get_rng_state()
    module = models.build("a_package.nets:build", (1, 8, 8), 10)
    assert torch.equal(torch.get_rng_state(), before)
    assert module.training
    assert module(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ModelError, match=r"to return a torch.nn.Module, got int"):
        models.build("a_package.nets:not_a_module", (1, 8, 8), 10)
    with pytest.raises(ModelError, match=r"\(2, 1, 8, 8\) to logits of shape \(2, 10\), got shape \(2, 3\)"):
        models.build("a_package.nets:three_logits", (1, 8, 8), 10)
    with pytest.raises(ModelError, match=r"to logits of shape \(2, 10\), got RuntimeError"):
        models.build("a_package.nets:for_color", (1, 8, 8), 10)
    with pytest.raises(ModelError, match=r"got RuntimeError"):  # tokens are int64
        models.build("a_package.nets:build", (64,), 10, vocabulary=100)


def test_text_mean_is_over_tokens_that_are_there():
    module = models.build("embedding-linear", (4,), 2, 10)
    models.load_weights(module, models.initial_weights(module, 0))
    table, linear = module.embedding.weight, module.fc
    logits = module(torch.tensor([[3, 5, 0, 0], [0, 0, 0, 0]]))
    torch.testing.assert_close(logits[0], linear((table[3] + table[5]) / 2))
    torch.testing.assert_close(logits[1], linear.bias)  # a text without tokens: the mean is taken as 0
    logits.sum().backward()
    assert torch.equal(table.grad[0], torch.zeros(16))


def test_importing_models_does_not_import_torch():
    import subprocess

    code = "import sys, models; models.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = models.nothing


def test_role_of_the_first_layers():
    roles = {
        parameter.name: parameter.role for parameter in models.layout(models.build("resnet18-gn", (3, 32, 32), 10))
    }
    assert roles["stem.weight"] is Role.WEIGHT
    assert roles["blocks.2.shortcut.1.weight"] is Role.NORM
    assert roles["fc.bias"] is Role.BIAS


def test_width_builds_a_share_of_the_channels_of_every_layer():
    """Outputs of hidden layers shrink, the classes do not; .3 of the channels is rounded down."""
    full, narrow = (models.build("digits-cnn", (1, 8, 8), 10, width=width) for width in (1.0, 0.5))
    for wide, small in zip(models.layout(full), models.layout(narrow), strict=True):
        assert wide.name == small.name
        assert small.shape[0] in (wide.shape[0] // 2, 10)
    assert narrow.train()(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    channels = models.layout(full)[0].shape[0]
    assert models.layout(models.build("digits-cnn", (1, 8, 8), 10, width=0.3))[0].shape[0] == int(0.3 * channels)


def test_a_model_that_cannot_be_cut_says_so():
    with pytest.raises(ModelError, match="model: expected"):
        models.build("resnet18-gn", (3, 32, 32), 10, width=0.5)


def test_a_name_that_is_not_there_is_said_with_the_package_it_is_missing_from():
    with pytest.raises(AttributeError, match=r"module 'sepal.models' has no attribute 'no_family'"):
        models.no_family  # noqa: B018
