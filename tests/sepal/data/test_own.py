"""Own data by a function: what is taken, and one test per error."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch

from sepal.config import OwnSettings
from sepal.data import ClientData, Examples, own, own_data
from sepal.data.own import OwnData, own_info
from sepal.errors import ConfigError, DataError
from sepal.strategies.assembly import assemble


@pytest.fixture
def returns(monkeypatch):
    """Put a function that returns (or raises) something where ``own_data`` finds it."""

    def install(value):
        def function():
            if isinstance(value, Exception):
                raise value
            return value

        module = types.ModuleType("own_module")
        module.load, module.number = function, 3
        monkeypatch.setitem(sys.modules, "own_module", module)
        return "own_module:load"

    return install


def four(x=None, y=None, x_test=None, y_test=None):
    return (
        np.zeros((10, 3)) if x is None else x,
        np.arange(10) % 3 if y is None else y,
        np.ones((4, 3)) if x_test is None else x_test,
        np.array([0, 1, 2, 2]) if y_test is None else y_test,
    )


def test_four_arrays(returns):
    data = own_data(returns(four()), classes=3, validation=0.2)
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 2, 4)
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int64


def test_tokens(returns):
    tokens = np.arange(30, dtype=np.int64).reshape(10, 3)
    assert own_data(returns(four(x=tokens, x_test=tokens[:4]))).test.x.dtype == np.int32


@pytest.mark.parametrize("part", ["train", "test"])
def test_whole_numbers_are_said_to_be_taken_for_tokens_once(returns, caplog, part):
    """A table of integers would go to the model unscaled, as int32."""
    own.say_tokens.cache_clear()
    table = np.arange(30).reshape(10, 3)
    none = np.zeros((0, 3)), np.array([], int)
    returned = {"train": four(x=table, x_test=table[:4]), "test": (*none, table[:4], np.arange(4) % 3)}[part]
    load = returns(returned)
    for client in range(3):
        OwnData(own_info(OwnSettings(shape="3", classes=3)), load).client(client, 3, f"client-{client}")
    way = "return floats if they are numbers, or set own.vocabulary if they are tokens"
    assert caplog.messages == [f"own_module:load: its whole numbers are taken for tokens, int32 as they are: {way}"]


def test_nothing_is_said_of_tokens_with_a_vocabulary_nor_of_floats(returns, caplog):
    own.say_tokens.cache_clear()
    tokens = np.arange(30).reshape(10, 3)
    for keys, returned in (
        (OwnSettings(shape="3", classes=3, vocabulary=30), four(x=tokens, x_test=tokens[:4])),
        (OwnSettings(shape="3", classes=3), four()),
    ):
        OwnData(own_info(keys), returns(returned)).client(0, 1, "client-0")
    assert not caplog.messages


def test_client_data(returns):
    part = Examples(np.zeros((3, 2)), np.array([0, 1, 1]))
    data = own_data(returns(ClientData(part, Examples(np.zeros((0, 2)), np.array([], dtype=np.int64)), part)))
    assert (len(data.train), len(data.validation), len(data.test)) == (3, 0, 3)


def test_unseen_test_labels(returns):
    assert own_data(returns(four(y=np.zeros(10, dtype=int)))).unseen_test_labels == 2


@pytest.mark.parametrize("target", ["own_module", ":load", "no_such_module_here:load", "own_module:missing"])
def test_a_target_that_cannot_be_imported(returns, target):
    returns(four())
    with pytest.raises(DataError, match=r"own data: expected package.module:function"):
        own_data(target)


def test_not_a_function(returns):
    returns(four())
    with pytest.raises(DataError, match="own data: expected own_module:number to be a function, got int"):
        own_data("own_module:number")


def test_a_function_that_fails(returns):
    with pytest.raises(DataError, match="got RuntimeError: no disk"):
        own_data(returns(RuntimeError("no disk")))


def test_its_own_data_error_passes(returns):
    with pytest.raises(DataError, match="mine: expected this, got that"):
        own_data(returns(DataError("mine", "this", "that")))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, r"expected to return \(x_train, y_train, x_test, y_test\), a ClientData, or Datasets .*, got int"),
        ((1, 2), "got tuple"),
        (four(x=[[1.0], [1.0, 2.0]]), "train x: expected an array"),
        (four(x=np.array([[None]])), "train x: expected an array of numbers"),
        (four(x=np.zeros(10)), "train x: expected shape"),
        (four(y=np.zeros((10, 1), dtype=int)), "train y: expected shape"),
        (four(y_test=np.zeros(5, dtype=int)), "test y: expected shape"),
        (four(x=np.zeros((10, 3), dtype=np.uint8)), "train x: expected floats"),
        (four(x=np.full((10, 3), np.nan)), "train x: expected finite numbers"),
        (four(x=np.full((10, 3), -1)), "train x: expected tokens"),
        (four(y=np.zeros(10)), "train y: expected whole numbers"),
        (four(y=np.arange(10) - 1), "train y: expected labels from 0 to 9, got -1 to 8"),
        (four(y_test=np.array([0, 1, 2, 10])), "test y: expected labels from 0 to 9, got 0 to 10"),
        (four(x_test=np.zeros((4, 2))), "test: expected inputs as in the train part"),
        (
            four(x=np.zeros((0, 3)), y=np.zeros(0, dtype=int), x_test=np.zeros((0, 3)), y_test=np.zeros(0, dtype=int)),
            "expected at least one example",
        ),
    ],
)
def test_unusable_data(returns, value, message):
    with pytest.raises(DataError, match=message):
        own_data(returns(value), classes=10)


def test_validation_fraction(returns):
    with pytest.raises(DataError, match=r"split.validation: expected a fraction in \[0, 1\)"):
        own_data(returns(four()), validation=1.0)


def test_examples_need_a_label_each():
    with pytest.raises(DataError, match="examples: expected as many labels as inputs"):
        Examples(np.zeros((3, 2)), np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("keys", "model"),
    [
        ({"own.shape": "5", "own.classes": 2}, "har-mlp"),
        ({"own.shape": "1x28x28", "own.classes": 2}, "cnn2-small"),
        ({"own.shape": "3x8x8", "own.classes": 2}, "digits-cnn"),
        ({"own.shape": "9x128", "own.classes": 2}, "har-cnn"),
        ({"own.shape": "16", "own.classes": 2, "own.vocabulary": 50}, "embedding-linear"),
        ({"own.shape": "5", "task": "regression"}, "har-mlp"),
    ],
)
def test_own_data_get_the_default_model_that_files_of_their_shape_get(keys, model):
    assembly = assemble({"dataset": "own", "method": "fedavg", "own.data": "nowhere:load", **keys})
    assert assembly.setup.config.model == model
    built = assembly.make()
    x = torch.zeros((2, *assembly.info.input_shape), dtype=torch.long if assembly.info.vocabulary else torch.float32)
    assert built(x).shape == (2, *assembly.setup.task.output)
    with pytest.raises(ConfigError, match="model: expected a value"):
        assemble({"dataset": "own", "method": "fedavg", "own.shape": "a=5,b=6", "own.classes": 2})
