"""Networks for texts as sequences of token ids: of words, and of letters."""

from __future__ import annotations

import torch
from torch import nn

from sepal.errors import ModelError

PADDING = 0  # the token id that fills up short texts


class EmbeddingLinear(nn.Module):
    """FedPSE's network for IMDB: embedding, mean, linear. Vocabulary 10,000, 2 classes: 160,034 parameters.

    The paper (appendix C.2) says "one Embedding layer, prebuilt in Keras, followed by a fully-connected layer"; the
    width of 16 is that of Keras' own text example. Padding does not count in the mean and is not trained.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, vocabulary: int) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ModelError("model", "text (tokens,) for EmbeddingLinear", f"data of shape {input_shape}")
        self.embedding = nn.Embedding(vocabulary, 16, padding_idx=PADDING)
        self.fc = nn.Linear(16, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens, int64 (batch, length), 0 = padding, to logits, float32 (batch, classes)."""
        present = (tokens != PADDING).unsqueeze(-1)
        total = (self.embedding(tokens) * present).sum(1)
        logits: torch.Tensor = self.fc(total / present.sum(1).clamp(min=1))
        return logits


class ShakespeareLstm(nn.Module):
    """LEAF's network for the next letter of Shakespeare: embedding, two LSTM layers, linear. 819,936 parameters.

    LEAF (``models/shakespeare/stacked_lstm.py``): embedding of 8, two layers of 256, the output after the last letter.
    TensorFlow's layers have one bias for each gate, torch's two; and padding and an unknown letter have a row of the
    embedding each, so that there are 2,048 and 16 more parameters. With 80 letters and classes LEAF's has 817,872.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, vocabulary: int) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ModelError("model", "text (tokens,) for ShakespeareLstm", f"data of shape {input_shape}")
        self.embedding = nn.Embedding(vocabulary, 8, padding_idx=PADDING)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.fc = nn.Linear(256, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens, int64 (batch, length), to logits of the next one, float32 (batch, classes)."""
        outputs, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.fc(outputs[:, -1])
        return logits
