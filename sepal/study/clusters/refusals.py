"""When a submission that Slurm has refused is tried again: ever more seldom, and one for all with the same answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 64  # looks between two tries


@dataclass
class _Refusal:
    """Submissions that were refused in the same words.

    Attributes:
        due: The look at which one of them is tried again.
        tries: Tries so far; several runs that were tried before the first pause was over count as one.
        pause: Looks between the last try and the next.
    """

    due: int
    tries: int = 1
    pause: int = 1


class Refusals:
    """What Slurm has refused, by its words; time is counted in looks at its queue.

    A plan's runs are refused in the same words for the same reason, such as a limit or a partition that is unknown, so
    one of them at a time is tried again. The pause doubles with each refusal, up to :data:`LONGEST` looks.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._said, self._refusals = set[str](), dict[str, _Refusal]()

    def look(self) -> None:
        """Count a look."""
        self._looks += 1

    def add(self, words: str) -> bool:
        """Note a refusal; return whether it is the first in these words."""
        kind = _kind(words)
        if (refusal := self._refusals.get(kind)) is None:
            self._refusals[kind] = _Refusal(self._looks + 1)
        elif self._looks >= refusal.due:
            refusal.tries, refusal.pause = refusal.tries + 1, min(2 * refusal.pause, LONGEST)
            refusal.due = self._looks + refusal.pause
        is_first = kind not in self._said
        self._said.add(kind)
        return is_first

    def end(self, words: str) -> None:
        """Note that a submission was taken that had been refused in these words: all others may be tried at once."""
        self._refusals.pop(_kind(words), None)

    def hasten(self) -> None:
        """Begin again with short pauses, because a job has ended and its place may be free."""
        self._refusals = {kind: _Refusal(self._looks + 1) for kind in self._refusals}

    def is_due(self, words: str) -> bool:
        """Return whether one that was refused in these words is to be tried at this look."""
        refusal = self._refusals.get(_kind(words))
        return refusal is None or self._looks >= refusal.due

    def tries(self, words: str) -> int:
        """Return how often Slurm has refused in these words since the last job ended."""
        refusal = self._refusals.get(_kind(words))
        return refusal.tries if refusal else 0


def _kind(words: str) -> str:
    return re.sub(r"\d+", "#", words)
