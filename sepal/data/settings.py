"""The run-config keys ``partition.*`` and ``split.*``, and the specification of one federation's data.

The keys are the aliases below with their prefix, for example ``partition.shard-size``. The methods pages cited here
(``FedPSE C.1``: that paper's appendix C.1) are listed in each method's NOTES.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sepal.data.examples import DatasetInfo
from sepal.errors import ConfigError, DataError

PartitionName = Literal["iid", "dirichlet", "pathological", "shards", "two-class", "lambda-mix", "natural"]


def _kebab(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True, alias_generator=_kebab)


class PartitionSettings(_Settings):
    """How the examples are dealt to the clients: run-config keys ``partition.*``."""

    name: PartitionName = Field("dirichlet", description="rule that deals the examples to the clients")
    # DM-PFL's main setting is Dir(.3) (Table 1); pFedGate takes .4 (App. G), Pa3dFL 1.0 (App. D).
    alpha: float = Field(0.3, gt=0, le=1e6, description="dirichlet: concentration of each class over the clients")
    # FedPSE C.1 and Table 1: λ in {0, .5, 1}; 1 is the headline column.
    lambda_: float = Field(1.0, ge=0, le=1, description="lambda-mix: fraction that is sorted by label, the rest is IID")
    # DM-PFL A.1.3 uses two classes per client; Pa3dFL 20 of CIFAR-100's (section 5.1).
    classes: int = Field(2, ge=1, le=10_000, description="pathological: classes per client")
    # Sub-FedAvg 4.1: two shards of 250 (CIFAR-100: 125).
    shards: int = Field(2, ge=1, le=10_000, description="shards: shards per client")
    shard_size: int = Field(0, ge=0, description="shards: examples per shard, 0 for as many as fit")
    # DM-PFL A.1.2 excludes clients "with only few samples"; 10 is the default of flwr-datasets.
    min_examples: int = Field(
        10, ge=1, description="dirichlet: redraw until each client has so many; natural: leave out people with fewer"
    )
    # pFedGate App. G takes 10 % of EMNIST and 15 % of FEMNIST.
    subsample: int = Field(
        0, ge=0, description="training examples drawn before partitioning, test in proportion; 0 for all"
    )


class SplitSettings(_Settings):
    """How a client's data becomes train, validation and test: run-config keys ``split.*``."""

    # DM-PFL A.1.3: .25; pFedGate App. G: .2; Pa3dFL 5.1: .1; FedPSE C.1 and Sub-FedAvg 4.1: the source's own test part.
    test_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="fraction of each client's pooled data that is its test part; 0 for the source's own test part, "
        "dealt as the train part (0.25 where the source has none)",
    )
    # Sub-FedAvg 4.1: "all the test set for the training dataset labels they have".
    test_of_labels: bool = Field(
        False, description="all test examples of the labels a client trains on; parts overlap between clients"
    )
    # Sub-FedAvg's gate needs a validation part (methods page: 10 %); Pa3dFL 5.1: .1 of all; pFedGate App. G: .2 of all.
    validation: float = Field(0.1, ge=0, lt=1, description="fraction of the client's training part held out")
    seed: int = Field(-1, ge=-1, le=2**63 - 1, description="seed of partition and split; -1 for the run's seed")


class OwnSettings(_Settings):
    """What the server must know of data that it never sees (``dataset = "own"``): run-config keys ``own.*``."""

    shape: str = Field(
        "", pattern=r"^([1-9][0-9]*(x[1-9][0-9]*)*)?$", description="own: shape of one example, such as 1x28x28"
    )
    classes: int = Field(0, ge=0, le=1_000_000, description="own: number of classes")
    vocabulary: int = Field(0, ge=0, description="own: number of token ids; 0 where the data is not text")
    data: str = Field(
        "",
        description="own: package.module:function for clients whose node names none; it may take the client's number",
    )

    def info(self) -> DatasetInfo:
        """Return what models and configuration need to know.

        Raises:
            ConfigError: A key is missing.
        """
        if not self.shape:
            raise ConfigError("own.shape", "the shape of one example, such as 1x28x28 (dataset = own)", "nothing")
        if self.classes < 2:
            raise ConfigError("own.classes", "at least 2 (dataset = own)", self.classes)
        shape = tuple(int(side) for side in self.shape.split("x"))
        untokened: Literal["image", "signal"] = "image" if len(shape) == 3 else "signal"
        kind: Literal["text", "image", "signal"] = "text" if self.vocabulary else untokened
        # Nothing is published about data that nobody has seen: modest values that train something.
        defaults: dict[str, str | int | float] = {"rounds": 20, "local-epochs": 1, "batch-size": 32, "lr": 0.01}
        return DatasetInfo("own", self.classes, shape, kind, False, {**defaults, "optimizer": "sgd"}, self.vocabulary)


@dataclass(frozen=True)
class DataSpec:
    """The data of one federation: everything that decides which example lies where. Hashable, safe to pickle.

    Attributes:
        dataset: One of :func:`sepal.data.source_names`.
        data_dir: Where the files are; empty for ``$SEPAL_DATA``, else ``~/.cache/sepal/data``.
        partition: ``partition.*``.
        split: ``split.*``.
        clients: Number of clients, at least 1.
        seed: The run's seed. Partition and split follow ``split.seed`` where that is given. By default they follow the
            run's seed: methods compared at one seed see the same clients, and the spread over seeds includes the luck
            of the partition. Fix ``split.seed`` to see the spread of training alone.
    """

    dataset: str
    data_dir: str | Path = ""
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    clients: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise DataError("clients", "at least 1", self.clients)
        if self.split.test_of_labels and self.split.test_fraction > 0:
            raise ConfigError("split.test-of-labels", "split.test-fraction = 0 beside it", self.split.test_fraction)

    @property
    def data_seed(self) -> int:
        """The seed that partition and split are derived from."""
        return self.seed if self.split.seed < 0 else self.split.seed
