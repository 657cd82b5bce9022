"""The console on which commands print tables and lines with Rich: all that it prints is printable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sepal.report.printing import printable_lines


class PrintableConsole(Console):
    """A console of Rich that leaves its own colours and cursor movements alone, and no other control character."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the parts of what is printed."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable_lines(part.text))


def console(**settings: Any) -> Console:
    """Return a console for what a command prints; arguments as of Rich's."""
    return PrintableConsole(**settings)
