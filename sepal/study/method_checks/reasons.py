"""Why a check has failed, in words that are the same for all checks that fail for one reason."""

from __future__ import annotations

import re

from sepal.errors import FailedError, SepalError, UnfitError
from sepal.user_modules import described

CLIENTS = re.compile(r" \(client-\d+(, client-\d+)*( and \d+ more)?\)")


def reason_of(error: Exception) -> str:
    """Return why a check has failed; of clients that cannot do what they are asked, the causes alone.

    How many clients of a round have a cause, and which, hangs on the check and not on the method.
    """
    if isinstance(error, FailedError | UnfitError):
        return CLIENTS.sub("", error.got)
    return str(error) if isinstance(error, SepalError) else described(error)
