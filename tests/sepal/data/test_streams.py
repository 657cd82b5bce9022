"""Data that is read from a Dataset, and examples of several inputs: the same results as from arrays in memory."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from sepal.client_app.guard import check_sizes
from sepal.data.streams import Stream
from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, DataError, ModelError, ProtocolError, RosterError
from sepal.strategies.assembly import assemble
from sepal.tasks.inputs import cut, packed, several
from sepal.training.columns import StreamColumn, columns, split

RNG = np.random.default_rng(5)
IMAGES, WORDS = RNG.standard_normal((60, 1, 4, 4)).astype(np.float32), RNG.integers(0, 9, (60, 3))
LABELS = ((IMAGES.mean((1, 2, 3)) > 0) ^ (WORDS[:, 0] > 4)).astype(np.int64)
READ = []


class Rows(Dataset):
    """Some of the examples, read one by one."""

    def __init__(self, rows, x):
        self.rows, self.x = rows, x

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        READ.append(index)
        row = self.rows[index]
        return self.x(row), int(LABELS[row])


class Flowing(IterableDataset):
    """Examples in an order of their own, without numbers."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return ((IMAGES[row], int(LABELS[row])) for row in self.rows)


def parts(client):
    rows = np.arange(client, 60, 2)
    return rows[:15], rows[15:20], rows[20:]


def in_memory(client):
    from sepal.data import ClientData, Examples

    return ClientData(*(Examples(IMAGES[rows], LABELS[rows]) for rows in parts(client)))


def from_datasets(client):
    return tuple(Rows(rows, lambda row: IMAGES[row]) for rows in parts(client))


def two_parts(client):
    train, _, test = from_datasets(client)
    return train, test


def two_arrays(client):
    train, _, test = parts(client)
    return IMAGES[train], LABELS[train], IMAGES[test], LABELS[test]


def two_from_datasets(client):
    return tuple(Rows(rows, lambda row: {"image": IMAGES[row], "words": WORDS[row]}) for rows in parts(client))


def two_in_memory(client):
    train, _, test = parts(client)
    return tuple(
        part for rows in (train, test) for part in ({"image": IMAGES[rows], "words": WORDS[rows]}, LABELS[rows])
    )


def two_by_place(client):
    train, _, test = parts(client)
    return tuple(part for rows in (train, test) for part in ((IMAGES[rows], WORDS[rows]), LABELS[rows]))


def flowing(client):
    train, validation, test = parts(client)
    return Flowing(train), Flowing(validation), iter(Flowing(test))


def two_flowing(client):
    train, validation, test = (iter(part) for part in two_from_datasets(client))
    return train, validation, test


def shuffled(client):
    """Names of inputs in another order in every second example."""
    train, validation, test = two_from_datasets(client)
    turned = ((dict(reversed(x.items())) if n % 2 else x, y) for n, (x, y) in enumerate(train))
    return turned, iter(validation), iter(test)


def changing(client):
    return iter([((IMAGES[0], WORDS[0]), 1), (IMAGES[0], 0)]), Flowing([0])


def torn(client):
    return ((IMAGES[row], 1) for row in (1, 99)), Flowing([])


def broken(client):
    return Rows([0, 1, 99], lambda row: IMAGES[row]), Rows([0, 1], lambda row: IMAGES[row])


def small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, classes))


class Both(nn.Module):
    """Takes an image and words, by name."""

    def __init__(self, shapes, classes):
        super().__init__()
        assert shapes == {"image": (1, 4, 4), "words": (3,)} or shapes == ((1, 4, 4), (3,))
        self.see, self.read = nn.Linear(16, 8), nn.Embedding(9, 8)
        self.head = nn.Linear(16, classes)

    def forward(self, image, words):
        assert words.dtype is torch.int64
        return self.head(torch.cat([self.see(image.flatten(1)), self.read(words).mean(1)], 1).tanh())


