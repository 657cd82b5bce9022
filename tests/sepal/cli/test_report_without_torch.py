"""A report is made from what runs have stored: no built-in method is imported for it, and neither is torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sepal.cli.runs_for_tests import write_run

pytest.importorskip("altair", reason="the extra report is not installed")

REPORT = """
import sys
from pathlib import Path
from sepal.report.page import write_html
write_html([sys.argv[1]], Path(sys.argv[2]))
sys.exit("torch was imported" if "torch" in sys.modules else 0)
"""


def test_a_report_imports_no_torch(tmp_path):
    """Of methods without readers of what they have learned, and of those with some of each kind."""
    for method in ("fedavg", "subfedavg", "pa3dfl", "pfedgate"):
        write_run(tmp_path / "runs" / method, method=method)
    page = tmp_path / "report.html"
    completed = subprocess.run(
        [sys.executable, "-P", "-c", REPORT, str(tmp_path / "runs"), str(page)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert completed.returncode == 0, completed.stderr
    assert page.stat().st_size > 10_000
