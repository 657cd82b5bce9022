"""The secret from which a server draws central noise, and who takes part: a file of the run directory."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from sepal.errors import StateError
from sepal.storage.files import write_atomically

SECRET = "secret"
_BYTES = 32


def central_secret(run: Path, begun: bool) -> bytes:
    """Return the secret of a run, 32 bytes; a run that has not begun gets one, from the operating system.

    Raises:
        StateError: The run has begun without it: with another one, sums that were released would be released again with
            other noise. Or the file is a link, others may read it, or it has another size.
    """
    path = run / SECRET
    if not begun and not os.path.lexists(path):
        write_atomically(path, os.urandom(_BYTES), mode=0o600)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_BYTES + 1)
    except FileNotFoundError:
        expected = "the secret of the run's noise: with another one, sums that were released would get a second noise"
        raise StateError(str(path), expected, "no file") from None
    except OSError as reason:
        raise StateError(str(path), "a file that can be read and is no link", reason.strerror or reason) from None
    if not stat.S_ISREG(status.st_mode) or len(data) != _BYTES:
        raise StateError(str(path), f"a file of {_BYTES} bytes", "another")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o077:
        got = f"mode {stat.S_IMODE(status.st_mode):o} of uid {status.st_uid}"
        raise StateError(str(path), f"a file that this user alone may read (chmod 600 {shlex.quote(str(path))})", got)
    return data
