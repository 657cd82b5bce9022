"""``sepal watch --web``: the report of runs in progress, on this machine only.

The page is under a secret path, which is printed: other users of the machine, who may not read the run's directory,
can reach the port, too.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sepal.errors import ConfigError, SepalError
from sepal.operation.listener import Listener, Page
from sepal.report.page import live_parts, render, waiting
from sepal.study.comparison import Comparison, read_comparison
from sepal.study.runs import naming

LOCAL = "127.0.0.1"


def open_in_browser(url: str) -> bool:
    """Open a page where there is a screen, and return whether that worked; a browser in the terminal would cover it."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    try:
        return bool(screen) and webbrowser.open(url)
    except webbrowser.Error:
        return False


class ReportServer(Listener):
    """Serves the report of ``places`` on 127.0.0.1.

    Args:
        places: As for `sepal report`.
        port: 0 for a free one.

    Raises:
        ConfigError: There is no such run, or the port is taken.
    """

    def __init__(self, places: Sequence[str], port: int) -> None:
        self.places = places
        self.secret = secrets.token_urlsafe(16)
        self.read()  # reports bad input before anything is served
        try:
            super().__init__((LOCAL, port), Handler)
        except OSError as reason:
            raise ConfigError("--web-port", "a free port", f"{port}: {reason.strerror}") from None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{LOCAL}:{self.server_port}/{self.secret}/"

    def part(self, path: str) -> str | None:
        """Return the part of a path below the secret; empty for the page, None without the secret."""
        _, secret, *rest = [*path.split("/"), ""]
        secret_matches = secrets.compare_digest(secret.encode(), self.secret.encode())
        return "/".join(rest).removesuffix("/") if secret_matches and rest[:-1] else None

    def read(self) -> Comparison:
        """Return the runs as they are now."""
        return read_comparison(self.places)


class Handler(Page):
    """Serves the page, and what has changed in it."""

    server: ReportServer

    def answer(self) -> None:
        """Answer ``/SECRET/`` with the page, and ``/SECRET/data`` with the parts that change."""
        if (part := self.server.part(self.path)) == "":
            try:
                self._send("text/html; charset=utf-8", self._page())
            except SepalError as error:
                self._send("text/plain; charset=utf-8", str(error))
        elif part == "data":
            self._send("application/json", self._data())
        else:
            self.send_error(404)

    def _page(self) -> str:
        with naming(Path(self.server.places[0])):
            comparison = self.server.read()
            if any(result.stored.lines for result in comparison.results):
                return render(comparison, live=True)
            return waiting(comparison)

    def _data(self) -> str:
        try:
            with naming(Path(self.server.places[0])):
                return json.dumps(live_parts(self.server.read()))
        except SepalError as error:  # a file that is being written
            return json.dumps({"trouble": str(error)})

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
