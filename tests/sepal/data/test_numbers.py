"""Large numbers keep their differences wherever numbers enter, or are refused there by name."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pandas as pd
import pytest

from sepal.client_app.data_digest import data_keys
from sepal.config import FolderSettings, HubReading, PartitionSettings
from sepal.data import DataSpec, client_data, load, own_data
from sepal.data.examples import ClientData
from sepal.data.sources import hub
from sepal.errors import DataError
from sepal.export.portable import Standardized
from sepal.export.preparing import prepared, read
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import as_begun
from sepal.tasks.inputs import packed, several
from sepal.tasks.making import targets_of
from sepal.tasks.numbers import as_float32
from tests.sepal.data.origins import origin_of

NOW = 1_764_300_000  # seconds since 1970
LABELS = np.arange(40) % 2
SECONDS = NOW + 40.0 * LABELS + np.arange(40) % 5  # two classes, 40 seconds apart; float32 has one number for both
ROWS = np.stack([SECONDS, np.arange(40.0)], axis=1)
LOST = "numbers whose differences float32 holds .* off by up to"


def frame():
    return pd.DataFrame({"time": SECONDS, "number": np.arange(40.0), "label": LABELS})


def apart(x, y):
    """Whether the first column tells the classes apart."""
    return bool(x[y == 0, 0].max() < x[y == 1, 0].min())


def csv_file(where):
    frame().to_csv(where / "all.csv", index=False)
    return load("folder", where)


def parquet_file(where):
    frame().to_parquet(where / "train.parquet")
    return hub.read(where, HubReading())


@pytest.mark.parametrize("table", [csv_file, parquet_file])
def test_a_table_keeps_differences_of_large_numbers(tmp_path, table):
    source = table(tmp_path)
    assert source.x.dtype == np.float64
    assert source.x[:, 0].tolist() == SECONDS.tolist()
    data = ClientData(source.train, source.train.first(2), source.train.first(2)).standardized()
    assert data.train.x.dtype == np.float32
    assert apart(data.train.x, data.train.y)


def test_a_client_and_the_views_over_all_clients_have_the_same_numbers(tmp_path):
    from sepal.client_app.views import scaled
    from sepal.data.federation import pooled_test

    csv_file(tmp_path)
    spec = DataSpec("folder", tmp_path, PartitionSettings(name="iid"), clients=1)
    data = client_data(spec, 0)
    import torch

    everyone = pooled_test(spec)
    x, _ = scaled((torch.from_numpy(everyone.x), torch.from_numpy(everyone.y)), data.scale, "cpu")
    np.testing.assert_array_equal(x.numpy(), data.test.x)
    assert apart(x.numpy(), everyone.y)


def array_file(where):
    np.savez(where / "a.npz", x=ROWS, y=LABELS)
    load("folder", where)


def unscaled_csv_file(where):
    frame().to_csv(where / "all.csv", index=False)
    load("folder", where, FolderSettings(standardize=False))


def own_function(where):
    module = types.ModuleType("large_numbers")
    module.load = lambda: (ROWS, LABELS, ROWS, LABELS)
    sys.modules["large_numbers"] = module
    own_data("large_numbers:load")


def several_inputs(where):
    packed("own", several("2,1i"), (ROWS, LABELS[:, None]))


def whole_numbers_among_several_inputs(where):
    packed("own", several("2,1i"), (ROWS.astype(np.int64), LABELS[:, None]))


def targets(where):
    targets_of("regression", (2,), 1).checked("y", SECONDS, 40)


def array_for_a_model(where):
    csv_file(where)
    prepared(origin_of(load("folder", where).info), ROWS)


@pytest.mark.parametrize(
    "enter",
    [
        array_file,
        unscaled_csv_file,
        own_function,
        several_inputs,
        whole_numbers_among_several_inputs,
        targets,
        array_for_a_model,
    ],
)
def test_numbers_that_nobody_standardises_are_refused_where_float32_would_change_them(tmp_path, enter):
    with pytest.raises(DataError, match=LOST):
        enter(tmp_path)


def test_large_numbers_that_float32_tells_apart_are_taken():
    for numbers in (ROWS * 1e6, np.full((3, 2), 1e9 + 1), ROWS[:1], SECONDS.astype(np.float32)[:, None]):
        np.testing.assert_array_equal(
            as_float32("x", numbers[:, 1:] if len(numbers) == 40 else numbers).dtype, np.float32
        )
    with pytest.raises(DataError, match=r"numbers up to 3.4e\+38, which float32 holds, got 1e\+39"):
        as_float32("x", np.array([[1e39]]))


@pytest.mark.parametrize("form", ["file", "frame", "array"])
def test_an_exported_model_standardises_the_numbers_as_in_training(tmp_path, form):
    import torch

    source = csv_file(tmp_path)
    data = ClientData(source.train, source.train, source.train).standardized()
    scale = tuple(data.scale.mean.tolist()), tuple(data.scale.factor.tolist())
    origin = origin_of(source.info, offset=scale[0], factor=scale[1])
    rows = {"file": tmp_path / "all.csv", "frame": frame(), "array": ROWS}[form]
    x = torch.from_numpy(prepared(origin, read(origin, rows).x))
    module = Standardized(torch.nn.Identity(), *scale, fill=False)
    np.testing.assert_array_equal(module(x).numpy(), data.train.x)
    assert apart(module(x).numpy(), LABELS)


IDS = 2**53 + np.array([1, 3] * 20)


def ids_of_csv(where):
    frame().assign(number=IDS).to_csv(where / "all.csv", index=False)
    return load("folder", where)


def ids_of_parquet(where):
    frame().assign(number=IDS).to_parquet(where / "train.parquet")
    return hub.read(where, HubReading())


def ids_for_a_model(where, as_frame=False):
    csv_file(where)
    info = load("folder", where).info
    origin = origin_of(info, offset=(0.0, 0.0), factor=(1.0, 1.0))
    ids = np.stack([IDS, IDS], axis=1)
    return prepared(origin, read(origin, pd.DataFrame(ids, columns=info.columns) if as_frame else ids).x)


def ids_of_a_frame(where):
    return ids_for_a_model(where, as_frame=True)


def ids_among_several_inputs(where):
    return as_float32("x", np.stack([IDS, IDS], axis=1))


@pytest.mark.parametrize(
    "enter", [ids_of_csv, ids_of_parquet, ids_for_a_model, ids_of_a_frame, ids_among_several_inputs]
)
def test_whole_numbers_that_float64_does_not_hold_are_refused_by_name(tmp_path, enter):
    with pytest.raises(DataError, match=r"whole numbers up to 2\*\*53.*, got '?900719925474099"):
        enter(tmp_path)


def test_the_largest_whole_number_and_larger_floats_are_taken(tmp_path):
    frame().assign(number=2**53).astype({"time": float}).to_csv(tmp_path / "all.csv", index=False)
    assert load("folder", tmp_path).x[0, 1] == 2**53
    frame().assign(number=1e300).to_csv(tmp_path / "all.csv", index=False)
    assert load("folder", tmp_path).x[0, 1] == 1e300


def test_a_run_that_an_earlier_version_began_has_the_float32_numbers_with_which_it_began(tmp_path):
    """The rule of that version, by hand; the keys by which the server knows data again are that run's, too."""
    frame().assign(number=np.linspace(0, 1, 40)).to_csv(tmp_path / "all.csv", index=False)
    flat = {"dataset": "folder", "data-dir": str(tmp_path), "method": "fedavg", "clients": 2, "partition.name": "iid"}
    begun = assemble(as_begun(flat))
    assert begun.setup.config.folder.precision == "float32"
    of_then = {"clients": 2, "dataset": "folder", "partition.name": "iid"}
    assert json.loads(data_keys(begun.setup.config)) == of_then, "what that version compared"
    raw, now = begun.data.raw(0, 2).train.x.astype(np.float32), begun.data.client(0, 2, "")
    wide = raw.astype(np.float64)
    mean, spread = wide.mean(axis=0), np.sqrt(((wide - wide.mean(axis=0)) ** 2).mean(axis=0))
    usable = wide.min(axis=0) < wide.max(axis=0)
    factor = np.where(usable, 1 / np.where(usable, spread, 1), 0).astype(np.float32)
    np.testing.assert_array_equal(now.train.x, (raw - mean.astype(np.float32)) * factor)
    assert not np.array_equal(now.train.x, assemble(flat).data.client(0, 2, "").train.x)
