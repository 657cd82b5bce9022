"""A model with an embedding, built without a vocabulary."""

from __future__ import annotations

import pytest
from torch import nn

from sepal.errors import ModelError
from sepal.strategies.assembly import assemble


def words(shape, classes):
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4 * shape[0], classes))


def test_an_embedding_without_a_vocabulary_is_told_which_key_it_needs():
    keys = {"dataset": "own", "own.shape": "5", "own.classes": 2, "model": f"{__name__}:words", "clients": 2}
    with pytest.raises(ModelError, match=r"whole numbers come with own\.vocabulary"):
        assemble({**keys, "method": "fedavg"})
