"""`make setup` says what goes on while packages install."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = '#!/bin/sh\ncase "$*" in *torchvision*) sleep 11;; esac\n'  # in the place of .venv/bin/python

pytestmark = pytest.mark.e2e


def test_a_line_comes_every_ten_seconds_while_packages_install(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(SLOW)
    python.chmod(0o755)
    completed = subprocess.run(
        ["make", "--no-print-directory", "setup"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    beats = re.findall(r"^setup: installing packages, \S+ after (\d+) s$", completed.stdout, re.MULTILINE)
    assert [int(beat) // 10 for beat in beats] == [1]
    assert "setup: done" in completed.stdout.splitlines()[-1]
