"""What a plan's runs found, as Markdown tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.papers.plan import Paper, PaperRun


def write_report(plan: Paper, runs: Sequence[PaperRun], out: Path) -> list[Path]:
    """Write the tables of what is there, and return the files."""
    return []
