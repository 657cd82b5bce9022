"""The data functions that users copy: the project of ``sepal init``, the examples and the notebook."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

ROOT = Path(__file__).resolve().parents[1]
TABLES = {  # of each file: scikit-learn's function that it reads
    "sepal/study/template/my_data.py": "load_breast_cancer",
    "examples/own_data/clinic.py": "load_breast_cancer",
    "examples/own_data.ipynb": "load_breast_cancer",
    "examples/tasks/diabetes.py": "load_diabetes",
}


def load_of(name):
    """Return the function ``load`` of a file, read anew."""
    path = ROOT / name
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        (code,) = ["".join(cell["source"]) for cell in cells if "def load" in "".join(cell["source"])]
        names = {}
        exec(code, names)
        return names["load"]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load


def test_each_file_that_standardises_is_here():
    folders = [
        (ROOT / "examples").rglob("*.py"),
        (ROOT / "examples").glob("*.ipynb"),
        (ROOT / "sepal/study/template").iterdir(),
    ]
    files = [path for folder in folders for path in folder if path.is_file()]
    files_with_std = {str(path.relative_to(ROOT)) for path in files if ".std(" in path.read_text(encoding="utf-8")}
    assert files_with_std
    assert files_with_std <= set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_a_client_is_standardised_by_its_own_training_examples_alone(name, monkeypatch):
    """What tests a model, or is another client's, changes no training example."""
    real = getattr(sklearn.datasets, TABLES[name])()
    others = np.ones(len(real.data), bool)

    def read(return_X_y=False):
        x = np.where(others[:, None], 1000 * real.data + 5, real.data)
        numbers = np.arange(len(x), dtype=np.float64)  # as targets, they tell which rows are whose
        return (x, numbers) if return_X_y else sklearn.utils.Bunch(data=x, target=numbers.astype(int))

    monkeypatch.setattr(sklearn.datasets, TABLES[name], read)
    load = load_of(name)
    scale = 100 if TABLES[name] == "load_diabetes" else 1
    for client in range(4):
        others[:] = False
        x, y, *_ = load(client)
        others[:] = True
        others[np.rint(np.asarray(y) * scale).astype(int)] = False
        again = load(client)
        np.testing.assert_array_equal(again[0], x)
        assert abs(again[2]).max() > 100, "test examples are scaled alike"
