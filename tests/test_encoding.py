"""Text is read and written as UTF-8 in every locale."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "client_app",
    "referee",
    "models",
    "sepal",
    "server_app",
    "strategies",
    "tools",
)
PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NOT_FILES = ("self", "webbrowser", "Image", "os")  # whose ``open`` opens no text


def without_encoding(call):
    """Whether a call reads or writes text in the encoding of the locale; ruff sees it where it knows the type."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if "encoding" in {keyword.arg for keyword in call.keywords} or owner in NOT_FILES:
        return False
    if name in ("run", "Popen", "check_output"):
        return "text" in {keyword.arg for keyword in call.keywords}
    if name in ("read_text", "write_text"):
        return len(call.args) <= (name == "write_text") and bool(owner)
    if name != "open":
        return False
    mode = next((k.value for k in call.keywords if k.arg == "mode"), (call.args[not owner :] or [None])[0])
    return mode is None or (isinstance(mode, ast.Constant) and "b" not in str(mode.value))


def test_every_read_and_write_of_text_names_its_encoding():
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 300
    calls = ((file, node) for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    unnamed = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file, node in calls
        if isinstance(node, ast.Call) and without_encoding(node)
    ]
    assert unnamed == []


def sepal(directory, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    return subprocess.run(
        [sys.executable, "-m", "sepal.cli", *arguments],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(ROOT), **PLAIN},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.e2e
def test_a_run_and_all_that_follows_in_a_locale_without_utf_8(tmp_path):
    (tmp_path / "data").mkdir()
    rows = [f"{n % 7},{n},{('früh', 'spät')[n % 2]}" for n in range(60)]
    (tmp_path / "data" / "all.csv").write_text("\n".join(["größe,alter,label", *rows]), encoding="utf-8")
    keys = {"dataset": "folder", "data-dir": "data", "rounds": 1, "clients": 3, "method": "fedavg"}
    text = tomli_w.dumps({**keys, "folder": {"classes": "früh,spät"}})
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    for arguments in (
        ["run", "--config", "run.toml", "--out", str(tmp_path), "--name", "r", "--workers", "2"],
        ["show", str(tmp_path / "r")],
        ["report", str(tmp_path / "r")],
        ["export", str(tmp_path / "r"), "0", "--out", "model.safetensors"],
        ["predict", "model.safetensors", "data/all.csv"],
        ["methods"],
        ["keys"],
    ):
        result = sepal(tmp_path, *arguments)
        assert result.returncode == 0, (arguments, result.stderr)
        assert "Traceback" not in result.stderr
        if arguments[0] == "predict":
            assert ",früh," in result.stdout
    missing = sepal(tmp_path, "predict", "model.safetensors", "früh.csv")
    assert missing.returncode == 2
    assert missing.stderr.startswith(
        "sepal: arguments: expected characters of the locale (LC_ALL=C.UTF-8 has all), got"
    )
