"""Which tensors are coupled by channels, of every shipped model; and what is refused, by name."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sepal import models
from sepal.errors import ModelError
from sepal.masks.cuts import Axis, scales

SEQUENTIAL = {
    "cnn-cifar100": ((3, 32, 32), 100),
    "cnn-cifar100-pa3dfl": ((3, 32, 32), 100),
    "cnn-emnist": ((1, 28, 28), 62),
    "cnn-fmnist-pa3dfl": ((1, 28, 28), 10),
    "cnn2": ((1, 28, 28), 10),
    "cnn2-small": ((1, 28, 28), 10),
    "digits-cnn": ((1, 8, 8), 10),
    "digits-cnn-bn": ((1, 8, 8), 10),
    "har-cnn": ((9, 128), 6),
    "har-cnn-bn": ((9, 128), 6),
    "har-mlp": ((9, 128), 6),
    "lenet-cifar10": ((3, 32, 32), 10),
    "lenet5": ((3, 32, 32), 10),
    "lenet5-bn": ((3, 32, 32), 10),
    "mnist-cnn": ((1, 28, 28), 10),
    "mnist-cnn-bn": ((1, 28, 28), 10),
}
REFUSED = {
    "embedding-linear": ((256,), 2, 10_000),
    "resnet18-gn": ((3, 32, 32), 10, 0),
    "shakespeare-lstm": ((80,), 80, 82),
}


def test_every_shipped_model_is_known_or_refused():
    assert sorted([*SEQUENTIAL, *REFUSED]) == list(models.names())


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_inputs_and_classes_are_whole_and_everything_else_is_coupled(name):
    shape, classes = SEQUENTIAL[name]
    module = models.build(name, shape, classes)
    layout, groups = models.layout(module), models.coupling(module)
    shapes = {p.name: p.shape for p in layout}
    coupled = {(axis.tensor, axis.axis): group.size * axis.block for group in groups for axis in group.axes}
    assert len(coupled) == sum(len(group.axes) for group in groups)  # no axis in two groups
    assert all(shapes[tensor][axis] == size for (tensor, axis), size in coupled.items())
    layers = [p.name for p in layout if len(p.shape) > 1]
    free = {(tensor, axis) for tensor in shapes for axis in range(min(2, len(shapes[tensor])))} - coupled.keys()
    last = layers[-1].removesuffix(".weight")
    assert free == {(layers[0], 1), (f"{last}.weight", 0), (f"{last}.bias", 0)}
    assert [group.name for group in groups] == [layer.removesuffix(".weight") for layer in layers[:-1]]


def test_coupling_of_lenet5_with_norms():
    conv1, conv2, fc1, _ = models.coupling(models.build("lenet5-bn", (3, 32, 32), 10))
    norm_tensors = [f"norm2.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
    assert conv2.name == "conv2"
    assert conv2.size == 16
    assert conv2.unit == 1
    rows = [Axis(name, 0) for name in ("conv2.weight", "conv2.bias", *norm_tensors)]
    assert list(conv2.axes) == [*rows, Axis("fc1.weight", 1, block=25)]  # maps of 5 × 5 are flattened
    assert conv1.axes[-1] == Axis("conv2.weight", 1)
    assert list(fc1.axes) == [Axis("fc1.weight", 0), Axis("fc1.bias", 0), Axis("fc2.weight", 1)]
    assert scales((conv1, conv2, fc1)) == {"conv1": "norm1.weight", "conv2": "norm2.weight"}


def test_a_model_without_the_norm_is_one_named_line():
    with pytest.raises(ModelError, match=r"model: expected a BatchNorm, .* got none behind conv1, conv2, fc1, fc2$"):
        scales(models.coupling(models.build("lenet5", (3, 32, 32), 10)))


def test_group_norms_keep_their_channels_together():
    module = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.GroupNorm(6, 12), nn.GroupNorm(4, 12), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )
    (group,) = models.coupling(module)
    assert group.unit == 6  # 2 channels a group and 3
    assert group.scale is None


class Backwards(nn.Module):
    """Layers whose names and order of registration are not the order of the forward pass."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 2)
        self.b = nn.Linear(8, 5)
        self.never = nn.Linear(3, 3)

    def forward(self, x):
        return self.a(functional.dropout(torch.tanh(self.b(x)), training=self.training))


