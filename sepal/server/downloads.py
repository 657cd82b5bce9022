"""A round's downloads. Each is composed once and kept until the client answers, as far as memory allows."""

from __future__ import annotations

from dataclasses import dataclass

from sepal.method.interface import RunSetup
from sepal.protocol.messages import Content
from sepal.protocol.payloads import seal
from sepal.protocol.types import Payload
from sepal.protocol.views import CLOSING_VIEWS, further_views
from sepal.server.run_state import RoundStart
from sepal.storage.bounded import MEBIBYTE, BoundedCache


@dataclass(frozen=True)
class Download:
    """One client's download: the method's payload, and the same payload encoded."""

    payload: Payload
    content: Content


class Downloads:
    """The downloads of a round.

    A download is needed when it is sent, when it is sent again because no reply came, and when the upload refers to
    its support. It is kept until :meth:`drop`; if it does not fit within ``limit``, it is composed again.

    Args:
        start: What the round starts from.
        limit: Bytes of downloads to keep.
    """

    def __init__(self, start: RoundStart, limit: int) -> None:
        self._start = start
        self._kept: BoundedCache[Download] = BoundedCache(limit)
        self._last = Content()

    def get(self, name: str) -> Download:
        """Return the download of client ``name``."""
        download = self._kept.get(name)
        if download is None:
            payload = self._start.download(name)
            content = seal(payload)
            if content == self._last:  # the same for all, as a rule: one copy, whose digest is computed once
                content = self._last
            self._last, download = content, Download(payload, content)
            self._kept.keep(name, download, payload_bytes(payload) + len(download.content.data))
        return download

    def drop(self, name: str) -> None:
        """Discard the client's download, once it was answered."""
        self._kept.drop(name)


def payload_bytes(payload: Payload) -> int:
    """Return the bytes of a payload's arrays."""
    arrays = [array for tensor in payload.tensors.values() for array in (tensor.index, tensor.values)]
    return sum(array.nbytes for array in arrays if array is not None)


def room(setup: RunSetup) -> int:
    """Return how many bytes of downloads a round may keep; the same limit applies to its decoded uploads.

    Eight dense models, but at least 32 MiB and at most 256 MiB; what does not fit is read or composed again when it is
    needed. It does not depend on the number of clients.
    """
    return min(256 * MEBIBYTE, max(32 * MEBIBYTE, 8 * 4 * sum(parameter.size for parameter in setup.layout)))


def most_message_bytes(setup: RunSetup) -> int:
    """Return the size of the largest reply that the server takes: ``max-message-bytes``.

    By default twice the bytes of the method's largest message, dense in float32, and 64 KiB for a reply's head, figures
    and facts.
    """
    scoring = setup.task.scoring
    sums = 0 if scoring.counted else 8 * scoring.size * 2 * len((*CLOSING_VIEWS, *further_views(True, True)))
    return setup.config.max_message_bytes or 2 * 4 * setup.hyper.largest_message(setup) + (64 << 10) + sums


def largest_reply(setup: RunSetup) -> int:
    """Return how many bytes of a reply are pulled: twice :func:`most_message_bytes`, at least 16 MiB.

    A reply between the two limits is entered in the ledger with its size. A larger one is not assembled.
    """
    return max(16 * MEBIBYTE, 2 * most_message_bytes(setup))
