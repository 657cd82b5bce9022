"""Models that hold more than floating tensors of their ``state_dict``, and a task of three features for them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

KINDS = [
    *("averaging_norm", "momentum_norm", "counting", "annealing", "resident", "assigned", "lazy", "growing", "doubled"),
    *("cached", "listed", "hidden_norm", "object_held", "drops_less", "numpy_noise", "python_noise", "torch_noise"),
    *("noise_in_evaluation", "extra_state", "spectral", "pruned", "mapping", "tuple_in_training"),
    *("instance_norm", "quantile", "complex_mean", "tied_buffers", "masked_attention", "parametrized", "everything"),
]


def data(client):
    """Client c's examples are of N(5c, 1)."""
    rng = np.random.default_rng(client)
    x = rng.normal(5 * client, 1, (24, 3)).astype(np.float32)
    y = (x.sum(1) > 15 * client).astype(np.int64)
    return x[:16], y[:16], x[16:], y[16:]


class Layer(nn.Module):
    """What is done to the inputs (n, 3) before they are classified."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(self.changed(x))


def averaging_norm(shape, classes):
    return nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, classes))


def momentum_norm(shape, classes):
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, classes))


class Counting(Layer):
    """An integer buffer that moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def changed(self, x):
        self.steps += self.training
        return x / (1 + self.steps)


def counting(shape, classes):
    return Counting()


class Annealing(Layer):
    """A number of Python that moves, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def changed(self, x):
        self.steps += 1
        return x / self.steps


def annealing(shape, classes):
    return Annealing()


class Resident(Layer):
    """A buffer that is not persistent and of which a new one is assigned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3), persistent=False)

    def changed(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def resident(shape, classes):
    return Resident()


class Assigned(Resident):
    """The same, persistent: it is exchanged."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))


def assigned(shape, classes):
    return Assigned()


class Lazy(Layer):
    """A buffer that the first batch of training makes."""

    def changed(self, x):
        if self.training and "first" not in self._buffers:
            self.register_buffer("first", x.detach().mean(0), persistent=False)
        return x - self.first if "first" in self._buffers else x


def lazy(shape, classes):
    return Lazy()


class Growing(Layer):
    """A buffer whose shape changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, dtype=torch.int64))

    def changed(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, self.seen.new_ones(1)])
        return x / (1 + self.seen.sum())


def growing(shape, classes):
    return Growing()


class Doubled(Layer):
    """A buffer of 64 bits that moves, in evaluation too; and one whose entries share memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64), persistent=False)
        self.register_buffer("places", torch.arange(3).expand(2, 3))

    def changed(self, x):
        self.mean += 0.1 * x.detach().double().mean(0)
        return x - self.mean.float() + self.places[0]


def doubled(shape, classes):
    return Doubled()


class Cached(Layer):
    """A tensor as a plain attribute, made by the first batch, and one that is there from the start."""

    def __init__(self):
        super().__init__()
        self.first, self.mean = None, torch.zeros(3)

    def changed(self, x):
        if self.first is None:
            self.first = x.detach().mean(0)
        self.mean = (self.mean + x.detach().mean(0)) / 2
        return x - self.first + self.mean


def cached(shape, classes):
    return Cached()


class Listed(Layer):
    """A list that grows, which two layers share, and one that has the model's own layer."""

    def __init__(self):
        super().__init__()
        self.means = []
        self.again = self.means
        self.layers = [self.linear]

    def changed(self, x):
        self.means.append(float(x.detach().mean()))
        return x - sum(self.again) / len(self.again)

    def forward(self, x):
        return self.layers[0](self.changed(x))


def listed(shape, classes):
    return Listed()


class HiddenNorm(Layer):
    """A layer that is not registered, because a list holds it."""

    def __init__(self):
        super().__init__()
        self.norms = [nn.BatchNorm1d(3, affine=False)]

    def changed(self, x):
        return self.norms[0].train(self.training)(x)


def hidden_norm(shape, classes):
    return HiddenNorm()


class ObjectHeld(Layer):
    """An object with a number."""

    def __init__(self):
        super().__init__()
        self.count = SimpleNamespace(steps=0)

    def changed(self, x):
        self.count.steps += 1
        return x / self.count.steps


