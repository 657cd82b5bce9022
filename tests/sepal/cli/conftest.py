import os

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and no Sepal home but one in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", os.fspath(tmp_path / "home"))
    return tmp_path
