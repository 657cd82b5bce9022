"""A user's model may return more than its logits, in the ways that libraries do; all else is refused in a line."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ModelError

Auxiliary = namedtuple("Auxiliary", "logits aux_logits")  # as torchvision's Inception, while it is trained
RETURN = {
    "tensor": lambda logits: logits,
    "mapping": lambda logits: {"hidden": None, "logits": logits},
    "ordered": lambda logits: OrderedDict(loss=None, logits=logits),  # as Hugging Face's
    "out": lambda logits: OrderedDict(out=logits, aux=logits[:, :1]),  # as torchvision's segmentation
    "object": lambda logits: SimpleNamespace(logits=logits, hidden=logits),
    "named": lambda logits: Auxiliary(logits, None),
    "pair": lambda logits: (logits, logits[:, :1]),
    "triple": lambda logits: [logits, None, None],
}
REFUSED = {
    "nothing": (lambda logits: None, "NoneType"),
    "empty": (lambda logits: (), "tuple"),
    "hidden": (lambda logits: {"hidden": logits, "loss": 1}, "dict with hidden, loss"),
    "text": (lambda logits: ("a", logits), "tuple"),
    "array": (lambda logits: logits.numpy(), "ndarray"),
}


class Returning(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(3, 2), change

    def forward(self, x):
        return self.change(self.linear(x))


for name, change in {**RETURN, **{key: change for key, (change, _) in REFUSED.items()}}.items():
    globals()[name] = lambda shape, classes, change=change: Returning(change)


@pytest.mark.parametrize("kind", RETURN)
def test_logits_are_taken(kind):
    module = models.build(f"{__name__}:{kind}", (3,), 2)
    x = torch.randn(4, 3)
    for training in (True, False):
        assert torch.equal(module.train(training)(x), module.linear(x))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_logits_is_refused(kind):
    words = "model: expected a tensor as output, a mapping or an object with logits, or a tuple that begins with one"
    with pytest.raises(ModelError) as caught:
        models.build(f"{__name__}:{kind}", (3,), 2)
    assert str(caught.value) == f"{words}, got {REFUSED[kind][1]}"


def test_too_few_logits_are_refused_as_before():
    with pytest.raises(ModelError, match=r"to logits of shape \(2, 5\), got shape \(2, 2\)"):
        models.build(f"{__name__}:mapping", (3,), 5)
