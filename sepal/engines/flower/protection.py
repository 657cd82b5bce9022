"""What keeps others from giving orders to a SuperNode: no code in app bundles, TLS to its own client process."""

from __future__ import annotations

import re
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

from sepal.engines.flower.certificates import make_certificates
from sepal.errors import SepalError

COMPONENTS = {"serverapp": "sepal.apps:server_app", "clientapp": "sepal.apps:client_app"}  # of Sepal's own app
SETTINGS, MANIFEST = "pyproject.toml", ".info/CONTENT"  # the second is Flower's
MOST = 16 << 10  # bytes of either; ours has 5 KiB, and the time for reading nested names grows with the square
OURS = ("sepal", "sepal-fl")  # the publisher and the project of Sepal's own app
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}\Z")


class CodeError(SepalError):
    """A bundle that is more than the settings of Sepal's own app."""


def refuse_code(bundle: bytes) -> None:
    """Refuse an app bundle unless it is like the one of :func:`sepal.engines.flower.bundle.write_app`.

    Flower makes publisher, project and version the name of a directory, so they are checked, too. Nothing is unpacked.
    Code in a bundle would run as this user, past everything else that the client's operator has set, for whoever may
    submit apps to the SuperLink.

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
            settings = tomllib.loads(archive.read(SETTINGS).decode())
            app, project = settings["tool"]["flwr"]["app"], settings["project"]
            components, name = app["components"], (app["publisher"], project["name"])
            sound = name == OURS and _VERSION.match(project["version"])
    except CodeError:
        raise
    except Exception as reason:  # of ZIP, of each way of compression, of TOML, of a type
        raise CodeError("app bundle", expected, f"one that cannot be read ({type(reason).__name__})") from None
    if components != COMPONENTS or not sound:
        raise CodeError("app bundle", expected, f"the app {components} of {name}, {project['version']}"[:200])


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
