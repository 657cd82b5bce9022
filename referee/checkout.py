"""This checkout: where results and templates are, its commit, and the options of commands that run something."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "referee" / "results"
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(ROOT / "referee" / "templates"),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Return a page from its template in ``referee/templates``; a missing value is an error."""
    return TEMPLATES.get_template(template).render(**values)


def commit_now() -> str:
    """Return the short commit, with ``-dirty`` if a file other than the results has changed; "unknown" without Git."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8")

    dirty = git("diff", "--quiet", "HEAD", "--", ".", ":!docs", ":!referee/results").returncode == 1
    return (git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown") + "-dirty" * dirty


def options(prog: str, text: str | None, hours: float) -> argparse.ArgumentParser:
    """Return a parser with the options of the runner: ``--jobs`` and ``--hours``."""
    parser = argparse.ArgumentParser(prog, description=(text or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one a core")
    parser.add_argument("--hours", type=float, default=hours, help="start no run after so many hours")
    return parser
