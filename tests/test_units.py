"""The systemd units of docs/operating.md, checked with ``systemd-analyze verify`` where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "operating.md").read_text()


def units():
    server = re.search(r"```\n(\[Unit\]\nDescription=Sepal server\n.*?)```", PAGE, re.DOTALL)[1]
    client = re.search(r"sepal-client\.service`: the same except for\n```\n(.*?)```", PAGE, re.DOTALL)[1]
    changed = {line.partition("=")[0]: line for line in client.splitlines()}
    same = [changed.get(line.partition("=")[0], line) for line in server.splitlines()]
    return {"sepal-server": server, "sepal-client": "\n".join(same).replace("Sepal server", "Sepal client") + "\n"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["sepal-server", "sepal-client"])
def test_the_units_of_the_page_are_accepted(name, tmp_path):
    program = sys.executable  # any that exists
    file = tmp_path / f"{name}.service"
    file.write_text(units()[name].replace("/opt/sepal/bin/sepal", program))
    assert program in file.read_text()
    completed = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    assert [line for line in completed.stderr.splitlines() if file.name in line] == []