def test_what_counts_is_the_order_of_the_calls():
    (group,) = models.coupling(Backwards())
    assert group.name == "b"
    assert list(group.axes) == [Axis("b.weight", 0), Axis("b.bias", 0), Axis("a.weight", 1)]


def test_global_pooling_leaves_one_input_for_each_channel():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    (group,) = models.coupling(module)
    assert group.axes[-1] == Axis("4.weight", 1, block=1)


def test_a_convolution_that_puts_out_the_classes_is_not_cut():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert [group.name for group in models.coupling(module)] == ["0"]


@pytest.mark.parametrize(
    ("name", "words"), [("resnet18-gn", "Resnet18Gn with add, which"), ("embedding-linear", "EmbeddingLinear with ne$")]
)
def test_shipped_models_that_are_no_sequence_say_so(name, words):
    with pytest.raises(ModelError, match=f"model: expected convolutions, .* got {words}") as caught:
        models.coupling(models.build(name, *REFUSED[name]))
    assert "\n" not in str(caught.value)


class Calls(nn.Module):
    """Anyone's forward pass over one linear layer and one convolution."""

    def __init__(self, forward):
        super().__init__()
        self.linear, self.conv = nn.Linear(4, 4), nn.Conv1d(4, 4, 1)
        self.call = forward

    def forward(self, x):
        return self.call(self, x)


def tied():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Calls(lambda net, x: net.linear(x) + x), "add"),
        (Calls(lambda net, x: net.linear(net.linear(x))), "linear, whose weights another layer has, too"),
        (Calls(lambda net, x: net.linear(net.conv(x))), "linear, a linear layer on maps that are not flattened"),
        (Calls(lambda net, x: net.conv(net.linear(x))), "conv, a convolution in groups or behind a flattening"),
        (Calls(lambda net, x: net.linear(x.flatten(0))), r"other than flatten\(1\)"),
        (Calls(lambda net, x: net.linear(torch.flatten(net.conv(x), 1, 1))), r"other than flatten\(1\)"),
        (Calls(lambda net, x: net.linear(x).flatten(1)), r"other than flatten\(1\)"),
        (Calls(lambda net, x: net.linear(x.reshape(-1, 4))), "reshape"),
        (Calls(lambda net, x: net.linear(functional.max_pool1d(net.conv(x).flatten(1), 2))), "max_pool1d"),
        (Calls(lambda net, x: net.linear(x if x.sum() > 0 else -x)), "a forward pass that cannot be traced"),
        (Calls(lambda net, x: (net.linear(x), x)), "another output than the last layer's"),
        (Calls(lambda net, x: functional.linear(x, net.linear.weight)), "linear_weight"),
        (nn.Sequential(nn.Conv2d(4, 4, 1, groups=2)), "0, a convolution in groups"),
        (nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), "0, a norm of flattened maps or of the input"),
        (nn.Sequential(nn.Conv1d(1, 4, 1), nn.Flatten(), nn.BatchNorm1d(8)), "2, a norm of flattened maps"),
        (nn.Sequential(nn.Conv1d(1, 4, 1), nn.GroupNorm(2, 4, affine=False)), "1, a GroupNorm without scale"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), r"1 \(LayerNorm\)"),
        (nn.Sequential(nn.Linear(4, 4), nn.PReLU()), r"1 \(PReLU\)"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), r"1 \(Softmax\)"),
        (nn.Sequential(nn.LSTM(4, 4)), r"0 \(LSTM\), which has more than weight and bias"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), "more than weight and bias|traced"),
    ],
)
def test_what_is_no_sequence_of_known_layers_is_refused_by_name(module, words):
    with pytest.raises(ModelError, match=f"got {type(module).__name__} with .*({words})") as caught:
        models.coupling(module)
    assert "\n" not in str(caught.value)


def test_layers_that_share_a_weight_are_refused_by_name():
    with pytest.raises(ModelError, match=r"where channels are to be cut .*got 0\.weight, which is 2\.weight too"):
        models.coupling(tied())
