"""A round with central noise: from its uploads to the noised mean, which is all that is used and kept of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError, DamagedError
from sepal.method.interface import RunSetup
from sepal.protocol.messages import WITHIN_CLIP, Reply
from sepal.protocol.summed import Entries
from sepal.protocol.types import ClientInfo, Payload, Upload
from sepal.server.central_noise import CentralNoise
from sepal.server.downloads import Downloads, room
from sepal.server.run_state import RoundStart
from sepal.server.run_store import RunStore
from sepal.server.summed_uploads import entries_of, reading
from sepal.server.uploads import RoundUploads
from sepal.storage.regular import check_parts
from sepal.wire.tensors import Values

RELEASED = "released"  # the part of a round that has its noised mean
ALL_CLIENTS = ClientInfo("the noised mean", 1)  # how many clients it is of depends on who was drawn


@dataclass(frozen=True)
class ReleasedMean:
    """A round's uploads of which only the noised mean is known: it is iterated as one upload of one client.

    Attributes:
        mean: What the clients trained from, plus the noised mean of their changes.
    """

    mean: Payload

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """One that stands for all."""
        return [ALL_CLIENTS]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Upload]:
        yield Upload(ALL_CLIENTS, self.mean)


@dataclass(frozen=True)
class Release:
    """What a round with central noise comes to.

    Attributes:
        uploads: The noised mean; None where it was not released.
        clip: The clip of the next round.
        count: How many different sums of this round have been released, with this one if it was.
        void: Why it was not released; empty if it was.
    """

    uploads: ReleasedMean | None
    clip: float
    count: int
    void: str = ""


def released(
    central: CentralNoise,
    start: RoundStart,
    downloads: Downloads,
    setup: RunSetup,
    uploads: RoundUploads,
    replies: Mapping[str, Reply],
    store: RunStore,
    fits: Callable[[int], bool],
) -> Release:
    """Sum a round's uploads, add noise, and store what comes of it before anybody sees it.

    Args:
        central: The mechanism.
        start: What the round starts from.
        downloads: What clients were sent.
        setup: Configuration and W_0.
        uploads: The accepted uploads; there may be none.
        replies: The replies that they came with.
        store: Keeps the noised mean, and counts the releases.
        fits: Whether so many releases in this round are within ``privacy.budget``. If not, nothing is released.
    """
    round, clip, entries = start.plan.round, start.plan.clip, _entries(start, downloads, setup)

    def changes() -> Iterator[tuple[Values, bool]]:
        for upload in uploads:
            name, tensors = upload.client.name, upload.payload.tensors
            change = Entries.of(tensors, downloads.get(name).payload, setup.weights).change(tensors)
            yield change, replies[name].metrics.get(WITHIN_CLIP) == 1.0

    total = central.summed(changes(), entries.count, clip, entries.digest())
    name, noted = central.name(total, clip, round), store.releases(round)
    if name not in noted and not fits(len(noted) + 1):  # as after a kill, where other clients have answered
        before = f"{len(noted)} before a restart"
        over = ConfigError("privacy.budget", "room for the mean of this round", f"none, with {before}: it is not used")
        return Release(None, clip, len(noted), str(over))
    count = store.note_release(round, name)
    mean, next_clip = central.released(total, clip, round)
    head = json.dumps({"of": entries.digest(), "clip": next_clip, "count": count})
    store.keep_part(round, RELEASED, head.encode() + b"\n" + np.ascontiguousarray(mean, "<f8").tobytes())
    return Release(_mean(entries, mean), next_clip, count)


def replayed_release(start: RoundStart, store: RunStore, setup: RunSetup) -> ReleasedMean:
    """Return the noised mean of a recorded round, as it was stored: it is not computed again.

    Raises:
        DamagedError: There is none, or it is of another model.
    """
    round, data = start.plan.round, store.part(start.plan.round, RELEASED)
    if data is None:
        raise DamagedError(f"round {round}", "its noised mean", "none")
    entries = _entries(start, Downloads(start, room(setup)), setup)
    with reading(round, "the noised mean of changes of its model"):
        head, _, vector = data.partition(b"\n")
        mean = np.frombuffer(vector, "<f8")
        check_parts("the noised mean", head)
        if json.loads(head)["of"] != entries.digest() or mean.size != entries.count:
            raise ValueError("of another model")
        return _mean(entries, mean)


def _entries(start: RoundStart, downloads: Downloads, setup: RunSetup) -> Entries:
    """Return the entries that all clients send, whoever was asked, and also if all were evicted."""
    return entries_of(start, downloads, setup, min(start.state.roster))


def _mean(entries: Entries, mean: npt.NDArray[np.float64]) -> ReleasedMean:
    return ReleasedMean(Payload(entries.tensors(mean)))
