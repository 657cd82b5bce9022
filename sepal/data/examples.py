"""Types of the data package: examples, a client's data, metadata of a data set, and a source.

A :class:`Source` stores rows as published (images as ``uint8`` or ``uint16``) and converts only the rows that are
requested, so a client never holds the whole data set in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sepal.data.scaling import Scale
from sepal.errors import DataError
from sepal.tasks.inputs import Input

InputKind = Literal["image", "signal", "text"]
Labels = NDArray[np.int64]
Index = NDArray[np.int64]
PIXELS = {"uint8": 255, "uint16": 65535}  # the dtypes of stored images, and white in each


def are_pixels(x: NDArray[Any]) -> bool:
    """Return whether an array holds images as their files have them, (H, W) or (H, W, C) for each."""
    return x.dtype == np.uint8 or (x.dtype == np.uint16 and x.ndim > 2)  # (n, length) are tokens


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and labels, ready for a model.

    Attributes:
        x: ``(n, *input_shape)``: float32, normalised (images as ``(C, H, W)``), or int32 tokens for text; float64 rows
            of a table that no client has standardised yet. Read-only; may be a memory map.
        y: int64 ``(n,)``, class numbers from 0; of other tasks, targets ``(n, …)``, int64 or float32.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __post_init__(self) -> None:
        if not self.y.ndim or len(self.x) != len(self.y):
            raise DataError("examples", f"as many labels as inputs ({len(self.x)})", f"labels of shape {self.y.shape}")

    def __len__(self) -> int:
        return len(self.y)

    def first(self, count: int) -> Examples:
        """Return the first examples."""
        return Examples(self.x[:count], self.y[:count])


@dataclass(frozen=True, eq=False)
class ClientData:
    """One client's data: three disjoint parts. The validation part is taken from the training part.

    Private data may be read from a Dataset instead (:mod:`sepal.data.streams`), all three parts alike.

    Attributes:
        scale: What all three parts were standardised with; None if they were not.
    """

    train: Examples
    validation: Examples
    test: Examples
    scale: Scale | None = None

    def standardized(self, numbers: Sequence[bool] = (), single: bool = False) -> ClientData:
        """Return the parts with the statistics of the training part, without validation and test part.

        Args:
            numbers: Of each column, whether it is standardised; empty: all are.
            single: Whether rows and statistics become float32 first, as in runs of earlier versions.
        """
        scale = Scale.of(self.train.x, numbers, single)
        train, validation, test = (Examples(scale(part.x), part.y) for part in (self.train, self.validation, self.test))
        return ClientData(train, validation, test, scale)

    @property
    def unseen_test_labels(self) -> int:
        """Return the number of distinct labels in the test part that the train part lacks."""
        if not isinstance(self.test, Examples) or self.test.y.ndim != 1 or self.test.y.dtype.kind == "f":
            return 0  # of a Dataset all examples would have to be read; or targets are no class numbers
        return len(set(self.test.y.tolist()) - set(self.train.y.tolist()))  # np.setdiff1d imports numpy.ma: .1 s


@dataclass(frozen=True)
class DatasetInfo:
    """Metadata of a data set.

    Attributes:
        name: The value of the run-config key ``dataset``.
        classes: Number of classes.
        input_shape: Shape of one input, without the batch axis.
        kind: ``image`` (C, H, W), ``signal`` (channels, time) or (features,), ``text`` (length,) of tokens.
        natural: Whether examples have owners, that is, ids of the people they come from.
        defaults: Defaults of run-config keys: model, lr, batch-size, optimizer, local-epochs, rounds.
        vocabulary: Number of token ids, 0 unless ``kind`` is text. Id 0 is padding, 1 an unknown word.
        mean: Subtracted from inputs (stored pixels are divided by their white first): one value, or one per channel.
        std: Inputs are divided by it afterwards: one value, or one per channel.
        class_names: Name of each class, for people; empty: classes are known by their numbers.
        columns: Names of the inputs that a table's columns become; empty for other data.
        schema: How a table was read, :meth:`sepal.data.schema.TableSchema.text`; empty for other data.
        table: Whether each client standardises the columns of its rows, with statistics of its own.
        notes: Lines to show when a run starts, such as files that were left out.
        labelled: Whether targets are class numbers, by which examples can be dealt to clients.
        inputs: What one example has, if that is several inputs; ``input_shape`` is then that of all side by side.
        overlap: How many of an owner's next rows, in order, have readings of a row, too; 0: none, or only a few.
            Parts are then cut at the end of each owner's rows, with so many rows between them.
    """

    name: str
    classes: int
    input_shape: tuple[int, ...]
    kind: InputKind
    natural: bool
    defaults: Mapping[str, str | int | float] = field(hash=False)
    vocabulary: int = 0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    class_names: tuple[str, ...] = ()
    table: bool = False
    columns: tuple[str, ...] = ()
    schema: str = ""
    notes: tuple[str, ...] = ()
    labelled: bool = True
    inputs: tuple[Input, ...] = ()
    overlap: int = 0

    @property
    def partition(self) -> Literal["natural", "dirichlet", "iid"]:
        """The meaning of ``partition.name = "auto"``: natural if examples have owners, else dirichlet, or else iid."""
        return "natural" if self.natural else "dirichlet" if self.labelled else "iid"


@dataclass(frozen=True, eq=False)
class Source:
    """All rows of a data set as stored: training rows first, then its own validation rows and test rows, if any.

    Attributes:
        info: Metadata, with the normalisation constants.
        x: Stored inputs ``(n, ...)``: uint8 or uint16 images ``(H, W)`` or ``(H, W, C)``, float32 of ``input_shape``,
            float64 rows of a table, or int16/int32 tokens. May be a memory map.
        y: int64 ``(n,)``, or as in :class:`Examples`.
        train_count: Number of training rows.
        natural: Id of the person of each row, ``(n,)`` ints or strings, or None.
        validation_count: Number of the source's own validation rows.
    """

    info: DatasetInfo
    x: NDArray[Any]
    y: NDArray[Any]
    train_count: int
    natural: NDArray[Any] | None = None
    validation_count: int = 0

    @property
    def test_start(self) -> int:
        """The first of the source's own test rows; the number of rows if there are none."""
        return self.train_count + self.validation_count

    @property
    def train(self) -> Examples:
        """All training rows, converted in memory. Clients use :meth:`take` to get their part."""
        return self.take(np.arange(self.train_count))

    @property
    def test(self) -> Examples | None:
        """The source's own test rows, converted; None if there are none."""
        return self.take(np.arange(self.test_start, len(self.y))) if self.test_start < len(self.y) else None

    @property
    def labels(self) -> Labels:
        """What examples are dealt and drawn by, int64 ``(n,)``: class numbers; all alike where there are none."""
        return self.y if self.info.labelled else np.zeros(len(self.y), np.int64)

    def take(self, rows: Index) -> Examples:
        """Return the given rows, normalised and in the model's layout (see :class:`Examples`)."""
        return Examples(_prepared(np.asarray(self.x[rows]), self.info), np.array(self.y[rows]))


