"""Examples that do not fit into memory: a torch ``Dataset`` or an iterable, read when examples are needed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sepal.data.examples import Examples, Index
from sepal.errors import DataError, SepalError
from sepal.tasks.numbers import as_array
from sepal.user_modules import described

WHAT = "a Dataset or an iterable that gives (x, y) of one example"


@dataclass(frozen=True, eq=False)
class Stream:
    """A part of a client's data as a Dataset.

    Attributes:
        key: Name of the data in error messages.
        dataset: ``dataset[i]`` is (x, y) of an example.
        rows: int64: the examples of the Dataset that are in this part, in order.
        check: Makes checked :class:`Examples` of x and y, of several examples each.
    """

    key: str
    dataset: Any
    rows: Index
    check: Callable[[str, Any, Any], Examples]

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, places: Index) -> Stream:
        """Return the part with the examples at ``places`` alone."""
        return replace(self, rows=self.rows[places])

    def first(self, count: int) -> Examples:
        """Return the first examples."""
        return next(self.read([np.arange(min(count, len(self)))]))

    def sample(self, count: int) -> Examples:
        """Return at most ``count`` examples, evenly spaced; of an empty part none."""
        return next(self.read([np.unique(np.linspace(0, len(self) - 1, min(count, len(self))).astype(np.int64))]))

    def read(self, batches: Sequence[Index]) -> Iterator[Examples]:
        """Yield batches, each the examples at its places, read one batch at a time by torch's DataLoader.

        Raises:
            DataError: The Dataset fails, or an example is invalid.
        """
        if not all(map(len, batches)):
            none = self._none()
            yield from (next(self.read([places])) if len(places) else none for places in batches)
            return
        import torch
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            self.dataset,
            batch_sampler=[self.rows[places].tolist() for places in batches],
            collate_fn=self._together,
            generator=torch.Generator(),  # or it draws from torch's own
        )
        try:
            yield from loader
        except SepalError:
            raise
        except Exception as error:
            raise DataError(self.key, WHAT, described(error)) from error

    def _none(self) -> Examples:
        """Return no examples, of the shape of the Dataset's first one if there is one."""
        if not len(self.dataset):
            return Examples(np.empty((0, 1), np.float32), np.empty(0, np.int64))
        single = next(replace(self, rows=np.arange(1)).read([np.arange(1)]))
        return Examples(single.x[:0], single.y[:0])

    def _together(self, items: Sequence[Any]) -> Examples:
        pairs = [_pair(self.key, item) for item in items]
        targets = np.stack([as_array(f"{self.key} y", y) for _, y in pairs])
        return self.check(self.key, _stacked(self.key, [x for x, _ in pairs]), targets)


class Spooled:
    """The examples of an iterable, in a temporary file, so that they can be read in any order.

    The file has no name and is gone when this object is. It has arrays one after the other: an example's inputs, its y.
    """

    def __init__(self, key: str, examples: Iterable[Any]) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as this object)
        self._places: list[int] = []
        self._form: Any = None  # of the first x: names of inputs, their number, or None for a single array
        for example in examples:
            x, y = _pair(key, example)
            form = tuple(x) if isinstance(x, Mapping) else len(x) if isinstance(x, tuple | list) else None
            if not self._places:
                self._form = form
            if isinstance(x, Mapping) and isinstance(self._form, tuple) and x.keys() == set(self._form):
                parts = [x[name] for name in self._form]
            elif form == self._form:
                parts = [x] if form is None else list(x)
            else:
                raise DataError(
                    key, f"inputs as in the first example, {self._form or 'one array'}", form or "one array"
                )
            self._places.append(self._file.tell())
            for part in (*parts, y):
                np.save(self._file, as_array(key, part), allow_pickle=False)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        self._file.seek(self._places[index])
        names = self._form if isinstance(self._form, tuple) else range(self._form or 1)
        parts = [np.load(self._file, allow_pickle=False) for _ in names]
        x = dict(zip(names, parts, strict=True)) if isinstance(self._form, tuple) else tuple(parts)
        return (x[0] if self._form is None else x), np.load(self._file, allow_pickle=False)


def stream(key: str, dataset: Any, check: Callable[[str, Any, Any], Examples]) -> Stream:
    """Return a Dataset as a part of a client's data; an iterable, which must end, is spooled first.

    Raises:
        DataError: The iterable fails.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(dataset, DataLoader):
        raise DataError(key, WHAT, "a DataLoader, which gives batches: return its dataset")
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not indexed or isinstance(dataset, IterableDataset):
        try:
            dataset = Spooled(key, dataset)
        except DataError:
            raise
        except Exception as error:
            raise DataError(key, WHAT, described(error)) from error
    return Stream(key, dataset, np.arange(len(dataset)), check)


def is_dataset(value: Any) -> bool:
    """Return whether a part of a client's data is no array but read example by example."""
    array = hasattr(value, "__array__") or isinstance(value, list | tuple | Mapping | str)
    return not array and (hasattr(value, "__getitem__") or hasattr(value, "__iter__"))


def _pair(key: str, example: Any) -> tuple[Any, Any]:
    if not isinstance(example, tuple | list) or len(example) != 2:
        raise DataError(key, WHAT, f"an example that is a {type(example).__name__}")
    return example[0], example[1]


def _stacked(key: str, examples: Sequence[Any]) -> Any:
    first = examples[0]
    if isinstance(first, Mapping):
        return {name: np.stack([as_array(f"{key} x {name}", example[name]) for example in examples]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(np.stack([as_array(f"{key} x", part) for part in parts]) for parts in zip(*examples, strict=True))
    try:
        return np.stack([as_array(f"{key} x", example) for example in examples])
    except ValueError as error:
        raise DataError(f"{key} x", "examples of one shape", str(error)) from None
