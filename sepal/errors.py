"""The errors that Sepal raises on bad input. Each is one line with a key, what was expected, and what was found.

Programming errors raise Python's own exceptions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MOST_CAUSES, MOST_NAMES = 5, 3  # that one line tells of clients
NESTED = re.compile(r": expected .+, got ")
BEGAN = "the data with which the run was started"
OTHER_DATA = (
    "bring them back, or begin a new run (with data-changes = freeze or accept they may change); its files, "
    "schema.toml or what its function returns have changed, or another version of Sepal, which reads them otherwise, "
    "began the run"
)
FEW = 3  # characters of a last part of which the beginning is likely to be meant


def printable(text: str) -> str:
    """Return ``text`` with a blank for every other white space and a question mark for all that cannot be printed.

    That is every control character (C0, C1, so also escapes and the bell), every mark that turns the direction of
    writing, and what is left of bytes that are no text. Whatever comes from a file, a message or a name of elsewhere
    goes through this function before it is printed, drawn or put into a name.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def one_line(text: str, limit: int = 1000) -> str:
    """Return ``text`` as one printable line of at most ``limit`` characters, safe to print to a log or terminal."""
    return " ".join(printable(text[:limit]).split())


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return the name in ``known`` that is most similar to ``word``; empty if none is similar.

    The last part of a dotted name counts as similar: ``keep`` gives ``fedpse.keep``. So does the beginning of a name:
    ``split.test`` gives ``split.test-fraction``. Capitals do not count.
    """
    names = {name.lower(): name for name in candidates}
    word, last = word.lower(), word.rpartition(".")[2]
    near = [name for lower, name in names.items() if lower == word or lower.endswith(f".{word}")]
    near += [name for lower, name in names.items() if lower.startswith(word) and len(last) >= FEW]
    return next(iter(near), "") or next((names[low] for low in difflib.get_close_matches(word, names, 1)), "")


def suggest(got: str, word: str, candidates: Iterable[str]) -> str:
    """Return ``got``, followed by a similar known name if there is one: ``cifar10; did you mean cifar-10?``."""
    near = nearest(word, candidates)
    return f"{got}; did you mean {near}?" if near else got


class SepalError(Exception):
    """Base of Sepal's errors.

    Args:
        key: A config key, a field of a message, or a path.
        expected: What would have been valid.
        got: What was found; cut at 300 characters.
    """

    def __init__(self, key: str, expected: str, got: object) -> None:
        got_text = got if isinstance(got, str) else repr(got)
        self.key = key
        self.expected = expected
        self.got = got_text if len(got_text) <= 300 else got_text[:297] + "..."
        super().__init__(self._line())

    def _line(self) -> str:
        if NESTED.search(self.got):  # the line of another error: no "expected … got …" within another
            return one_line(f"{self.key}: needed {self.expected}, but {self.got}")
        return one_line(f"{self.key}: expected {self.expected}, got {self.got}")

    def __reduce__(self) -> tuple[type[SepalError], tuple[str, str, str]]:
        """Support pickling, because worker processes send exceptions."""
        return type(self), (self.key, self.expected, self.got)


def causes_of(errors: Iterable[SepalError]) -> str:
    """Return several clients' errors as one text: each cause once and whole, the commonest first, with its clients.

    Causes that differ in numbers alone, such as that of a client, are one, in the words of its first client.

    Args:
        errors: Errors whose keys begin with a client (``node 3: client-00002: data``) or are one.
    """
    pairs = []
    for error in errors:
        who, _, key = error.key.rpartition(": ")
        cause = f"{key}: expected {error.expected}, got {error.got}" if who else error.got
        pairs.append((who or error.key, cause))
    return told_causes(pairs)


def told_causes(pairs: Iterable[tuple[str, str]]) -> str:
    """Return causes as one text, as :func:`causes_of` does; ``pairs`` are clients and what went wrong with each."""
    groups: dict[str, tuple[str, dict[str, None]]] = {}
    for who, cause in pairs:
        groups.setdefault(re.sub(r"\d+", "#", cause), (cause, {}))[1][who] = None
    causes = sorted(groups.values(), key=lambda group: -len(group[1]))
    words = [f"{cause} ({_names(list(clients))})" for cause, clients in causes[:MOST_CAUSES]]
    uncounted = len(causes) - MOST_CAUSES
    return "; ".join([*words, *([f"{uncounted} other cause{'s' * (uncounted > 1)}"] if uncounted > 0 else [])])


def _names(clients: Sequence[str]) -> str:
    names = ", ".join(clients[:MOST_NAMES])
    return names if len(clients) <= MOST_NAMES else f"{names} and {len(clients) - MOST_NAMES} more"


class ConfigError(SepalError):
    """A run-config key is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(SepalError):
    """A data set, a partition or a client's part of it is missing or unusable."""


class ChangedDataError(DataError):
    """A client has other data than those with which it began the run.

    A node that reports it is known to say no more than that (:meth:`of`), so its text may be sent and shown.
    """

    @classmethod
    def of(cls, client: str, began: str = "", now: str = "") -> ChangedDataError:
        """Return the error of a client, with the digests of its data if they are known."""
        first, second = (f" (digest {digest[:12]})" if digest else "" for digest in (began, now))
        return cls(f"{client}: data", f"{BEGAN}{first}", f"other data{second}: {OTHER_DATA}")


class ModelError(SepalError):
    """A model cannot be built, or does not fit the data."""


class DivergedError(ModelError):
    """Training from the server's model gave values that are not finite, or too large to be sent."""


class DeviceMemoryError(SepalError):
    """The memory of the device does not hold what a client's answer needs."""


class WireError(SepalError):
    """Bytes are not a valid payload (see ``sepal/wire/FORMAT.md``)."""


class ProtocolError(SepalError):
    """The content of a message does not match the protocol or the method's schema."""


class StateError(SepalError):
    """A stored state, checkpoint or record is missing, damaged, locked, or belongs to another run."""


class DamagedError(StateError):
    """A file that Sepal wrote is incomplete or was changed."""


class SupersededError(SepalError):
    """Another process has taken the run over, and this one must write no more of it."""


class RosterError(SepalError):
    """The registered clients are not those that the run needs, for example too few or two with the same name."""


class RoundError(SepalError):
    """A round cannot be completed, for example because too few clients replied before the deadline."""


class _ClientsError(SepalError):
    """Clients cannot do what is asked of them.

    Args:
        key: The clients, for example ``10 of 10 clients``.
        expected: What they were to do.
        got: Each cause, of :func:`causes_of`; not cut.
    """

    def __init__(self, key: str, expected: str, got: str) -> None:
        super().__init__(key, expected, got)
        self.got = got
        self.args = (one_line(f"{key} cannot {expected}: {got}", 4000),)


class UnfitError(_ClientsError, RosterError):
    """Clients of a new run cannot take part in it."""


class FailedError(_ClientsError, RoundError):
    """Clients cannot take part in a round."""
