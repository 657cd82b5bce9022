"""The notebooks in ``examples/``, executed from top to bottom in a kernel of their own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))
PORT = "9092"  # of the deployment's notebook; here any that is free
LAST = {  # what the output of a notebook's last cell with one must have
    "compare": "iframe",
    "deploy": "trained",
    "first_run": "probability  truth",
    "own_data": "[0, 0, 0, 0, 0, 1, 0, 0, 0, 0]",
    "photographs": "probability",
}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def outputs(cell):
    """Return all that a cell shows, as text."""
    return "\n".join(
        output.get("text", "") + "".join(map(str, output.get("data", {}).values()))
        for output in cell.get("outputs", [])
    )


def test_each_has_its_expectation():
    assert set(NOTEBOOKS) == set(LAST)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in ("deploy", "photographs"))) for name in NOTEBOOKS]
)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    """In a directory of its own; where torchvision's wheel does not fit torch's, it is imported by Sepal first."""
    if name == "photographs":
        pytest.importorskip("sepal.data.sources.torchvision_import").torchvision("models")
        start = "from sepal.data.sources.torchvision_import import torchvision\ntorchvision('models')\n"
        (tmp_path / "sitecustomize.py").write_text(start)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    for key, value in {"SEPAL_HOME": tmp_path / "home", "FLWR_HOME": tmp_path / "flwr", "OMP_NUM_THREADS": 1}.items():
        monkeypatch.setenv(key, str(value))
    book = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "notebooks are kept without outputs"
    port = free_port()
    for cell in book.cells:
        cell.source = cell.source.replace(PORT, port)
    kernel = {"metadata": {"path": str(tmp_path)}}
    for _ in range(2 if name == "photographs" else 1):  # again in another kernel: its run has a name and is there
        nbclient.NotebookClient(book, timeout=500, kernel_name="python3", resources=kernel).execute()
    shown = [text for cell in book.cells if cell.cell_type == "code" and (text := outputs(cell))]
    assert LAST[name] in shown[-1]
    assert "Traceback" not in "\n".join(shown)