KEYS = {
    **{
        "method": "fedavg",
        "dataset": "own",
        "own.shape": "1x4x4",
        "own.classes": 2,
        "clients": 2,
        "rounds": 2,
        "local-epochs": 2,
    },
    **{"batch-size": 4, "lr": 0.1, "evaluate-every": 1, "model": f"{__name__}:small"},
}
TWO = {**KEYS, "own.shape": "image=1x4x4,words=3i", "model": f"{__name__}:Both"}


def run(data, **keys):
    return run_in_process(assemble({**KEYS, **keys, "own.data": f"{__name__}:{data}"}))


def weights(strategy):
    return strategy._method.make_server(strategy.setup).model(strategy.progress.server)


@pytest.mark.parametrize("method", ["fedavg", "subfedavg", "dmpfl", "fedem", "heterofl", "pa3dfl", "pfedgate"])
def test_a_dataset_gives_the_bits_of_arrays(method):
    model = {"model": f"{__name__}:small", "subfedavg.accuracy": 0.1, "dmpfl.adaptive-inference": True}
    lines = [run(data, method=method, **model) for data in ("in_memory", "from_datasets")]
    in_memory, from_datasets = map(weights, lines)
    assert all(np.array_equal(in_memory[name], from_datasets[name]) for name in in_memory)


def test_an_iterable_gives_the_bits_of_arrays():
    """It is read once, and then in the order of the run's seed."""
    in_memory, flowing = (weights(run(data, method="fedavg")) for data in ("in_memory", "flowing"))
    assert all(np.array_equal(in_memory[name], flowing[name]) for name in in_memory)


def test_a_dataset_is_read_batch_by_batch_in_the_order_of_the_seed():
    stream = assemble({**KEYS, "own.data": f"{__name__}:from_datasets"}).data.client(0, 2, "client-00000")
    assert isinstance(stream.train, Stream)
    READ.clear()
    x, y = columns(stream.train, "cpu")
    before = torch.get_rng_state()
    assert [len(part) for part, _ in split(x, y, 4)] == [4, 4, 4, 3]
    assert list(range(15)) == READ, "each example once"
    assert torch.equal(before, torch.get_rng_state()), "DataLoader draws a seed of its own"
    assert isinstance(x, StreamColumn)
    assert x[torch.tensor([3, 1])].tolist() == IMAGES[[6, 2]].tolist()


@pytest.mark.parametrize(
    ("data", "keys", "error"),
    [
        ("changing", {}, r"changing train: expected inputs as in the first example, 2, got one array"),
        ("torn", {}, r"torn train: expected a Dataset or an iterable that gives .*, got IndexError: .*99"),
        ("broken", {"split.validation": 0.0}, r"broken train: expected a Dataset or .*, got IndexError: .*99"),
        (
            "from_datasets",
            {"own.shape": "16"},
            r"data: expected examples of shape \(16,\), as the run says, got \(1",
        ),
        (
            "from_datasets",
            {"own.class-weights": "balanced"},
            "own.class-weights: expected none with a Dataset",
        ),
        ("from_datasets", {"evaluate.corruption": "contrast"}, "evaluate.corruption: expected none with a Dataset"),
    ],
)
def test_what_cannot_work_with_a_dataset_is_refused_in_a_line(data, keys, error):
    with pytest.raises((ConfigError, DataError, RosterError), match=error) as caught:
        run(data, **keys)
    assert "Traceback" not in str(caught.value)


def test_several_inputs_in_a_row_and_back():
    inputs = several("image=1x4x4,words=3i")
    rows = packed("x", inputs, {"image": IMAGES, "words": WORDS})
    assert (rows.shape, rows.dtype) == ((60, 19), np.float32)
    image, words = cut(torch.from_numpy(rows), inputs)
    assert torch.equal(image, torch.from_numpy(IMAGES))
    assert torch.equal(words, torch.from_numpy(WORDS))
    assert several("1x28x28") == several("") == ()


