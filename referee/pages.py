"""All pages, pictures and tables that follow from rows and templates: ``python -m referee.pages`` writes them."""

from __future__ import annotations

from pathlib import Path

from referee.calibrate.pages import pages as of_calibration
from referee.claims.__main__ import pages as of_claims
from referee.defaults.pages import pages as of_defaults
from referee.leaderboard.pages import pages as of_leaderboard
from referee.leaderboard.pages import write_pages as write_leaderboard
from referee.paper.pages import pages as of_papers
from referee.poison.__main__ import pages as of_poison
from sepal.storage.files import write_atomically


def pages() -> dict[Path, str]:
    """Return path → text of every page; the leaderboard's from as many rows as its stored page was made from."""
    return {**of_calibration(), **of_defaults(), **of_poison(), **of_papers(), **of_claims(), **of_leaderboard()}


def main() -> None:
    """Write every page, and the leaderboard's pictures."""
    for path, text in {**of_calibration(), **of_defaults(), **of_poison(), **of_papers(), **of_claims()}.items():
        write_atomically(path, text.encode())
    write_leaderboard()


if __name__ == "__main__":
    main()
