"""IMDB: 50,000 film reviews, positive or negative (Maas et al. 2011), as tokens (:mod:`sepal.data.sources.words`).

A review keeps its first 256 tokens; shorter ones are padded at the end. Labels: 0 negative, 1 positive.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from sepal.data.catalogue import CATALOGUE, IMDB_LENGTH, IMDB_VOCABULARY
from sepal.data.examples import Source
from sepal.data.sources.reading import reading
from sepal.data.sources.words import encode, first_words, vocabulary
from sepal.errors import DataError
from sepal.storage.regular import check_regular

_CLASSES = ("neg", "pos")


def files(directory: Path) -> list[Path] | None:
    """Return the four directories that identify the data, by modification time; None if one is missing."""
    folders = [directory / "aclImdb" / part / sign for part in ("train", "test") for sign in _CLASSES]
    return folders if all(folder.is_dir() for folder in folders) else None


def read(directory: Path) -> Source:
    """Read and tokenize the reviews: int16 (n, 256), training rows first. Takes about 30 s; cached by the caller.

    Raises:
        DataError: A directory is missing or has no reviews.
    """
    folders = files(directory)
    if folders is None:
        where = f"aclImdb/{{train,test}}/{{pos,neg}}/*.txt in {directory}"
        raise DataError("data-dir", where, "not all of them (unpack ai.stanford.edu/~amaas/data/sentiment there)")
    counts = Counter[str]()
    texts = [
        first_words(map(_review, _reviews(folder)), IMDB_LENGTH, counts if number < 2 else None)
        for number, folder in enumerate(folders)
    ]
    numbers = vocabulary(counts, IMDB_VOCABULARY)
    x = np.stack([encode(words, numbers, IMDB_LENGTH) for part in texts for words in part])
    y = np.repeat(np.array([0, 1, 0, 1], dtype=np.int64), [len(part) for part in texts])
    return Source(CATALOGUE["imdb"], x, y, len(texts[0]) + len(texts[1]))


def _reviews(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.txt"), key=lambda path: path.name)
    if not paths:
        raise DataError(str(folder), "reviews as .txt files", "none")
    return paths


def _review(path: Path) -> str:
    with reading(str(path), "a readable review"):
        check_regular(path)
        return path.read_text(encoding="utf-8", errors="replace")
