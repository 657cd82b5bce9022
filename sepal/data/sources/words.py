"""A simple tokenizer: words of a text as tokens.

A word is a run of letters, digits and apostrophes, in lower case. Token 0 is padding, 1 an unknown word, 2 and up the
most frequent words of the training part, ties in alphabetical order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import PAD, SPECIALS, UNKNOWN

_WORD = re.compile(r"[a-z0-9']+")
_BREAK = re.compile(r"<br\s*/?>")


def tokenize(text: str) -> Iterator[str]:
    """Yield the words of a text, in lower case, without HTML line breaks."""
    return (match.group() for match in _WORD.finditer(_BREAK.sub(" ", text.lower())))


def first_words(texts: Iterable[str], length: int, counts: Counter[str] | None = None) -> list[list[str]]:
    """Return the first ``length`` words of each text.

    Only these stay in memory: as objects, words take twenty times their letters, and a small file may hold very many.

    Args:
        texts: The texts.
        length: Words that are kept of each.
        counts: To which all words are added, also those that are not kept.
    """
    kept = []
    for text in texts:
        words = tokenize(text)
        first = list(islice(words, length))
        if counts is not None:
            counts.update(first)
            counts.update(words)
        kept.append(first)
    return kept


def vocabulary(counts: Counter[str], size: int) -> dict[str, int]:
    """Return the token of each of the most frequent words, from 2; ``size`` includes the two special tokens."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: number for number, (word, _) in enumerate(ordered[: size - SPECIALS], start=SPECIALS)}


def encode(words: list[str], numbers: dict[str, int], length: int) -> NDArray[np.int16]:
    """Return the first ``length`` words as tokens, int16 (length,), padded at the end."""
    tokens = np.full(length, PAD, dtype=np.int16)
    word_tokens = [numbers.get(word, UNKNOWN) for word in words[:length]]
    tokens[: len(word_tokens)] = word_tokens
    return tokens
