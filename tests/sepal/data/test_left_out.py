"""Examples that are with no client are counted, and clients that lack a part take part in what they can."""

from __future__ import annotations

import json

import numpy as np
import pytest
from torch import nn

from sepal.api import run
from sepal.config import PartitionSettings, SplitSettings
from sepal.data import DataSpec, load
from sepal.data.federation import DealtData
from sepal.errors import SepalError
from sepal.strategies import registry
from sepal.study.run import prepare

RNG = np.random.default_rng(3)
Y = RNG.integers(0, 2, 90)
X = (RNG.standard_normal((90, 6)) + Y[:, None]).astype(np.float32)


def owned(where, counts):
    """A table with so many rows of each person."""
    rows = [f"{n % 7},{n % 2},p{person}" for person, count in enumerate(counts) for n in range(count)]
    (where / "all.csv").write_text("\n".join(["a,label,person", *rows]), encoding="utf-8")
    return {"dataset": "folder", "data-dir": str(where), "method": "fedavg", "rounds": 1}


def test_people_with_few_examples_and_people_beyond_the_clients_are_counted(tmp_path):
    flat = owned(tmp_path, [20, 20, 20, 9, 4])
    notes = prepare({**flat, "clients": 2}, tmp_path).assembly.notes
    assert notes[-1] == (
        "partition: 33 of 73 examples are with no client: 13 of 2 people with fewer than 10 (partition.min-examples); "
        "20 of 1 people beyond clients = 2"
    )
    few = prepare({**flat, "clients": 3}, tmp_path).assembly.notes
    assert few[-1].endswith("with no client: 13 of 2 people with fewer than 10 (partition.min-examples)")
    everyone = prepare({**flat, "clients": 5, "partition.min-examples": 1}, tmp_path).assembly.notes
    assert not [line for line in everyone if line.startswith(("partition:", "clients:"))]


@pytest.mark.parametrize(
    ("partition", "split", "words"),
    [
        ({"name": "iid", "subsample": 40}, {}, "20 of 60 examples are with no client: 20 that the rules"),
        ({"name": "shards", "shard_size": 5}, {}, "30 of 60 examples are with no client: 30 that the rules"),
        ({"name": "iid"}, {"by": "time"}, "examples are with no client"),
    ],
)
def test_rows_that_a_rule_drops_are_counted(tmp_path, partition, split, words):
    owned(tmp_path, [60])
    spec = DataSpec("folder", tmp_path, PartitionSettings(**partition), SplitSettings(**split))
    data = DealtData(load("folder", tmp_path).info, spec)
    (line,) = [line for line in data.left_out(3) if line.startswith("partition: ")]
    assert words in line


def test_clients_without_a_test_or_a_validation_part_are_counted(tmp_path):
    flat = owned(tmp_path, [20, 1, 2])
    notes = prepare({**flat, "clients": 3, "partition.min-examples": 1}, tmp_path).assembly.notes
    assert notes[-1] == (
        "clients: of 3, 2 without validation examples, 1 without test examples: no figure counts them there"
    )


def uneven(client):
    """The first client has no test part, the second no validation part, the third all, the fourth a test part alone."""
    indices = np.arange(client, 90, 4)
    train, validation, test = indices[:12], indices[12:16], indices[16:]
    if client == 3:
        train, validation = train[:0], validation[:0]
    if client == 0:
        test = test[:0]
    if client == 1:
        validation = validation[:0]
    from sepal.data import ClientData, Examples

    return ClientData(*(Examples(X[rows], Y[rows]) for rows in (train, validation, test)))


def small(shape, classes):
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, classes))


def with_norm(shape, classes):
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, classes))


OWN = {"own.shape": "6", "own.classes": 2, "own.data": f"{__name__}:uneven", "clients": 4, "batch-size": 4}
RUN = {"rounds": 2, "local-epochs": 1, "lr": 0.1, "evaluate-every": 1}


def summary_of(result):
    return json.loads((result.path / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("method", sorted(registry.names()))
def test_a_client_without_one_of_its_parts_does_what_it_can_and_is_no_figure(tmp_path, method):
    model = f"{__name__}:{'with_norm' if method == 'fedbn' else 'small'}"
    result = run(method, "own", model, workers=1, progress=False, out=str(tmp_path), **OWN, **RUN)
    figures = [figure for figure in summary_of(result)["accuracy"].values() if figure]
    assert figures
    assert {figure["clients"] for figure in figures} == {2}
    assert summary_of(result)["populations"] == {"participants": 3, "novel": 1}, "who has no training examples"
    received = summary_of(result)["novel"]["accuracy"].get("received")
    assert received is None or received["clients"] == 1


def nothing_to_train_on(client):
    return X[:0], Y[:0], X, Y


def nothing_at_all(client):
    return X[:0], Y[:0], X[:0], Y[:0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (nothing_to_train_on, "clients: expected one with training examples, got 4 without any"),
        (nothing_at_all, "nothing_at_all train, test: expected at least one example, got none"),
    ],
)
def test_a_run_that_nobody_can_train_in_is_refused(tmp_path, data, message):
    keys = {**OWN, **RUN, "own.data": f"{__name__}:{data.__name__}"}
    with pytest.raises(SepalError, match=message):
        run("fedavg", "own", f"{__name__}:small", workers=1, progress=False, out=str(tmp_path), **keys)


def test_shifted_and_corrupted_views_leave_out_a_client_without_test_examples(tmp_path):
    people = np.repeat(["a", "b", "c"], [20, 30, 1])
    images = RNG.integers(0, 255, (51, 12, 12)).astype(np.uint8)
    np.savez(tmp_path / "all.npz", x=images, y=np.arange(51) % 2, person=people)
    keys = {"evaluate.shift": True, "evaluate.corruption": "contrast", "partition.min-examples": 1, "clients": 3}
    result = run(
        *("fedavg", "folder"),
        **{"data_dir": str(tmp_path), "out": str(tmp_path / "runs"), "workers": 1, "progress": False, "rounds": 1},
        **keys,
    )
    figures = {view: figure for view, figure in summary_of(result)["accuracy"].items() if figure}
    assert figures.pop("pooled")["clients"] == 3, "tested on all clients' examples"
    assert {figure["clients"] for figure in figures.values()} == {2}
    further = summary_of(result)["further"]
    assert {"received-corrupted", "received-shift-100"} <= further.keys()
    assert {figure["clients"] for figure in further.values()} == {2}
