"""The next token: letters of the Zen of Python, which Python's module ``this`` ships, enciphered."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

CLIENTS, LENGTH = 4, 16
LETTERS = "abcdefghijklmnopqrstuvwxyz '.,-!*\n"


def text() -> str:
    """Return the poem in small letters."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return "".join(this.d.get(letter, letter) for letter in this.s).lower()


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test): int32 (n, 16), letters, and (n, 16), the letters that follow each."""
    codes = np.array([LETTERS.index(letter) for letter in text() if letter in LETTERS], np.int32)
    mine = np.array_split(codes, CLIENTS)[client % CLIENTS]
    windows = np.lib.stride_tricks.sliding_window_view(mine, LENGTH + 1)[::2]
    x, y = windows[:, :-1].copy(), windows[:, 1:].astype(np.int64)
    cut = len(x) * 2 // 3
    after = cut + LENGTH // 2  # the windows between share letters with those of the test
    return x[:cut], y[:cut], x[after:], y[after:]


class Letters(nn.Module):
    """A recurrent network over letters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embedding, self.memory = nn.Embedding(letters, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map letters, (batch, length), to logits (batch, length, letters)."""
        logits: torch.Tensor = self.head(self.memory(self.embedding(x.long()))[0])
        return logits


def build(input_shape: Sequence[int], letters: int) -> nn.Module:
    """Return a small network from (batch, 16) to logits (batch, 16, letters)."""
    return Letters(letters)
