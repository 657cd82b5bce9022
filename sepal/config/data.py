"""The keys ``partition.*``, ``split.*``, ``drift.*``, ``folder.*``, ``hf.*`` and ``own.*``.

A key is its prefix and the attribute with hyphens, for example ``partition.shard-size``. Comments cite the papers that
values come from (``FedPSE C.1`` is appendix C.1 of that paper); each method's NOTES.md lists them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from sepal.config.base import AUTO, BY_NUMBER, FORMER, NOT_SET, Mark, Settings, marks, renewed
from sepal.tasks.inputs import PATTERN

PartitionName = Literal[
    "auto", "iid", "dirichlet", "extended-dirichlet", "pathological", "shards", "two-class", "lambda-mix",
    "quantity-skew", "natural", "domain",
]  # fmt: skip
Corruption = Literal["none", "gaussian-noise", "shot-noise", "impulse-noise", "brightness", "contrast", "pixelate"]


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in the value of a key, which are separated by commas."""
    return tuple(name.strip() for name in text.split(",")) if text else ()


class PartitionSettings(Settings):
    """How examples are distributed to clients: run-config keys ``partition.*``."""

    name: PartitionName = Field(
        "auto",
        description="partition rule; auto: natural if examples have owners, else dirichlet",
        json_schema_extra={**marks(Mark.AUTOMATIC), BY_NUMBER: ["iid", "natural", "quantity-skew", "domain"]},
    )
    # DM-PFL's main setting is Dir(.3) (Table 1); pFedGate takes .4 (App. G), Pa3dFL 1.0 (App. D). ExDir: 10 or 100.
    alpha: float = Field(
        0.3,
        gt=0,
        le=1e6,
        description="dirichlet, extended-dirichlet: concentration parameter α (per class, over the clients that may "
        "have it)",
    )
    # Li et al., ICDE 2022 (NIID-Bench): .5, in its README also .1.
    beta: float = Field(
        0.5,
        gt=0,
        le=1e6,
        description="quantity-skew: β; clients' shares of the examples are drawn from Dir(β), classes are as in all",
    )
    # FedPSE C.1 and Table 1: λ in {0, .5, 1}; 1 is the headline column.
    lambda_: float = Field(1.0, ge=0, le=1, description="lambda-mix: fraction sorted by label; the rest is IID")
    # DM-PFL A.1.3 uses two classes per client; Pa3dFL 20 of CIFAR-100's (section 5.1).
    classes: int = Field(
        2,
        ge=1,
        le=10_000,
        description="pathological: classes per client; extended-dirichlet: the most classes that a client has (C)",
    )
    # Sub-FedAvg 4.1: two shards of 250 (CIFAR-100: 125).
    shards: int = Field(2, ge=1, le=10_000, description="shards: shards per client")
    shard_size: int = Field(0, ge=0, description="shards: examples per shard; 0: as many as fit")
    # DM-PFL A.1.2 excludes clients "with only few samples"; 10 is the default of flwr-datasets.
    min_examples: int = Field(
        10,
        ge=1,
        description="dirichlet, extended-dirichlet: redraw until each client has this many; quantity-skew: each client "
        "has this many, and the others are dealt by the shares; natural: leave out people with fewer",
    )
    within: Literal["iid", "dirichlet"] = Field(
        "iid",
        description="domain: how the examples of a domain are dealt to its clients",
        json_schema_extra={BY_NUMBER: ["iid"]},
    )
    # Li et al., ICDE 2022, section IV-C: .1 in the authors' scripts.
    noise: float = Field(
        0.0,
        ge=0,
        le=100,
        description="feature skew, beside any rule: client i of N has Gaussian noise of standard deviation noise · i/N "
        "on its inputs, the same in each round and for each method; of images, white is 1; 0: none",
    )
    # pFedGate App. G takes 10 % of EMNIST and 15 % of FEMNIST.
    subsample: int = Field(
        0,
        ge=0,
        description="training examples to draw by class before partitioning (test in proportion); 0: all",
        json_schema_extra={BY_NUMBER: [0]},  # with `natural`, a person's count would tell its share of a class
    )


