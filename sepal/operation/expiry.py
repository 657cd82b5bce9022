"""When certificates expire: refused at the start, warned of while a server runs.

A SuperLink whose certificate expires ends, although all its clients are connected, and its log says only that the
network failed. gRPC reads a certificate once, so a renewed one is used after the server was started again; the run
goes on where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from sepal.errors import ConfigError, SepalError

DAY = 86400.0
WARN_DAYS = (30, 7, 1)
AT_SERVER = (
    "run `sepal certs` again (with --renew-ca if it is ca.crt that expires), and start this server again with the same "
    "name; the run goes on where it was"
)
AT_CLIENT = "copy it again from where it was renewed (`sepal certs --renew-ca`), and start this client again"


def expiry(certificate: Path) -> datetime:
    """Return when a certificate (PEM) expires, in UTC.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no certificate.
    """
    return read_certificate(certificate.read_bytes()).not_valid_after_utc


def read_certificate(data: bytes) -> x509.Certificate:
    """Return a certificate from PEM.

    Raises:
        ValueError: It is none, also where only its version is damaged, for which the library has an error of its own.
    """
    try:
        return x509.load_pem_x509_certificate(data)
    except x509.InvalidVersion as reason:
        raise ValueError(str(reason)) from None


def check_not_expired(certificates: Sequence[Path], now: datetime | None = None) -> None:
    """Check that no certificate has expired.

    Args:
        certificates: Files in PEM.
        now: The current time; by default that of this machine's clock.

    Raises:
        ConfigError: One has; the error names the file, its date and the clock.
    """
    time = now or datetime.now(UTC)
    for file in certificates:
        if (end := expiry(file)) < time:
            remedy = "run `sepal certs` again, with --renew-ca for ca.crt, or set the clock"
            expected = f"a certificate that is valid on {time:%Y-%m-%d} ({remedy})"
            raise ConfigError(str(file), expected, f"one that expired on {end:%Y-%m-%d %H:%M} UTC")


class ExpiryWatch:
    """Says 30, 7 and 1 days before a certificate expires that it will, each once.

    Args:
        certificates: Files in PEM, which may be renewed meanwhile.
        tell: Called with each warning.
        remedy: What to do, for the warning.
    """

    def __init__(self, certificates: Sequence[Path], tell: Callable[[str], None], remedy: str = AT_SERVER) -> None:
        self._certificates, self._tell, self._remedy = tuple(certificates), tell, remedy
        self._warned: set[tuple[Path, datetime, int]] = set()
        self._ended = threading.Event()

    def look(self, now: datetime | None = None) -> None:
        """Warn of what has become due since the last look."""
        time = now or datetime.now(UTC)
        for file in self._certificates:
            try:
                end = expiry(file)
            except (OSError, ValueError) as reason:  # it is being replaced, or was damaged: a start would refuse it
                self._tell(f"sepal: warning: {file} cannot be read: {reason}")
                continue
            due = [days for days in WARN_DAYS if end - time <= timedelta(days=days)]
            if due and (file, end, min(due)) not in self._warned:
                self._warned |= {(file, end, days) for days in due}
                days = max(0.0, (end - time).total_seconds() / DAY)
                self._tell(
                    f"sepal: warning: {file} expires on {end:%Y-%m-%d %H:%M} UTC, in {days:.1f} days: {self._remedy}"
                )

    def start(self, every: float = DAY) -> None:
        """Look now, and then every so many seconds in a thread, until :meth:`end`."""
        self.look()

        def watch() -> None:
            while not self._ended.wait(every):
                self.look()

        threading.Thread(target=watch, daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()


@contextmanager
def watched(certificates: Sequence[Path], tell: Callable[[str], None]) -> Iterator[None]:
    """Refuse certificates that have expired, and warn of those that will, for as long as the block takes.

    Args:
        certificates: Those of a server, in PEM.
        tell: Called with each warning.

    Raises:
        ConfigError: One has expired: before the block, or in the place of an error that ended it. All that Flower says
            of a SuperLink whose certificate has expired is that it cannot be reached.
    """
    check_not_expired(certificates)
    watch = ExpiryWatch(certificates, tell)
    watch.start()
    try:
        yield
    except SepalError:
        check_not_expired(certificates)
        raise
    finally:
        watch.end()