def test_inputs_by_name_by_place_and_from_a_dataset_train_alike():
    by_name, by_place = run("two_in_memory", **TWO), run("two_by_place", **{**TWO, "own.shape": "1x4x4,3i"})
    weights_by_name, weights_by_place = map(weights, (by_name, by_place))
    first = by_name.setup.weights
    assert set(weights_by_name) == {"see.weight", "see.bias", "read.weight", "head.weight", "head.bias"}
    assert all(
        np.array_equal(weights_by_name[name], weights_by_place[name])
        and not np.array_equal(weights_by_name[name], first[name])
        for name in weights_by_name
    )
    read, spooled = (weights(run(data, **TWO)) for data in ("two_from_datasets", "two_flowing"))
    assert all(np.array_equal(read[name], spooled[name]) for name in weights_by_name)
    turned = weights(run("shuffled", **TWO))
    assert all(np.array_equal(read[name], turned[name]) for name in weights_by_name)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"image": IMAGES}, "x: expected a dict with image, words, got image"),
        (IMAGES, "x: expected a dict with image, words, got ndarray"),
        ({"image": IMAGES, "words": WORDS[:5]}, r"x words: expected shape \(60, 3\), got \(5, 3\)"),
        ({"image": IMAGES, "words": WORDS / 2}, "x words: expected whole numbers, got float64"),
        ({"image": IMAGES, "words": WORDS + 2**24}, "x words: expected whole numbers below 16777216"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, error):
    with pytest.raises(DataError, match=error):
        packed("x", several("image=1x4x4,words=3i"), inputs)


def test_keys_of_several_inputs_that_are_none_are_refused():
    for text in ("image=1x4x4,3i", "a=3,a=4"):
        with pytest.raises(DataError, match=r"own\.shape: expected a name of its own for each input, or for none"):
            several(text)
    with pytest.raises(ConfigError, match=r"own\.shape"):
        assemble({**TWO, "own.shape": "image=1x4x,words=3i"})
    with pytest.raises(ModelError, match=r"model: expected package\.module:function of your own, for 2 inputs"):
        assemble({**TWO, "model": "cnn2"})
    with pytest.raises(ProtocolError, match=r"own\.shape: expected sizes that fit"):
        check_sizes({"dataset": "own", "own.shape": "a=9999999x9999999,b=3i", "batch-size": 1})


def without_validation(client):
    train, _, test = from_datasets(client)
    return train, Rows([], None), test


@pytest.mark.parametrize(
    ("data", "arrays", "keys"),
    [
        ("from_datasets", "in_memory", {}),
        ("two_parts", "two_arrays", {}),
        ("two_parts", "two_arrays", {"split.validation": 0.0}),
        ("without_validation", "two_arrays", {"split.validation": 0.0}),
        ("two_parts", "two_arrays", {"split.validation": 0.0, "evaluate.validation-apart": True}),
    ],
)
def test_a_run_ends_as_with_arrays_also_without_a_validation_part(tmp_path, data, arrays, keys):
    from sepal.api import run as api_run

    summaries = []
    for name in (data, arrays):
        run_keys = {**KEYS, **keys, "own.data": f"{__name__}:{name}", "out": str(tmp_path / name)}
        method, dataset = run_keys.pop("method"), run_keys.pop("dataset")
        result = api_run(method, dataset, workers=1, progress=False, **run_keys)
        summaries.append(json.loads((result.path / "summary.json").read_text(encoding="utf-8")))
    assert summaries[0]["accuracy"] == summaries[1]["accuracy"]
    assert summaries[0]["majority"] == summaries[1]["majority"]
    assert 0 < summaries[0]["majority"] < 1


def test_an_empty_part_has_the_shape_of_its_dataset():
    rest = assemble({**KEYS, "split.validation": 0.0, "own.data": f"{__name__}:two_parts"}).data.client(0, 2, "a")
    x, y = columns(rest.validation, "cpu")
    assert (x[:].shape, y[:].shape, len(rest.validation.sample(64))) == ((0, 1, 4, 4), (0,), 0)
    assert list(split(x, y)) == []
    assert x[0::2].shape == (0, 1, 4, 4)
