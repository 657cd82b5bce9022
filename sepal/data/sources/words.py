"""A simple tokenizer: words of a text as tokens.

A word is a run of letters, digits and apostrophes, in lower case. Token 0 is padding, 1 an unknown word, 2 and up the
most frequent words of the training part, ties in alphabetical order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import PAD, SPECIALS, UNKNOWN

_WORD = re.compile(r"[a-z0-9']+")
_BREAK = re.compile(r"<br\s*/?>")


def tokenize(text: str) -> list[str]:
    """Return the words of a text, in lower case, without HTML line breaks."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def vocabulary(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Return the token of each of the most frequent words, from 2; ``size`` includes the two special tokens."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {word: number for number, (word, _) in enumerate(ordered[: size - SPECIALS], start=SPECIALS)}


def encode(words: list[str], numbers: dict[str, int], length: int) -> NDArray[np.int16]:
    """Return the first ``length`` words as tokens, int16 (length,), padded at the end."""
    tokens = np.full(length, PAD, dtype=np.int16)
    word_tokens = [numbers.get(word, UNKNOWN) for word in words[:length]]
    tokens[: len(word_tokens)] = word_tokens
    return tokens