class SplitSettings(Settings):
    """How a client's data is split into train, validation and test parts: run-config keys ``split.*``."""

    # DM-PFL A.1.3: .25; pFedGate App. G: .2; Pa3dFL 5.1: .1; FedPSE C.1 and Sub-FedAvg 4.1: the source's own test part.
    test_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of each client's pooled data used as its test part; 0: the source's own test part, "
        "distributed like the training part (0.25 if the source has none)",
    )
    # Sub-FedAvg 4.1: "all the test set for the training dataset labels they have".
    test_of_labels: bool = Field(
        False,
        description="test each client on all test examples with its training labels; clients' test parts overlap",
        json_schema_extra={BY_NUMBER: [False]},
    )
    # DM-PFL A.1.3 does not say; HAR's windows overlap by half, so a random split puts readings into both parts.
    by: Literal["random", "time"] = Field(
        "random",
        description="how test and validation parts are split off a client's data; time: the last rows of each label, "
        "dropping the rows next to them, for recordings with overlapping windows; of shakespeare, both values are the "
        "last rows, dropping the 79 before them",
        json_schema_extra={BY_NUMBER: ["random"]},
    )
    # Sub-FedAvg's gate needs a validation part (methods page: 10 %); Pa3dFL 5.1: .1 of all; pFedGate App. G: .2 of all.
    validation: float = Field(0.1, ge=0, lt=1, description="fraction of each client's training part held out")
    seed: int = Field(-1, ge=-1, le=2**63 - 1, description="seed for partition and split; -1: the run's seed")


class DriftSettings(Settings):
    """How a client's training data change from round to round: keys ``drift.*`` (:mod:`sepal.data.drift`)."""

    name: Literal["none", "time", "label"] = Field(
        "none",
        description="train in each round on a window of the client's training examples, which moves from the first to "
        "the last ones: time: in the order of the data, label: in an order in which the shares of labels change. "
        "Validation and test parts stay",
        json_schema_extra=marks(Mark.WHOLE),
    )
    # Our choice: with a half, the first and the last round have no example in common. The least value and the ten
    # examples (sepal.data.drift.LEAST) keep a server from training on single examples of a node.
    window: float = Field(
        0.5,
        ge=0.1,
        le=1,
        description="share of a client's training examples in the window, at least ten of them; 1: all, no drift",
    )
    # Our choice, as partition.alpha.
    alpha: float = Field(
        0.3,
        gt=0,
        le=1e6,
        description="label: of each class, a share drawn from Beta(α, α) comes early, and the rest late",
    )
    rounds: int = Field(
        0, ge=0, description="rounds in which the window moves; then it stays at the last examples; 0: rounds"
    )