def _prepared(stored: NDArray[Any], info: DatasetInfo) -> NDArray[Any]:
    """Convert stored rows for a model: int32 tokens, or float32 ``(x − mean) / std`` in ``(C, …)`` layout.

    Rows of a table stay as they are.
    """
    if info.table:
        return np.array(stored, np.float64)  # until a client standardises them
    if info.kind == "text":
        return stored.astype(np.int32)
    return scaled(stored, info.mean, info.std, len(info.input_shape)).reshape(len(stored), *info.input_shape)


def scaled(stored: NDArray[Any], mean: Sequence[float], std: Sequence[float], sides: int) -> NDArray[np.float32]:
    """Return stored rows as float32 ``(x − mean) / std``; stored pixels (n, H, W[, C]) as (n, C, H, W).

    ``mean`` and ``std`` are as in :class:`DatasetInfo`; ``sides``: number of axes of one example of the model.
    """
    per_channel = (len(mean), *[1] * (sides - 1))
    scale = np.asarray(std, dtype=np.float32).reshape(per_channel)
    shift = np.asarray(mean, dtype=np.float32).reshape(per_channel)
    if stored.dtype.name in PIXELS:
        stored = stored[:, None] if stored.ndim == 3 else stored.transpose(0, 3, 1, 2)
        white = np.float32(PIXELS[stored.dtype.name])
        scale, shift = scale * white, shift * white
    values = np.ascontiguousarray(stored, dtype=np.float32)
    if values is stored or not values.flags.writeable:
        values = values.copy()
    values -= shift
    values /= scale
    return values