def object_held(shape, classes):
    return ObjectHeld()


class DropsLess(Layer):
    """A rate of one of torch's layers that the model changes."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def changed(self, x):
        self.dropout.p *= 0.5
        return self.dropout(x)


def drops_less(shape, classes):
    return DropsLess()


class Noisy(Layer):
    """Noise from a generator in training; with ``always``, in evaluation too."""

    def __init__(self, draw, always=False):
        super().__init__()
        self.draw, self.always = draw, always
        self.start = draw()

    def changed(self, x):
        return x + self.start + self.draw() if self.training or self.always else x


def from_torch():
    return float(torch.rand(()))


def numpy_noise(shape, classes):
    return Noisy(np.random.rand)


def python_noise(shape, classes):
    return Noisy(random.random)


def torch_noise(shape, classes):
    return Noisy(from_torch)


def noise_in_evaluation(shape, classes):
    return Noisy(np.random.rand, always=True)


class ExtraState(Annealing):
    """What ``state_dict`` has besides tensors."""

    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


def extra_state(shape, classes):
    return ExtraState()


def spectral(shape, classes):
    return nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, classes))


def pruned(shape, classes):
    from torch.nn.utils import prune

    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, classes))
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


class Mapping(Layer):
    def forward(self, x):
        return {"hidden": x, "logits": self.linear(x)}


def mapping(shape, classes):
    return Mapping()


class TupleInTraining(Layer):
    """As torchvision's models with auxiliary classifiers."""

    def forward(self, x):
        return (self.linear(x), x) if self.training else self.linear(x)


def tuple_in_training(shape, classes):
    return TupleInTraining()


def instance_norm(shape, classes):
    """Running statistics with a momentum, of a layer that normalises each example for itself."""
    norm = nn.InstanceNorm1d(1, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (1, 3)), norm, nn.Flatten(), nn.Linear(3, classes))


class Quantile(Layer):
    """Half-precision and boolean buffers that are not exchanged and move."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sixteen", torch.zeros(3, dtype=torch.float16), persistent=False)
        self.register_buffer("positive", torch.zeros(3, dtype=torch.bool))

    def changed(self, x):
        if self.training:
            mean = x.detach().mean(0)
            self.sixteen.copy_(0.9 * self.sixteen + 0.1 * mean)
            self.positive |= mean > 5
        return x - self.sixteen.float() * self.positive


def quantile(shape, classes):
    return Quantile()


class ComplexMean(Layer):
    """A buffer of complex numbers that stays as it is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.exp(1j * torch.arange(3)))

    def changed(self, x):
        return (x * self.turn).real


def complex_mean(shape, classes):
    return ComplexMean()


class TiedBuffers(Layer):
    """A buffer that two layers have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))
        self.linear.register_buffer("steps", self.steps)

    def changed(self, x):
        self.steps += self.training
        return x / (1 + self.linear.steps)


def tied_buffers(shape, classes):
    return TiedBuffers()


class MaskedAttention(Layer):
    """A mask that the first forward pass makes, as a buffer for whatever length comes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(1, 1, batch_first=True)
        self.register_buffer("mask", None, persistent=False)

    def changed(self, x):
        if self.mask is None:
            self.mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
        x = x.unsqueeze(2)
        return self.attention(x, x, x, attn_mask=self.mask)[0].squeeze(2)


def masked_attention(shape, classes):
    return MaskedAttention()


def parametrized(shape, classes):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, classes))
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


class Everything(nn.Module):
    """Much of the above, one after another."""

    def __init__(self, classes):
        super().__init__()
        kinds = Counting(), Annealing(), Resident(), Assigned(), Lazy(), Growing(), Doubled(), Cached(), Quantile()
        noise = Noisy(from_torch), Noisy(np.random.rand, always=True), Noisy(random.random)
        self.norm = nn.BatchNorm1d(3, momentum=None)
        self.layers, self.last = nn.ModuleList([*kinds, *noise]), nn.Linear(3, classes)

    def forward(self, x):
        for layer in self.layers:
            x = layer.changed(x)
        return {"logits": self.last(self.norm(x))}


def everything(shape, classes):
    return Everything(classes)
