"""Small models of all kinds, and data for them: two clients with 16 examples each to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from sepal.data.sources.torchvision_import import torchvision

CLASSES = 3
EXAMPLES = 26
Shape = Any  # one shape, or the shapes of several inputs


@dataclass(frozen=True)
class ModelKind:
    """A row of the page.

    Attributes:
        title: What the model is.
        build: The function of this module that builds it.
        keys: Run-config keys of its data.
    """

    title: str
    build: Callable[[Shape, int], nn.Module]
    keys: Mapping[str, Any] = field(default_factory=dict)


def load(client: int, shape: tuple[int, ...], words: int = 0) -> tuple[Any, ...]:
    """Return (x_train, y_train, x_test, y_test): random examples, of token ids if there are ``words``."""
    rng = np.random.Generator(np.random.PCG64(client))
    x = rng.integers(0, words, (EXAMPLES, *shape)) if words else rng.standard_normal((EXAMPLES, *shape), np.float32)
    y = rng.integers(0, CLASSES, EXAMPLES)
    return x[:18], y[:18], x[18:], y[18:]


def rows(client: int) -> tuple[Any, ...]:
    """Return rows (n, 16)."""
    return load(client, (16,))


def images(client: int) -> tuple[Any, ...]:
    """Return images (n, 1, 8, 8)."""
    return load(client, (1, 8, 8))


def series(client: int) -> tuple[Any, ...]:
    """Return series of six steps (n, 6, 8)."""
    return load(client, (6, 8))


def texts(client: int) -> tuple[Any, ...]:
    """Return token ids (n, 6)."""
    return load(client, (6,), 12)


def both(client: int) -> tuple[Any, ...]:
    """Return rows and token ids, by name."""
    (x, y, x_test, y_test), (words, _, words_test, _) = rows(client), texts(client)
    return {"row": x, "words": words}, y, {"row": x_test, "words": words_test}, y_test


def pairs(client: int) -> tuple[Any, ...]:
    """Return the same by place."""
    x, y, x_test, y_test = both(client)
    return tuple(x.values()), y, tuple(x_test.values()), y_test


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Return linear layers with dropout."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, classes))


def cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Return two convolutions with norms, and a linear head."""
    first = nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(8, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def batch_norm(shape: Shape, classes: int) -> nn.Module:
    """Return convolutions with BatchNorm."""
    return cnn(nn.BatchNorm2d)


def group_norm(shape: Shape, classes: int) -> nn.Module:
    """Return convolutions with GroupNorm."""
    return cnn(lambda channels: nn.GroupNorm(2, channels))


class Residual(nn.Module):
    """A convolution around which its input is passed, as in a ResNet."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images to logits."""
        x = self.stem(x).relu()
        x = (x + self.norm(self.conv(x))).relu()
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Recurrent(nn.Module):
    """A recurrent layer and a linear head on its last step."""

    def __init__(self, kind: type[nn.RNNBase], classes: int) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 16, batch_first=True), nn.Linear(16, classes)  # type: ignore[arg-type, call-arg]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map series to logits."""
        out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return out


def gru(shape: Shape, classes: int) -> nn.Module:
    """Return a GRU."""
    return Recurrent(nn.GRU, classes)


def lstm(shape: Shape, classes: int) -> nn.Module:
    """Return an LSTM."""
    return Recurrent(nn.LSTM, classes)


class Encoder(nn.Module):
    """torch's TransformerEncoder with a learned position of each step."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.full((6, 8), 0.1))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map series to logits."""
        out: torch.Tensor = self.head(self.encoder(x + self.position).mean(1))
        return out


class Attention(nn.Module):
    """nn.MultiheadAttention between linear layers."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map series to logits."""
        out: torch.Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
        return out


def vision_transformer(shape: Shape, classes: int) -> nn.Module:
    """Return torchvision's VisionTransformer for images of 3 channels, behind a convolution that makes them."""
    family = torchvision("models.vision_transformer").VisionTransformer
    vit = family(8, 4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=classes)
    nn.init.normal_(vit.heads.head.weight, std=0.1)  # torchvision starts at 0, from where the rest gets no gradient
    return nn.Sequential(nn.Conv2d(1, 3, 1), vit)


class Words(nn.Module):
    """An embedding of tokens and linear layers on its mean."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map token ids to logits."""
        out: torch.Tensor = self.head(self.hidden(self.embed(x).mean(1)).relu())
        return out


class Layers(nn.Module):
    """Three linear layers: the plain model of the next ones."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map rows to logits."""
        out: torch.Tensor = self.head(self.second(self.first(x).relu()).relu())
        return out


def tied(shape: Shape, classes: int) -> nn.Module:
    """Return a model two of whose layers share their weight."""
    model = Layers(shape, classes)
    model.second.weight = model.first.weight
    return model


def frozen(shape: Shape, classes: int) -> nn.Module:
    """Return a model whose first layer is frozen."""
    model = Layers(shape, classes)
    model.first.requires_grad_(False)
    return model


class Two(nn.Module):
    """Takes a row and words."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.see, self.embed, self.head = nn.Linear(16, 16), nn.Embedding(12, 16), nn.Linear(16, classes)

    def forward(self, row: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Map both to logits."""
        out: torch.Tensor = self.head((self.see(row) + self.embed(words).mean(1)).relu())
        return out


class Counting(nn.Module):
    """Linear layers beside a counter and a mask of bools."""

    calls: torch.Tensor
    open: torch.Tensor

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(16, 16), nn.Linear(16, classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("open", torch.arange(16) < 14)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map rows to logits."""
        self.calls += 1
        out: torch.Tensor = self.head(self.hidden(x * self.open).relu())
        return out


ROWS = {"own.data": "rows", "own.shape": "16"}
IMAGES = {"own.data": "images", "own.shape": "1x8x8"}
SERIES = {"own.data": "series", "own.shape": "6x8"}
TEXTS = {"own.data": "texts", "own.shape": "6", "own.vocabulary": 12}
KINDS = (
    ModelKind("linear layers, dropout", mlp, ROWS),
    ModelKind("CNN with BatchNorm", batch_norm, IMAGES),
    ModelKind("CNN with GroupNorm", group_norm, IMAGES),
    ModelKind("residual CNN with BatchNorm", Residual, IMAGES),
    ModelKind("GRU", gru, SERIES),
    ModelKind("LSTM", lstm, SERIES),
    ModelKind("`nn.TransformerEncoder`", Encoder, SERIES),
    ModelKind("`nn.MultiheadAttention`", Attention, SERIES),
    ModelKind("torchvision's `VisionTransformer`", vision_transformer, IMAGES),
    ModelKind("embedding of tokens", Words, TEXTS),
    ModelKind("tied weights", tied, ROWS),
    ModelKind("frozen first layer", frozen, ROWS),
    ModelKind("inputs by name (dict)", Two, {"own.data": "both", "own.shape": "row=16,words=6i"}),
    ModelKind("inputs by place (tuple)", Two, {"own.data": "pairs", "own.shape": "16,6i"}),
    ModelKind("buffers of integers and bools", Counting, ROWS),
)
