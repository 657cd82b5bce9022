"""What may be wrong with a table that can be read is said in a line: stand-ins of missing numbers, repeated rows."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sepal.config import FolderReading, HubReading, HubSettings
from sepal.data import load
from sepal.data.sources.doubts import repeated, stand_ins

ROWS = 60


def frame(rows=ROWS):
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=rows).round(3), "b": rng.normal(size=rows), "label": rng.integers(0, 2, rows)}
    return pd.DataFrame(columns)


def notes_of(directory, table, **keys):
    table.to_csv(directory / "all.csv", index=False)
    return load("folder", directory, FolderReading.model_validate(keys)).info.notes


@pytest.mark.parametrize("number", [-999, 9999, -99, 999.0])
def test_numbers_that_may_stand_for_missing_ones_are_named(tmp_path, number):
    """dankelley/oce#983, cmu-delphi/delphi-epidata#1366: -999 moves the mean of its column by far."""
    table = frame()
    assert notes_of(tmp_path, table) == ()
    table.loc[3:5, "a"] = number
    (note,) = notes_of(tmp_path, table)
    low, high = (table.a[table.a != number].agg(end) for end in ("min", "max"))
    words = f"3 of a are {number:g} (the others {low:g} to {high:g}): if that stands for missing numbers, leave these "
    assert words in note


def test_numbers_among_others_or_only_once_are_numbers():
    x = np.arange(900.0, 1000.0)[:, None]  # 999 is the last
    assert stand_ins("t", {"a": 0}, np.concatenate([x, x])) == ()
    assert stand_ins("t", {"a": 0}, np.array([[1.0], [2.0], [999.0]])) == ()
    assert stand_ins("t", {"a": 0}, np.full((4, 1), 999.0)) == ()
    assert stand_ins("t", {"a": 0}, np.full((4, 1), np.nan)) == ()
    assert stand_ins("t", {"b": 1}, np.array([[999.0, 1.0], [999.0, 2.0], [3.0, 3.0]])) == ()  # a is a category's


def test_targets_that_may_stand_for_missing_ones_are_named(tmp_path):
    table = frame()
    table["size"] = np.where(table.index < 4, -999, table.a)
    (note,) = notes_of(tmp_path, table.drop(columns="label"), task="regression", label="size")
    assert "targets: 4 of size are -999 (the others " in note


def test_rows_that_occur_twice_are_counted(tmp_path):
    """huggingface/datasets#4261, TelecomsXChangeAPi/OpenTextShield#194: training rows were tested on."""
    table = frame()
    (note,) = notes_of(tmp_path, pd.concat([table, table[:20]]))
    assert "20 of 80 rows have the same inputs as an earlier one; a client may be tested on what it" in note


def test_rows_of_few_values_are_alike_by_chance(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.integers(0, 9, 400), "b": rng.integers(0, 9, 400), "label": rng.integers(0, 2, 400)})
    assert notes_of(tmp_path, table) == ()
    assert repeated("t", np.random.default_rng(0).normal(size=(5000, 2))) == ()


def test_rows_differ_where_one_small_number_does():
    """Digests of small whole numbers, whose lower bits are all 0, differ, and those of -0.0 and 0.0 do not."""
    rows = np.stack(np.meshgrid(np.arange(200.0), np.arange(200.0)), axis=-1).reshape(-1, 2)
    x = np.concatenate([np.arange(len(rows))[:, None], rows, rows[:, ::-1]], axis=1)
    assert repeated("t", x) == ()
    (note,) = repeated("t", np.concatenate([x, -x[:1000] * [-1, 1, 1, -1, -1], x[:1000]]))
    assert re.match(r"t: [12]\d{3} of 42000 rows", note)


def test_the_test_part_of_a_copy_of_the_hub_counts_too(tmp_path):
    table = frame()
    table.to_parquet(tmp_path / "train.parquet")
    table[:30].to_parquet(tmp_path / "test.parquet")
    keys = {"hf": HubSettings().model_dump()}
    notes = load("hf", tmp_path, HubReading.model_validate(keys)).info.notes
    assert any("30 of 90 rows have the same inputs as an earlier one" in note for note in notes), json.dumps(notes)


def test_images_that_occur_twice_are_counted(tmp_path):
    """tqwei05/PlantSeg#11: images of the test part were in the training part."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 4, 4), dtype=np.uint8)
    for part, chosen in (("train", images), ("test", np.concatenate([images[:6], images[:6] // 2]))):
        for number, image in enumerate(chosen):
            (tmp_path / part / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / part / "ab"[number % 2] / f"{number}.png")
    notes = load("folder", tmp_path).info.notes
    assert any("6 of 52 images have the same pixels as an earlier one" in note for note in notes), notes
