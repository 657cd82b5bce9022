"""The project's test: `python -m pytest` in this directory (`pip install pytest`)."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from my_data import CLIENTS, load
from my_model import build
from sepal.study.method_checks import CHECKS, Case

import sepal

KEYS = tomllib.loads(Path(__file__).with_name("run.toml").read_text(encoding="utf-8"))
CASE = Case("mine", {"method": KEYS["method"]})


@pytest.mark.parametrize("client", range(CLIENTS))
def test_the_data_fit_the_model(client):
    x_train, y_train, x_test, y_test = load(client)
    classes = KEYS["own"]["classes"]
    for x, y in ((x_train, y_train), (x_test, y_test)):
        assert build(x.shape[1:], classes)(torch.from_numpy(x)).shape == (len(y), classes)
        assert set(np.unique(y)) <= set(range(classes))


def test_a_short_run_learns(tmp_path):
    run = sepal.run(**{**KEYS, "rounds": 3, "out": str(tmp_path), "name": "short"}, progress=False)
    last = run.frame[(run.frame["round"] == run.frame["round"].max()) & (run.frame["view"] == "trained")]
    assert last["accuracy"].mean() > 0.8


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.words)
def test_the_method(check):
    check.check(CASE)
