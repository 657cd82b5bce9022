"""What a client tells the server about an error: a word of a fixed list, and no text of its own.

The text of an exception may hold private data, for example a row that a data function could not read. So it stays in
the client's log. What travels is a word, the error's class, a key of the run config or of the node if the error is
about one, and a code that names the entry in that log. The server composes its operator's sentence from the word, so
a client cannot choose any text of it. A word that the server does not know reads as ``other``.
"""

from __future__ import annotations

import builtins
import errno
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from sepal import errors
from sepal.config import RunConfig
from sepal.errors import (
    ConfigError,
    DamagedError,
    DataError,
    DeviceMemoryError,
    DivergedError,
    ModelError,
    SepalError,
    StateError,
)
from sepal.names import NAME


class Word(StrEnum):
    """What is wrong at a client."""

    NO_ROOM = "no-room"
    NOT_WRITABLE = "not-writable"
    PARTITION = "partition"
    KEY = "key"
    DATA = "data"
    MODEL = "model"
    STATE_LOST = "state-lost"
    WENT_BACK = "went-back"
    STATE = "state"
    DEVICE = "device"
    DEVICE_MEMORY = "device-memory"
    MEMORY = "memory"
    DIVERGED = "diverged"
    OTHER = "other"


# For each word, what is expected and what to do, in the words of the server's line: "client-1: WORD: expected ...".
SENTENCES: Mapping[Word, str] = {
    Word.NO_ROOM: "room on its disk (make room there, and it goes on by itself; its console names file and bytes)",
    Word.NOT_WRITABLE: "files that it may write (mend the rights or the mount there; its console names the file)",
    Word.PARTITION: "a part that the data set has (give it a `sepal join --partition` below `clients` and --of)",
    Word.KEY: "values that it can use (change the key, or that option of its `sepal join`; use one release of Sepal)",
    Word.DATA: "data that it can use (its console says what is wrong; mend it there and start the client again)",
    Word.MODEL: "a model that fits its data (its console says what is wrong; use the same model on both sides)",
    Word.STATE_LOST: "the state of the round before (put back its state-dir, set lost-states = restart, or evict it)",
    Word.WENT_BACK: "a round after those it answered (the server has an older copy; with noise, begin a new run)",
    Word.STATE: "a state-dir that is its own (its console names what to mend: another process, owner, or release)",
    Word.DEVICE: "a device that it has (change `device`, `precision`, or the --device of its `sepal join`)",
    Word.DEVICE_MEMORY: "an answer that fits the memory of its device (try a smaller batch-size or width)",
    Word.MEMORY: "an answer that fits its memory (try a smaller batch-size or model, or fewer processes there)",
    Word.DIVERGED: "finite numbers after training (try a smaller learning-rate)",
    Word.OTHER: "no error (look up the code in the node.log of that client)",
}
AWAY = frozenset({Word.NO_ROOM, Word.NOT_WRITABLE})  # what ends by itself: such a client is away, and asked again
# Options of a node that are no keys of a run.
NODE_KEYS = frozenset({"partition", "partitions", "partition-id", "num-partitions", "data", "capacity", "least-noise"})
NODE_KEYS |= {"accuracies", "no-accuracies", "only-secure", "most-uploads", "audit", "export", "whole", "allow"}
_PARTITION_KEYS = frozenset({"partition-id", "num-partitions", "partition", "partitions"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RIGHT = frozenset({errno.EACCES, errno.EPERM})
# Classes of errors, the keys for which the word holds (none: all), and the word; the first line that fits counts.
_WORDS: Sequence[tuple[tuple[type[BaseException], ...], frozenset[str], Word]] = (
    ((DivergedError,), frozenset(), Word.DIVERGED),
    ((DeviceMemoryError,), frozenset(), Word.DEVICE_MEMORY),
    ((ConfigError, DataError), _PARTITION_KEYS, Word.PARTITION),
    ((ConfigError,), frozenset({"device"}), Word.DEVICE),
    ((ConfigError,), frozenset({"precision"}), Word.DEVICE),
    ((ConfigError,), frozenset(), Word.KEY),
    ((DataError,), frozenset(), Word.DATA),
    ((ModelError,), frozenset(), Word.MODEL),
    ((DamagedError,), frozenset(), Word.STATE_LOST),
    ((StateError,), frozenset({"base"}), Word.STATE_LOST),
    ((StateError,), frozenset({"round"}), Word.WENT_BACK),
    ((StateError,), frozenset(), Word.STATE),
    ((MemoryError,), frozenset(), Word.MEMORY),
)
_CODE = re.compile(r"[0-9]{8}\Z")


def word_of(error: BaseException) -> Word:
    """Return the word for any exception; what it was raised from counts, too."""
    numbers = {cause.errno for cause in _chain(error) if isinstance(cause, OSError)}
    if numbers & _FULL:
        return Word.NO_ROOM
    if errno.EROFS in numbers:
        return Word.NOT_WRITABLE
    if numbers & _NO_RIGHT and not isinstance(error, ConfigError | DataError | ModelError):  # those only read
        return Word.NOT_WRITABLE
    key = error.key if isinstance(error, SepalError) else ""
    for kinds, keys, word in _WORDS:
        if isinstance(error, kinds) and (key in keys or not keys):
            return word
    return Word.OTHER


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it was raised from, also by ``from None``."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def parts_of(error: Exception, client: str, code: str, keys: Collection[str] = ()) -> dict[str, str]:
    """Return what is sent about an error: no part of its text.

    Args:
        error: Any exception.
        client: The client's name.
        code: Eight digits, which the client's log has with the details.
        keys: Keys of the run config beside those that every run has; the error's key is sent if it is one of ours.
    """
    kinds = (kind.__name__ for kind in type(error).__mro__ if _is_public(kind))
    key = error.key if isinstance(error, SepalError) and error.key in {*shared_keys(), *keys} else ""
    return {"word": word_of(error).value, "type": next(kinds), "key": key, "code": code, "client": client}


def read_parts(record: Mapping[str, Any], keys: Collection[str] = ()) -> tuple[Word, SepalError]:
    """Return the word of a client's error, and the error in the server's own words.

    Args:
        record: What :func:`parts_of` returned, or anything: whatever is not as it should be is left out.
        keys: Keys of the run config beside those that every run has.
    """
    word = sent if (sent := _text(record, "word")) in set(Word) else Word.OTHER.value
    known = Word(word)
    kind = _text(record, "type")
    klass = getattr(errors, kind, None) or getattr(builtins, kind, None)
    kind_name = kind if isinstance(klass, type) and _is_public(klass) else "Exception"
    key = _text(record, "key")
    about = f"{known}: {key}" if key in {*shared_keys(), *keys} else str(known)
    code = _text(record, "code")
    where = f", code {code} in its node.log" if _CODE.match(code) else ""
    client = name if NAME.match(name := _text(record, "client")) else "?"
    raised = klass if isinstance(klass, type) and _is_public(klass) and issubclass(klass, SepalError) else SepalError
    return known, raised(f"{client}: {about}", SENTENCES[known], f"{kind_name}{where}")


def _text(record: Mapping[str, Any], part: str) -> str:
    value = record.get(part)
    return value if isinstance(value, str) and len(value) <= 128 else ""


def _is_public(kind: type) -> bool:
    """Return whether a class is an error of Sepal or of Python; the name of any other one is a text of the client."""
    modules = (errors, builtins)
    return issubclass(kind, Exception) and any(getattr(module, kind.__name__, None) is kind for module in modules)


@cache
def shared_keys() -> frozenset[str]:
    """Return the keys of every run config and of every node."""
    return NODE_KEYS | RunConfig().flat().keys()
