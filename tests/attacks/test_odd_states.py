"""A run from elsewhere whose checkpoints and states are not what a run writes, with digests that fit."""

from __future__ import annotations

import json
import random
import shutil

import numpy as np
import pytest

import sepal
from sepal.errors import StateError
from sepal.runs.run_directory import RunDirectory
from sepal.server.run_store import evict
from sepal.storage.files import read_tensors, write_tensors
from sepal.strategies.assembly import assemble
from tests.attacks.looking import LOOKS
from tests.attacks.test_looking import ODD, places, with_odd

CHANGES = 12  # of each file
TEXTS = ("", "null", "[]", "3", "{", '{"a":' * 50_000, "{}")


@pytest.fixture(scope="module", params=["dmpfl", "subfedavg"])
def run(request, tmp_path_factory):
    keys = {"partition": {"subsample": 200, "name": "iid"}, "clients": 2, "rounds": 1, "workers": 1, "progress": False}
    return sepal.run(request.param, "digits", out=str(tmp_path_factory.mktemp("runs")), name="a", **keys).path


def reshaped(arrays, rng):
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    others = (array.reshape(-1)[:0], array.reshape(1, *array.shape), array.astype(np.float64), np.zeros(3, np.uint8))
    return {**arrays, name: rng.choice(others)}


def change(path, rng):
    """Write a state file with other texts, values or arrays, as Sepal would write it."""
    arrays, text = read_tensors(path)
    found = json.loads(text)
    match rng.randrange(3):
        case 0:
            text = rng.choice(TEXTS)
        case 1:
            odd = rng.choice([*ODD, {"@array": {}}, {"@array": "x"}])
            text = json.dumps(with_odd(found, rng.choice(list(places(found))), odd))
        case _:
            arrays = reshaped(arrays, rng) if arrays else {}
    path.unlink()
    write_tensors(path, arrays, text)


def test_odd_checkpoints_and_states_end_in_an_error_of_ours(run, tmp_path):
    rng = random.Random(0)
    files = [path.relative_to(run) for path in run.rglob("*.safetensors") if "client-00001" not in str(path)]
    for number, file in enumerate(files * CHANGES):
        copy = tmp_path / str(number) / "a"
        shutil.copytree(run, copy)
        change(copy / file, rng)
        for name in ("evict", "figures", "model"):
            LOOKS[name](copy)
        shutil.rmtree(copy.parent)


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/evicted"])
def test_a_client_is_evicted_in_the_run_alone(place, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    (run / place).parent.mkdir(parents=True)
    (run / place).symlink_to(other)
    with pytest.raises(StateError, match="a link"):
        evict(run / "checkpoints", "client-00000")
    assert list(other.iterdir()) == []


def test_a_lock_that_leads_elsewhere_is_not_opened(tmp_path):
    """Earlier versions of filelock would empty the file."""
    (tmp_path / "private").write_text("x")
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "private")
    with pytest.raises(StateError, match="expected a file, got a link"):
        RunDirectory(tmp_path / "run", assemble({"dataset": "digits", "clients": 2, "rounds": 1}), "in-process")
    assert (tmp_path / "private").read_text() == "x"
