"""What keeps others from giving orders to a SuperNode: no code in app bundles, TLS to its own client process."""

from __future__ import annotations

import tomllib
import zipfile
from io import BytesIO
from logging import WARNING
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from sepal.engines.flower.certificates import make_certificates
from sepal.errors import SepalError

COMPONENTS = {"serverapp": "sepal.server_app.app:app", "clientapp": "sepal.client_app.app:app"}  # of Sepal's own app
SETTINGS, MANIFEST = "pyproject.toml", ".info/CONTENT"  # the second is Flower's
MOST = 1 << 20  # bytes of either


class CodeError(SepalError):
    """A bundle that is more than the settings of Sepal's own app."""


def refuse_code(bundle: bytes) -> None:
    """Refuse an app bundle unless it is like the one of :func:`sepal.engines.flower.bundle.write_app`.

    Nothing is unpacked. Code in a bundle would run as this user, past everything else that the client's operator has
    set, for whoever may submit apps to the SuperLink.

    Args:
        bundle: A ZIP file, as Flower sends it.

    Raises:
        CodeError: It holds another file, or names another app than Sepal's.
    """
    expected = "no code, as `sepal serve` and `sepal submit` send it (a client may allow it: sepal join --allow-code)"
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            for entry in archive.infolist():
                if entry.filename not in (SETTINGS, MANIFEST) or entry.file_size > MOST:
                    raise CodeError("app bundle", expected, entry.filename[:200])
            components = tomllib.loads(archive.read(SETTINGS).decode())["tool"]["flwr"]["app"]["components"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, RuntimeError, NotImplementedError) as reason:
        raise CodeError("app bundle", expected, f"one that cannot be read ({type(reason).__name__})") from None
    if components != COMPONENTS:
        raise CodeError("app bundle", expected, f"the app {components}"[:200])


def refuse_bundles_with_code(module: ModuleType) -> None:
    """Make ``module`` answer messages of a run whose app has code with an error, before its bundle is stored.

    So neither the resident process nor one of Flower's own ever unpacks or imports it.
    """
    pull, insert = module._pull_and_store_message, module._insert_message

    def pull_or_refuse(*, state: Any, object_store: Any, receive: Any, get_fab: Any, **further: Any) -> int | None:
        received: list[Message] = []

        def noted() -> Any:
            found = receive()
            received[:] = [found[0]] if found else []
            return found

        def checked(*which: Any) -> Any:
            fab = get_fab(*which)
            refuse_code(fab.content)
            return fab

        try:
            run: int | None = pull(state=state, object_store=object_store, receive=noted, get_fab=checked, **further)
            return run
        except CodeError as reason:
            (message,) = received
            log(WARNING, "run %s: %s", message.metadata.run_id, reason)
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(reason))
            insert(Message(error, reply_to=message), state, object_store)
            return message.metadata.run_id

    module._pull_and_store_message = pull_or_refuse  # type: ignore[attr-defined]


def own_tls(directory: Path) -> list[str]:
    """Make a certificate for the Runtime API; return Flower's options for it, the authority's certificate last.

    Without it, another user of this machine could take the port of a SuperNode that stops, and the client process would
    obey. The key of the authority is deleted, so that nobody can make a second certificate.
    """
    make_certificates(directory)
    authority, server = directory / "ca", directory / "server"
    (authority / "ca.key").unlink()
    files = {"certfile": server / "server.pem", "keyfile": server / "server.key", "ca-certfile": authority / "ca.crt"}
    return [part for name, file in files.items() for part in (f"--ssl-{name}", str(file))]
