"""The cases whose numbers a real device's are not compared with: rounding moves them on a CPU, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sepal.engines.in_process import run_in_process
from sepal.models.gate import Gate
from sepal.strategies.assembly import assemble
from tests.methods import flat
from tests.simulated_device.methods import ROUNDED, SMALL, arrays

ROUNDING = 3e-7  # of a layer's output, relative, as another order of sums makes it


def rounded(layer, generator):
    """A layer's function with another rounding."""

    def forward(*parts, **named):
        out = layer(*parts, **named)
        return out * (1 + ROUNDING * torch.randn(out.shape, generator=generator))

    return forward


def ended(name):
    return arrays(run_in_process(assemble(flat(name, **SMALL, device="cpu"))))


def distance(first, second):
    """Largest difference of two runs' numbers; infinite where their sizes or whole numbers differ."""
    largest = 0.0
    for key, value in first.items():
        if value.shape != second[key].shape or (value.dtype.kind != "f" and not np.array_equal(value, second[key])):
            return np.inf
        largest = (
            max(largest, float(np.abs(value - second[key]).max(initial=0))) if value.dtype.kind == "f" else largest
        )
    return largest


@pytest.mark.parametrize("name", [*sorted(ROUNDED), "fedavg", "ditto"])
def test_rounding_moves_the_cases_that_are_not_compared_far(name, monkeypatch):
    plain, generator = ended(name), torch.Generator().manual_seed(1)
    monkeypatch.setattr(F, "linear", rounded(F.linear, generator))
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", rounded(nn.Conv2d._conv_forward, generator))
    monkeypatch.setattr(Gate, "forward", rounded(Gate.forward, generator))
    drift = distance(plain, ended(name))
    assert (drift > 1e-3) if name in ROUNDED else (0 < drift < 1e-5)
