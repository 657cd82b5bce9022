"""A run from elsewhere whose checkpoints and states are not what a run writes, with digests that fit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save as to_bytes
from torch import nn

import sepal
from sepal.errors import ModelError, StateError
from sepal.export.portable import Origin, load, save
from sepal.modules import floating
from sepal.runs.run_directory import RunDirectory
from sepal.server.run_store import evict
from sepal.storage.files import read_tensors, write_tensors
from sepal.strategies.assembly import assemble
from sepal.training.module_state import ModuleState
from tests.attacks.looking import LOOKS, command
from tests.attacks.test_looking import ODD, places, with_odd
from tests.sepal.engines import modules_with_state

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
    document = json.loads(text)
    match rng.randrange(3):
        case 0:
            text = rng.choice(TEXTS)
        case 1:
            odd = rng.choice([*ODD, {"@array": {}}, {"@array": "x"}])
            text = json.dumps(with_odd(document, rng.choice(list(places(document))), odd))
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


def test_no_version_that_a_state_names_is_a_path_to_a_file_elsewhere(run, tmp_path):
    """It was read and, as it is no state of the run, renamed: by looking at a client's model."""
    copy, victim = tmp_path / "runs" / "a", tmp_path / "precious.safetensors"
    shutil.copytree(run, copy)
    victim.write_bytes(b"the reader's own")
    for file in copy.glob("clients/*/client-00000/*.safetensors"):
        arrays, text = read_tensors(file)
        document = json.loads(text)
        up = "/".join([".."] * len(file.parent.relative_to(tmp_path).parts))
        for key in ("base", "version"):
            document["record"]["reply"][key] = f"{up}/precious"
        file.unlink()
        write_tensors(file, arrays, json.dumps(document))
    assert "expected the name of a version" in LOOKS["model"](copy)
    assert LOOKS["export"](copy)
    assert victim.read_bytes() == b"the reader's own"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_no_state_that_is_a_pipe_or_a_device_keeps_a_reader_waiting(run, plant, tmp_path):
    files = [file.relative_to(run) for file in run.glob("clients/*/client-00000/*.safetensors")]
    assert len(files) > 1  # the newest one, and what it was made of
    for number, file in enumerate(files):
        copy = tmp_path / str(number) / "a"
        shutil.copytree(run, copy)
        (copy / file).unlink()
        plant(copy / file)
        LOOKS["model"](copy)
        LOOKS["export"](copy)


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", [os.mkfifo, sparse])
def test_no_identity_of_a_client_keeps_a_reader_waiting_or_fills_the_memory(run, plant, tmp_path):
    copy = tmp_path / "a"
    shutil.copytree(run, copy)
    (file,) = copy.glob("clients/*/client-00000/identity")
    file.unlink()
    plant(file)
    for look in ("model", "export"):
        assert re.search(r"identity: expected (a regular file|at most)", LOOKS[look](copy))


def test_a_directory_in_the_place_of_the_model_file_is_one_line(run, tmp_path):
    copy = tmp_path / "a"
    shutil.copytree(run, copy)
    command("export", copy, "0")
    (file,) = copy.glob("a-round-*.safetensors")
    file.unlink()
    file.mkdir()
    assert "expected a file, got the directory" in command("export", copy, "0")


@pytest.mark.parametrize("link", ["checkpoints", "checkpoints/evicted"])
def test_a_client_is_evicted_in_the_run_alone(link, tmp_path):
    run, target = tmp_path / "run", tmp_path / "other"
    target.mkdir()
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(target)
    with pytest.raises(StateError, match="a link"):
        evict(run / "checkpoints", "client-00000")
    assert list(target.iterdir()) == []


def test_a_lock_that_leads_elsewhere_is_not_opened(tmp_path):
    """Earlier versions of filelock would empty the file."""
    (tmp_path / "private").write_text("x")
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "private")
    with pytest.raises(StateError, match="got a link that leads out of it"):
        RunDirectory(tmp_path / "run", assemble({"dataset": "digits", "clients": 2, "rounds": 1}), "in-process")
    assert (tmp_path / "private").read_text() == "x"


# Names that no buffer of the module `counting` can have: of a layer, an attribute or method, a tensor that travels.
NO_BUFFERS = (
    "",
    "linear",
    "linear.",
    ".",
    "...",
    "training",
    "forward",
    "changed",
    "_buffers",
    "_parameters",
    "__class__",
)
COUNTING = f"{modules_with_state.__name__}:counting"


@pytest.mark.parametrize("name", [*NO_BUFFERS, "linear.weight", "linear.x", "other.x"])
def test_a_state_puts_nothing_in_the_place_of_a_layer_or_an_attribute(name):
    module = modules_with_state.counting((3,), 2).eval()
    x = torch.ones(2, 3)
    before, names = module(x), [name for name, _ in module.named_buffers()]
    state = ModuleState(module, floating(module))
    state.restore({name: np.zeros(3, np.float32), "steps": np.array(1)})
    after = [name for name, _ in module.named_buffers()]
    assert after == names
    assert isinstance(module.linear, nn.Linear)
    assert module.training is False
    assert not torch.equal(module(x), before), "the rest of the state is taken up"


@pytest.mark.parametrize("name", [f"0/{name}" for name in NO_BUFFERS] + ["", "/", "x", "0"])
def test_a_model_file_puts_nothing_in_the_place_of_a_layer_or_an_attribute(name, tmp_path):
    file = written(tmp_path, **{name: np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match="model: expected "):
        load(file, {COUNTING})


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_a_model_file_whose_weights_are_no_floats_is_refused_in_one_line(dtype, tmp_path):
    file = written(tmp_path, **{"0/linear.weight": np.ones((2, 3), dtype)})
    with pytest.raises(ModelError, match=r"linear\.weight: expected floating point"):
        load(file, {COUNTING})


def written(directory, **changed):
    """A file of the module `counting`, with other tensors."""
    module = modules_with_state.counting((3,), 2)
    tensors = {f"0/{name}": tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    facts = Origin(COUNTING, (3,), 2, 0, 1.0, (0.0,), (1.0,), "fedavg", "own", "run", "client-00000")
    save(directory / "m", facts, [])
    with safe_open(directory / "m", "np") as file:
        about = file.metadata()
    (directory / "m").write_bytes(to_bytes({**tensors, **changed}, about))
    return directory / "m"
