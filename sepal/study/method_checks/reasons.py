"""Why a check has failed, in words that are the same for all checks that fail for one reason."""

from __future__ import annotations

import re

from sepal.errors import FailedError, SepalError, UnfitError
from sepal.user_modules import described

CLIENTS = re.compile(r" \(client-\d+(, client-\d+)*( and \d+ more)?\)")


def reason_of(error: Exception) -> str:
    """Return why a check has failed; where clients cannot do what the server asks of them, the causes alone.

    How many clients of a round have a cause, and which, depends on the check and not on the method.
    """
    if isinstance(error, FailedError | UnfitError):
        return CLIENTS.sub("", error.got)
    return str(error) if isinstance(error, SepalError) else described(error)