class FolderSettings(Settings):
    """How the files of ``dataset = "folder"`` are read: run-config keys ``folder.*``."""

    label: str = Field(
        "",
        description="CSV: the column of labels or targets (several, separated by commas, where the task has several "
        "numbers or labels); NPZ: the array of labels; empty: label, or y",
        json_schema_extra=marks(Mark.WORDS),
    )
    person: str = Field(
        "",
        description="CSV, NPZ: the column or array of owners, for partition.name = natural; empty: person, if there is "
        "one",
        json_schema_extra=marks(Mark.WORDS),
    )
    leave_out: str = Field(
        "",
        description="CSV: columns that are not read, such as name,id; empty: none",
        json_schema_extra=marks(Mark.WORDS),
    )
    schema_: str = Field(
        "",
        description="a file that `sepal data inspect --write` made: kinds of columns, categories, classes; empty: "
        "schema.toml in the data's directory, if there is one",
        json_schema_extra=marks(Mark.PATH, Mark.MACHINE),
    )
    standardize: bool = Field(
        True,
        description="CSV: each client scales every column to mean 0 and standard deviation 1, with the statistics of "
        "its own training part; false: numbers as they are",
    )
    precision: Literal["float64", "float32"] = renewed(
        "float64",
        former="float32",
        description="tables: numbers until they are standardised; float32: as earlier versions did, for runs that they "
        "began",
    )
    leading_zeros: Literal["category", "number"] = renewed(
        "category",
        former="number",
        description="CSV: columns of digits with leading zeros, all of one width, such as the postal code 01234, where "
        "no schema says what they are: category: codes, each an input of its own, number: 1234",
    )
    missing: Literal["refuse", "mean"] = Field(
        "refuse",
        description="tables: cells without a number (empty, NA or NaN): refuse: the run does not start, mean: each "
        "client takes the column's mean over its own training part; needs folder.standardize",
    )
    classes: str = Field(
        "",
        description="names of the classes in the order of their numbers, such as ill,healthy; empty: sorted, as found "
        "in the files, which must then be the same on all machines",
        json_schema_extra=marks(Mark.WORDS),
    )
    layout: Literal["auto", "class", "client/class", "class/client"] = Field(
        "auto",
        description="directories of images: class: one for each class; client/class, class/client: photographs by "
        "owner; auto: class, or client/class where the images are in sub-directories whose names are shared",
        json_schema_extra={BY_NUMBER: ["auto", "class"]},  # classes that are taken for owners tell how large they are
    )
    resize: str = Field(
        "",
        pattern=r"^([1-9][0-9]{0,3}(x[1-9][0-9]{0,3})?)?$",
        description="images: scale to this size, HEIGHTxWIDTH or one number for a square, without distortion: what "
        "sticks out on the longer side is cut off at both ends; empty: as they are. Where it is not set, and images "
        "have several sizes, 64 (as with auto in Flower's run config)",
        json_schema_extra={NOT_SET: AUTO},
    )
    channels: Literal["auto", 1, 3] = Field(
        "auto", description="images: 1: all become grey, 3: all become colour, auto: as they are"
    )
    on_bad_file: Literal["error", "skip"] = Field(
        "error", description="a file that cannot be read: error: the run does not start, skip: it is named and left out"
    )

    @field_validator("resize", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if type(value) is int else value

    @property
    def names(self) -> tuple[str, ...]:
        """The names in ``classes``."""
        return split_names(self.classes)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that images are scaled to; None: they stay as they are."""
        sides = [int(side) for side in self.resize.split("x")] if self.resize else []
        return (sides[0], sides[-1]) if sides else None


class FolderReading(FolderSettings):
    """The keys ``folder.*``, the run's ``task``, which says what targets look like, and the text of the schema.

    It is no group of keys. ``schema_text`` is :class:`sepal.data.schema.TableSchema` as JSON; empty without a schema.
    """

    task: str = "classification"
    schema_text: str = ""


class HubSettings(Settings):
    """Which columns and parts of a Hugging Face data set are read (``dataset = "hf"``): run-config keys ``hf.*``."""

    name: str = Field(
        "",
        description="hf: the data set's name on the Hugging Face hub, OWNER/NAME or OWNER/NAME:CONFIGURATION; empty: "
        "data-dir is a local copy (save_to_disk, or Parquet files)",
        json_schema_extra=marks(Mark.FETCHED, Mark.MACHINE),
    )
    inputs: str = Field(
        "",
        description="hf: the column of images or arrays, or columns of numbers, such as height,weight; empty: the one "
        "with images, or all with numbers",
        json_schema_extra=marks(Mark.WORDS),
    )
    label: str = Field(
        "label", min_length=1, description="hf: the column of labels or targets", json_schema_extra=marks(Mark.WORDS)
    )
    person: str = Field(
        "",
        description="hf: the column of owners, for partition.name = natural; empty: none",
        # Any column, also that of labels, of which `natural` tells how often a value occurs.
        json_schema_extra={**marks(Mark.WORDS), BY_NUMBER: [""]},
    )
    train: str = Field(
        "train",
        min_length=1,
        description="hf: the part that is dealt to the clients",
        json_schema_extra=marks(Mark.WORDS),
    )
    test: str = Field(
        "test",
        description="hf: the part for tests; where there is none, split.* holds some out",
        json_schema_extra=marks(Mark.WORDS),
    )

    validation: str = Field(
        "validation",
        description="hf: the part for validation; where there is none, or each person's own is held out (hf.person), "
        "split.validation holds some out",
        json_schema_extra={**marks(Mark.WORDS), FORMER: ""},
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in ``inputs``."""
        return split_names(self.inputs)


class HubReading(FolderReading):
    """The keys ``folder.*`` and ``hf.*`` and the run's ``task``; not a group of keys."""

    hf: HubSettings = Field(default_factory=HubSettings)


class OwnSettings(Settings):
    """Facts about data that the server never sees (``dataset = "own"``): run-config keys ``own.*``."""

    shape: str = Field(
        "",
        pattern=PATTERN,
        description="own: shape of one example, such as 1x28x28; of several inputs, image=1x8x8,words=16i by name or "
        "1x8x8,16i by place, i for whole numbers",
        json_schema_extra=marks(Mark.DATA),
    )
    classes: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="own: number of classes; of labels (multilabel), numbers to predict (regression; 0: one) or token "
        "ids (tokens; 0: own.vocabulary)",
        json_schema_extra=marks(Mark.DATA),
    )
    vocabulary: int = Field(
        0, ge=0, description="own: number of token ids; 0 if the data is not text", json_schema_extra=marks(Mark.DATA)
    )
    data: str = Field(
        "",
        description="own: package.module:function for nodes that name none; it may take the client's number",
        json_schema_extra=marks(Mark.CODE, Mark.DATA, Mark.MACHINE),
    )

    class_weights: Literal["none", "balanced"] = Field(
        "none",
        description="classification: balanced: in a client's loss, all classes of its own training labels count alike; "
        "the weights are never sent",
        json_schema_extra=marks(Mark.WHOLE),
    )

    def count(self, task: str) -> int:
        """Return ``classes``, or what 0 means for ``task``."""
        return self.classes or (1 if task == "regression" else self.vocabulary if task == "tokens" else 0)
