"""How a run gets over a model from which most clients cannot train (``on-divergence = "rollback"``).

Clients diverge from a model of round r - 1 because the round that made it went too far, or because their own steps are
too large. So the newest round of which the server has uploads is undone, and the run is continued as after a restart,
from the state before it; the server's and the clients' states go back together, because both are kept by version. That
round and those up to round r are then run with half the learning rate, and with uploads refused whose change is far
above the round's median (:data:`NORM_FACTOR`). If most clients diverge again, the rates are a quarter, then an eighth;
after that the run ends, and says so. If a repeated round fails itself, its rate is halved once more, and the rates stay
lowered up to the round that failed first: so at the fourth failure on the way to one round the run ends, and clients
that lie cannot send it to and fro. A round whose result cannot be used (:mod:`sepal.server.outcome`) is repeated in the
same way, without undoing another.

What was undone is not lost: a round that is repeated has a record from the moment at which it is undone
(``RoundRecord.undone``), with the messages, the seconds and the diverged clients of all that it replaces. A server that
is killed then begins at the same attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sepal.config import RunConfig
from sepal.server.ledger import LedgerEntry
from sepal.server.run_state import RoundRecord

MOST_HALVINGS = 3  # attempts with rates of 1/2, 1/4 and 1/8 before a run ends
REMEDY = "set a lower lr or a smaller clip-gradient, or max-update-norm = 3 if an upload may be poisoned"
REMEDY_WITH_NOISE = (
    "set a lower lr or a smaller clip-gradient, or evict clients that lie"  # which has no max-update-norm
)
REMEDY_WITH_SUMS = (
    "set a lower lr, a smaller clip-gradient or a larger secure-range, or evict clients that lie"  # the same
)
NORM_FACTOR = 3.0  # max-update-norm in a repeated round, if none is set; what its description advises


def most_diverged(trained: int, diverged: int, min_replies: int) -> bool:
    """Return whether a round's model is one from which clients cannot train.

    Args:
        trained: Clients whose training ended well.
        diverged: Clients that diverged.
        min_replies: The run's ``min-replies``: with fewer, a round does not count.
    """
    return diverged > trained or trained < min_replies <= trained + diverged


def remedy(config: RunConfig) -> str:
    """Return what an operator may do about divergence; only what the run's other keys admit."""
    if config.privacy.of_rounds:
        return REMEDY_WITH_NOISE
    return REMEDY_WITH_SUMS if config.secure != "off" else REMEDY


def first_undone(records: Iterable[RoundRecord], failed: int) -> int:
    """Return the round from which the run is repeated: the newest with uploads, or else ``failed`` itself.

    Args:
        records: Those of the rounds before ``failed`` that can be undone.
        failed: The round in which most clients diverged.
    """
    return max((r.round for r in records if any(e.purpose == "training" for e in r.ledger)), default=failed)


def undone(records: Iterable[RoundRecord], halvings: int, until: int) -> RoundRecord:
    """Return the record of a round that is to be repeated, with what it and the rounds after it have cost.

    Args:
        records: The record of that round, and those of all rounds that are undone with it, in order.
        halvings: How often the learning rate is halved when it is repeated.
        until: The last round with that learning rate.
    """
    first, *later = records
    seconds = dict(first.seconds)
    for record in later:
        seconds = {key: seconds.get(key, 0.0) + value for key, value in record.seconds.items()}
    return replace(
        first,
        joined=(),
        stores={},
        replies={},
        ledger=tuple(_undone(entry, first.round) for record in (first, *later) for entry in record.ledger),
        seconds=seconds,
        diverged=tuple(name for record in (first, *later) for name in record.diverged),
        halvings=halvings,
        lowered_until=until,
        undone=True,
        simulated=0.0,  # simulated time is that of the rounds that count
        late=(),
    )


def _undone(entry: LedgerEntry, round: int) -> LedgerEntry:
    """Return the entry, in the ledger of ``round``, of a message that was in vain: ``undone`` if it was accepted."""
    return replace(entry, round=round, status="undone" if entry.status == "accepted" else entry.status)
