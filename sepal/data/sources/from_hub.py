"""Public data sets in the layout of the Hugging Face hub: AG News, Shakespeare and Tiny-ImageNet.

Their files are the hub's Parquet files, where ``dataset = "hf"`` has them, too: ``hf/OWNER%2FNAME`` in the directory of
data sets (:mod:`sepal.data.sources.hub`). They are downloaded there if they are missing, or put there by hand.

=============  ==========================  =============================================================================
data set       name on the hub             columns and parts that are read
=============  ==========================  =============================================================================
ag-news        ``fancyzhx/ag_news``        ``text``, ``label`` 0-3; ``train``, ``test``
shakespeare    ``flwrlabs/shakespeare``    ``x`` of 80 letters, ``y`` the next letter, ``character_id``; ``train``
tiny-imagenet  ``zh-plus/tiny-imagenet``   ``image`` of 64 x 64, ``label`` 0-199; ``train``, ``valid`` as the test part
=============  ==========================  =============================================================================

AG News (Zhang et al. 2015) becomes tokens as IMDB does (:mod:`sepal.data.sources.words`).

Shakespeare (LEAF, Caldas et al. 2018) has a client for each speaking role. A letter is a token, a class is the next
letter, both in the order of LEAF's 80 letters. Another letter is an unknown token in x; a window whose y is another one
is left out, and counted in the log (LEAF's code takes it for the last of the 80). Windows of a role follow each other
letter by letter, so two neighbours share 79 letters. As LEAF's do, test and validation parts have the last windows of a
role, and 79 windows before them are in no part (:func:`sepal.data.splitting.end_of_rows`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import (
    AG_NEWS_LENGTH,
    AG_NEWS_VOCABULARY,
    CATALOGUE,
    LETTERS,
    SPECIALS,
    UNKNOWN,
    WINDOW,
)
from sepal.data.examples import Labels, Source
from sepal.data.locations import downloads_allowed
from sepal.data.sources import hub
from sepal.data.sources.images import ImageFormat, from_cell
from sepal.data.sources.reading import Unpacked, reading
from sepal.data.sources.words import encode, first_words, vocabulary
from sepal.errors import DataError

log = logging.getLogger("sepal")
SIDE = 64  # pixels of Tiny-ImageNet
ORDER_CHECKED = 100_000  # windows of Shakespeare: the whole has 4 million


class FromHub(NamedTuple):
    """One of the data sets: its name on the hub, and what makes a source of its parts."""

    repository: str
    source: Callable[[str, dict[str, Any]], Source]

    def files(self, directory: Path) -> list[Path] | None:
        """Return the files that identify the data; None if they are missing."""
        return hub.files(self._copy(directory))

    def read(self, directory: Path) -> Source:
        """Read the data set.

        Raises:
            DataError: It is missing and cannot be downloaded, or its files are invalid.
        """
        copy = self._copy(directory)
        if hub.files(copy) is None and not downloads_allowed():
            expected = f"the Parquet files of {self.repository} (Hugging Face hub) in {copy}"
            raise DataError("data-dir", expected, "none, and SEPAL_DOWNLOAD=0")
        hub.local_copy(self.repository, directory)
        with reading(str(copy), "the columns of the data set on the hub"):
            return self.source(str(copy), hub.parts_of(copy))

    def _copy(self, directory: Path) -> Path:
        return directory / "hf" / quote(self.repository, safe="")


def _part(key: str, parts: dict[str, Any], *names: str) -> Any:
    """Return the part of the first of these names that is there.

    Raises:
        DataError: None is, or it has no rows.
    """
    part = next((parts[name] for name in names if name in parts), None)
    if part is None or not len(part.table):
        raise DataError(key, f"a part {' or '.join(names)} with rows", ", ".join(sorted(parts)))
    return part


def _labels(key: str, part: Any, classes: int) -> Labels:
    column = part.numbers("label")
    labels: Labels = column.astype(np.int64)
    if not (labels == column).all() or labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"{key}, column label", f"whole numbers from 0 to {classes - 1}", f"up to {column.max()}")
    return labels


def _ag_news(key: str, parts: dict[str, Any]) -> Source:
    """Return int16 tokens (n, 128), training rows first."""
    info, texts, labels, counts = CATALOGUE["ag-news"], [], [], Counter[str]()
    for name in ("train", "test"):
        part = _part(key, parts, name)
        declared = part.labels.get("label", info.class_names)
        if tuple(declared) != info.class_names:
            raise DataError(f"{key}, column label", f"classes {', '.join(info.class_names)}", ", ".join(declared))
        cells = part.cells("text")
        if odd := [row for row, cell in enumerate(cells) if not isinstance(cell, str)]:
            raise DataError(f"{key}, row {odd[0]}, column text", "a text", "none")
        texts.append(first_words(cells, AG_NEWS_LENGTH, counts if name == "train" else None))
        labels.append(_labels(key, part, info.classes))
    numbers = vocabulary(counts, AG_NEWS_VOCABULARY)
    x = np.stack([encode(words, numbers, AG_NEWS_LENGTH) for part in texts for words in part])
    return Source(info, x, np.concatenate(labels), len(texts[0]))


def _tiny_imagenet(key: str, parts: dict[str, Any]) -> Source:
    """Return uint8 images (n, 64, 64, 3), training rows first."""
    both = [_part(key, parts, "train"), _part(key, parts, "valid", "validation")]
    x = np.empty((sum(len(part.table) for part in both), SIDE, SIDE, 3), np.uint8)
    row = 0
    for part in both:
        unpacked = Unpacked(key, part.table.nbytes)
        for cell in part.column("image"):
            image = from_cell(f"{key}, row {row}, column image", cell.as_py(), ImageFormat(channels=3))
            if image.shape != x.shape[1:] or image.dtype != np.uint8:
                raise DataError(f"{key}, row {row}, column image", f"an image of {SIDE} x {SIDE}", image.shape)
            unpacked.add(image.nbytes)
            x[row] = image
            row += 1
    labels = [_labels(key, part, CATALOGUE["tiny-imagenet"].classes) for part in both]
    return Source(CATALOGUE["tiny-imagenet"], x, np.concatenate(labels), len(labels[0]))


def _shakespeare(key: str, parts: dict[str, Any]) -> Source:
    """Return int16 tokens (n, 80), the next letter of each window, and the number of its role in the sorted ones."""
    part = _part(key, parts, "train")
    x, y = (_letters(f"{key}, column {name}", part.column(name), size) for name, size in (("x", WINDOW), ("y", 1)))
    roles = part.column("character_id").dictionary_encode().combine_chunks()
    names = roles.dictionary.to_pylist()
    if roles.null_count or not all(isinstance(name, str) for name in names):
        raise DataError(f"{key}, column character_id", "a text in each row", "others")
    ranks = np.empty(len(names), np.int64)
    ranks[np.argsort(names)] = np.arange(len(names))
    next_letter = y[:, 0].astype(np.int64) - SPECIALS
    usable = next_letter >= 0
    if lacking := int((~usable).sum()):
        words = "shakespeare: %s of %s windows are left out: the next letter is none of LEAF's 80"
        log.warning(words, f"{lacking:,}", f"{len(usable):,}")
        x = x[usable]
    natural = ranks[roles.indices.to_numpy()[usable]]
    _check_order(key, x, natural)
    return Source(CATALOGUE["shakespeare"], x, next_letter[usable], len(x), natural)


def _check_order(key: str, x: NDArray[np.int16], natural: NDArray[np.int64]) -> None:
    """Check that most windows of a role follow the one before: parts that have no letter in common rely on it.

    Raises:
        DataError: They do not.
    """
    order = np.argsort(natural, kind="stable")
    before, after = order[:-1], order[1:]
    pairs = natural[before] == natural[after]
    before, after = before[pairs][:ORDER_CHECKED], after[pairs][:ORDER_CHECKED]
    following = int((x[before, 1:] == x[after, :-1]).all(axis=1).sum())
    if 2 * following < len(before):
        expected = "windows of a role in the order of its text, each a letter after the one before"
        raise DataError(f"{key}, column x", expected, f"{following:,} of {len(before):,} that are")


def _letters(key: str, column: Any, size: int) -> NDArray[np.int16]:
    """Return a column of texts of ``size`` letters as tokens (n, size): 1 for a letter that is none of LEAF's."""
    tokens = np.full(128, UNKNOWN, np.int16)
    tokens[[ord(letter) for letter in LETTERS]] = np.arange(SPECIALS, SPECIALS + len(LETTERS))
    parts = [np.empty((0, size), np.int16)]
    for chunk in column.chunks:
        cells = chunk.to_pylist()
        if odd := [cell for cell in cells if not isinstance(cell, str) or len(cell) != size]:
            raise DataError(key, f"{size} letter{'s' * (size > 1)} in each row", repr(odd[0])[:120])
        codes = np.frombuffer("".join(cells).encode("utf-32-le", "surrogatepass"), np.uint32).reshape(-1, size)
        parts.append(tokens[np.minimum(codes, 127)])
    return np.concatenate(parts)


AG_NEWS = FromHub("fancyzhx/ag_news", _ag_news)
SHAKESPEARE = FromHub("flwrlabs/shakespeare", _shakespeare)
TINY_IMAGENET = FromHub("zh-plus/tiny-imagenet", _tiny_imagenet)
