"""The run's configuration: frozen and validated.

Flower's run config holds scalars under flat keys, so configuration is given as flat keys everywhere: in
``flwr run --run-config``, ``sepal run --set`` and TOML files. Keys with a dot belong to a group (``partition.alpha``)
or to a method (``fedpse.keep``). Unknown keys, wrong types and values out of range raise :class:`ConfigError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sepal.config.base import (
    AUTO,
    NOT_SET,
    OTHER_WORD,
    Mark,
    NotNegativeOrAuto,
    Settings,
    flatten,
    group_names,
    marked,
    marks,
    renewed,
)
from sepal.config.data import (
    DriftSettings,
    FolderSettings,
    HubSettings,
    OwnSettings,
    PartitionSettings,
    SplitSettings,
)
from sepal.config.groups import (
    CapacitySettings,
    CompressSettings,
    EngineSettings,
    EvaluateSettings,
    LoraSettings,
    PrivacySettings,
)
from sepal.errors import ConfigError, nearest

TASKS = ("classification", "multilabel", "regression", "segmentation", "tokens")
# What clip-gradient = "auto" is. Sound runs have few steps beyond it (with FedAvg's default rate on digits 4 %, none
# beyond 15), and 10, where pFedGate's authors clip, is too late for DM-PFL on HAR (docs/decisions/0027).
GRADIENT_NORM = 5.0
SEARCH = "search"  # as a value of lr


class RunConfig(Settings):
    """The keys that all methods share. Where a description says so, ``auto`` or 0 means the data set's default."""

    name: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$",
        max_length=200,  # names of files of the run may be longer; a file system takes 255
        description="run name; an existing name resumes that run; empty: generated",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    out: str = Field(
        "runs",
        description="parent directory of the run's directory",
        json_schema_extra=marks(Mark.PATH, Mark.SERVER_ONLY, Mark.FREE),
    )
    method: str = renewed(
        "fedavg-ft",
        former="fedpse",
        description="see `sepal methods`, or package.module:NAME of your own",
        facts=(Mark.CODE, Mark.DECIDING, Mark.LISTED),
    )
    task: str = Field(
        "classification",
        description="what is learned: classification, multilabel, regression, segmentation, tokens, or "
        "package.module:NAME of your own (docs/tasks.md)",
        json_schema_extra=marks(Mark.CODE, Mark.DATA, Mark.DIGESTED, Mark.METRIC, Mark.DECIDING),
    )
    metric: str = Field(
        "auto",
        description="the task's metric by which clients, rounds and methods are compared; auto: accuracy, macro-f1 "
        "(multilabel), rmse, dice or perplexity",
        json_schema_extra=marks(Mark.WORDS, Mark.METRIC),
    )
    target_unit: str = Field(
        "",
        max_length=16,
        description="regression: unit of the targets, which rmse and mae have too, such as mg/dl",
        json_schema_extra=marks(Mark.WORDS),
    )
    target_scale: Literal["auto", "client", "none"] = renewed(
        AUTO,
        former="none",
        description="regression: client: each client trains on targets of mean 0 and standard deviation 1 by its own "
        "training part, and all figures and predictions are in the targets' unit; none: as they are; auto: client for "
        "tables whose columns are standardised (folder.standardize), else none",
        facts=(Mark.WHOLE,),
    )
    dataset: str = Field(
        "digits",
        description="data set; folder: your own files; own: your own function",
        json_schema_extra=marks(Mark.WORDS, Mark.DATA, Mark.DIGESTED, Mark.DECIDING, Mark.LISTED),
    )
    data_dir: str = Field(
        "",
        description="directory of the data; empty: SEPAL_DATA, then ~/.cache/sepal/data",
        json_schema_extra=marks(Mark.PATH, Mark.MACHINE, Mark.FREE, Mark.FILES),
    )
    clients: int = Field(
        10,
        ge=0,
        description="clients needed to start; 0: all registered clients. Where it is not set, and examples of files "
        "have owners, as many as owners (as with auto in Flower's run config)",
        json_schema_extra={**marks(Mark.DATA, Mark.DIGESTED, Mark.LISTED), NOT_SET: AUTO},
    )
    client_names: Literal["auto", "owners", "numbers"] = renewed(
        AUTO,
        former="numbers",
        description="what clients of one machine are called: owners: by the owners of their examples (the column "
        "person, hf.person); numbers: client-00000; auto: owners where they are known and can be names. In a "
        "deployment, a node has a name of its own",
        facts=(Mark.SERVER_ONLY,),
    )
    clients_per_round: int = Field(
        0, ge=0, description="clients sampled each round; 0: all", json_schema_extra=marks(Mark.SERVER_ONLY)
    )
    oversample: float = Field(
        1.0,
        ge=1,
        le=10,
        description="ask this multiple of clients-per-round to train, and take the first clients-per-round replies; "
        "later ones are refused. It has no effect in process, where nobody is late; but with `devices` the fastest of "
        "the profile count, in every simulation",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK),
    )
    novel_clients: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the clients that never train and only join in the closing round",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.DATA),
    )
    rounds: int = Field(
        0,
        ge=0,
        description="federated rounds; 0: the data set's default",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.AUTOMATIC, Mark.LISTED),
    )
    stop_after: int = Field(
        0,
        ge=0,
        description="end the run when the mean validation accuracy of the last five evaluated rounds has not risen by "
        "more than half a point for so many rounds; rounds is then the limit; 0: never",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    local_epochs: int = Field(
        0,
        ge=0,
        description="E, local epochs per round; 0: the data set's default",
        json_schema_extra=marks(Mark.AUTOMATIC, Mark.PLAIN),
    )
    batch_size: int = Field(
        0,
        ge=0,
        description="examples per step; 0: the data set's default",
        json_schema_extra=marks(Mark.AUTOMATIC, Mark.PLAIN),
    )
    optimizer: Literal["auto", "sgd", "adam"] = Field(
        "auto", description="optimizer for local training", json_schema_extra=marks(Mark.AUTOMATIC, Mark.PLAIN)
    )
    lr: Annotated[float, Field(ge=0)] | Literal["search"] = Field(
        0.0,
        description="learning rate in the first round; 0: calibrated for the method and data set; search: `sepal run` "
        "tries rates around it for a few rounds, on validation data, and stores the best",
        json_schema_extra={**marks(Mark.AUTOMATIC, Mark.PLAIN), OTHER_WORD: "learning-rate"},
    )
    lr_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="factor applied to the learning rate after each round",
        json_schema_extra=marks(Mark.PLAIN),
    )
    schedule: Literal["constant", "cosine", "step"] = Field(
        "constant",
        description="learning rate over the rounds, beside lr-decay. cosine: down to nearly 0 in the last round; step: "
        "a tenth after half of the rounds, a hundredth after three quarters",
        json_schema_extra=marks(Mark.PLAIN),
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD momentum", json_schema_extra=marks(Mark.PLAIN))
    clip_gradient: NotNegativeOrAuto = renewed(
        AUTO,
        former=0.0,
        description=f"largest norm of a step's gradient; a longer one is scaled down. 0: no limit; auto: "
        f"{GRADIENT_NORM:g} with SGD, but none where targets have a unit (regression without target-scale, a task of "
        "your own) and where the method has a limit of its own",
        facts=(Mark.PLAIN,),
    )
    on_divergence: Literal["rollback", "stop", "keep"] = renewed(
        "rollback",
        former="keep",
        description="when most clients diverge in a round: go back to the last model from which they could train, and "
        "repeat with a lower learning rate; end the run; or keep the model and go on",
        facts=(Mark.SERVER_ONLY, Mark.FREE_BACK),
    )
    weight_decay: float = Field(
        0.0, ge=0, description="L2 penalty in the optimizer", json_schema_extra=marks(Mark.PLAIN)
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="classification: share of each target that is spread over all classes in the loss",
        json_schema_extra=marks(Mark.PLAIN),
    )
    augment: str = Field(
        "",
        description="what changes each batch before a training step: crop-flip (images: shifted by up to 4 pixels, "
        "half of them mirrored), or package.module:function of your own; empty: nothing",
        json_schema_extra=marks(Mark.CODE),
    )
    precision: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="number format of the forward pass in training: bf16 by torch's autocast; weights, optimizer and "
        "exchange stay fp32",
        json_schema_extra=marks(Mark.PLAIN),
    )
    model: str = Field(
        "auto",
        description="model name, package.module:build (starts with the weights that it sets, the rest drawn from the "
        "seed), or auto: the data set's default",
        json_schema_extra=marks(Mark.CODE, Mark.AUTOMATIC),
    )
    # For methods with one model for all clients. Multiply-adds are about width² of the full model's.
    width: float = Field(1.0, gt=0, le=1, description="fraction of the model's channels that all clients use")
    trainable: str = Field(
        "",
        description="comma-separated patterns of the names of the parameters that are trained, such as head.*,*norm*; "
        "all others are frozen; empty: all",
        json_schema_extra=marks(Mark.WORDS, Mark.PLAIN),
    )
    initial_weights: str = Field(
        "",
        description="safetensors file to start from; empty: drawn from the seed",
        json_schema_extra=marks(Mark.PATH, Mark.MACHINE),
    )
    initial_head: Literal["file", "new"] = Field(
        "file", description="the model's last layer with initial-weights: the file's, or new, drawn from the seed"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="seed for all random numbers of the run",
        json_schema_extra=marks(Mark.DIGESTED, Mark.REPEAT, Mark.LISTED, Mark.PLAIN),
    )
    device: str = Field(
        "auto",
        pattern=r"^[a-z][a-z0-9]{1,15}(:[0-9]{1,2})?$",  # as torch names devices
        description="where clients train: auto, cpu, cuda, cuda:1, mps, xpu or another accelerator of torch; auto: an "
        "accelerator if there is one, but not mps. A node may override it",
        json_schema_extra=marks(Mark.MACHINE, Mark.PLAIN),
    )
    gpus: str = Field(
        "",
        pattern=r"^([0-9]{1,2}(,[0-9]{1,2})*)?$",
        description="numbers of the accelerators that workers in process share, such as 0,1; empty: all",
        json_schema_extra=marks(Mark.MACHINE),
    )
    deterministic: bool = Field(
        False,
        description="let torch use only algorithms whose results repeat on a GPU; slower, and some have none",
        json_schema_extra=marks(Mark.MACHINE, Mark.PLAIN),
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="torch threads per process; 1 keeps engines bit-identical",
        json_schema_extra=marks(Mark.MACHINE, Mark.PLAIN),
    )
    evaluate_every: int = Field(
        10,
        ge=0,
        description="rounds between full evaluations; 0: at the end only",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    final_model: Literal["last", "best"] = Field(
        "last",
        description="what is evaluated, exported and deployed at the end: the last round's models, or those of the "
        "full evaluation that was best on validation data (evaluate-every), in the view that the method deploys; a run "
        "keeps both, and the other is evaluated if it is continued with this key changed",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    evaluate_sampled: bool = Field(
        True,
        description="also evaluate the sampled clients' received and trained models every round",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    evaluate_clients: int = Field(
        0,
        ge=0,
        description="clients drawn for each full evaluation, including the closing one; 0: the whole roster",
        json_schema_extra=marks(Mark.SERVER_ONLY),
    )
    pooled_samples: int = Field(1000, ge=0, description="test examples from all clients for the pooled view; 0: all")
    on_missing: Literal["retry", "skip"] = Field(
        "retry",
        description="if a client does not reply: ask again, or continue without it",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK),
    )
    data_changes: Literal["refuse", "freeze", "accept"] = Field(
        "refuse",
        description="if a client's own data change in mid-run: refuse: its replies do not count until the data are as "
        "before; freeze: each client copies its data when the run begins, and trains on the copy to its end; accept: "
        "it trains on them as they are, and the run cannot be repeated",
    )
    data_growth: float = Field(
        2.0,
        ge=1,
        le=1000,
        description="with data-changes = accept: a client may have so many times the training examples that it began "
        "with; with more its replies do not count",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    roster: Literal["closed", "open", "drawn"] = Field(
        "closed",
        description="closed: no client may join after the start; open (or clients = 0): any may, between rounds; "
        "drawn: up to clients may, and each joins when it is first drawn, so that a round starts at once with many "
        "clients (in process as closed)",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK),
    )
    max_update_norm: float = Field(
        0.0,
        ge=0,
        description="refuse uploads whose change of what the client received has a norm above this multiple of the "
        "round's median; 0: off; 3 is advised",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK, Mark.PLAIN),
    )
    robust_mean: Literal["none", "trimmed", "median"] = Field(
        "none",
        description="mean over uploads: the method's, or coordinate-wise trimmed (20 % at each end) or median",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK, Mark.PLAIN),
    )
    secure: Literal["off", "sum"] = Field(
        "off",
        description="sum: the server learns the sum of a round's updates and figures, and no single one "
        "(docs/secure-sums.md)",
    )
    secure_bits: Literal[32, 16] = Field(32, description="with secure = sum: bits of an entry of the sum")
    secure_range: float = Field(
        8.0,
        gt=0,
        le=1e6,
        description="with secure = sum: largest change of an entry by a client; a client beyond it counts as unchanged",
    )
    secure_colluders: int = Field(
        1,
        ge=0,
        le=10_000,
        description="with secure = sum: clients of a round that may work together with the server and still learn no "
        "other client's update",
    )
    min_replies: int = Field(
        1,
        ge=1,
        description="minimum number of replies for a round to count",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK, Mark.PLAIN),
    )
    timeout: float = Field(
        600.0,
        gt=0,
        description="seconds to wait for clients at the start and in each round",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    deadline: float = Field(
        0.0,
        ge=0,
        description="seconds after which a round needs only min-replies and goes on without the others; 0: never. It "
        "does not apply in process and to the closing round. With `devices`: seconds of simulated time, in every "
        "simulation",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE_BACK),
    )
    devices: str = Field(
        "",
        description="simulated time: a profile of the clients' devices, phones, phones-mobile, phones-classes or "
        "hospitals, or your own as a TOML file (docs/simulated-time.md), on which oversample and deadline act; empty: "
        "none",
        json_schema_extra=marks(Mark.PATH, Mark.SERVER_ONLY),
    )
    max_message_bytes: int = Field(
        0,
        ge=0,
        description="largest reply that the server accepts; 0: twice the method's largest message plus 64 KiB",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE, Mark.PLAIN),
    )
    checkpoint_every: int = Field(
        10,
        ge=1,
        description="rounds between full checkpoints of the server's state",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    keep_versions: int = Field(
        0,
        ge=0,
        description="rounds for which clients keep the versions of their states, so that a backup of the server "
        "(sepal backup) that is as old can be continued; 0: only what a restart of the server needs",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    lost_states: Literal["refuse", "restart"] = Field(
        "refuse",
        description="if a client lacks the version of its state that the server asks for, as after an older backup of "
        "the server: refuse to go on, or let the client start again as a newcomer, from the server's model",
        json_schema_extra=marks(Mark.SERVER_ONLY, Mark.FREE),
    )
    state_dir: str = Field(
        "",
        description="directory for clients' states; empty: in the run's directory, or the node's own",
        json_schema_extra=marks(Mark.PATH, Mark.MACHINE, Mark.FREE),
    )
    values: Literal["fp32", "fp16", "bf16"] = Field(
        "fp32", description="number format of the values sent", json_schema_extra=marks(Mark.PLAIN)
    )
    partition: PartitionSettings = Field(
        default_factory=PartitionSettings, json_schema_extra=marks(Mark.DATA, Mark.DIGESTED)
    )
    split: SplitSettings = Field(default_factory=SplitSettings, json_schema_extra=marks(Mark.DATA, Mark.DIGESTED))
    drift: DriftSettings = Field(default_factory=DriftSettings, json_schema_extra=marks(Mark.DATA, Mark.DIGESTED))
    folder: FolderSettings = Field(default_factory=FolderSettings, json_schema_extra=marks(Mark.FILES, Mark.DIGESTED))
    hf: HubSettings = Field(default_factory=HubSettings, json_schema_extra=marks(Mark.FILES, Mark.DIGESTED))
    own: OwnSettings = Field(default_factory=OwnSettings, json_schema_extra=marks(Mark.DIGESTED))
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)
    capacity: CapacitySettings = Field(default_factory=CapacitySettings, json_schema_extra=marks(Mark.PLAIN))
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    compress: CompressSettings = Field(default_factory=CompressSettings, json_schema_extra=marks(Mark.PLAIN))
    lora: LoraSettings = Field(default_factory=LoraSettings, json_schema_extra=marks(Mark.PLAIN))
    engine: EngineSettings = Field(default_factory=EngineSettings)

    @field_validator("task")
    @classmethod
    def _is_task(cls, task: str) -> str:
        if task not in TASKS and not (":" in task and all(task.partition(":")[::2])):
            near = nearest(task, TASKS)
            hint = f" (did you mean {near}?)" * bool(near)
            raise ValueError(f"{', '.join(TASKS)}, or package.module:NAME{hint}")
        return task

    @field_validator("target_unit")
    @classmethod
    def _is_printable(cls, unit: str) -> str:
        if not unit.isprintable() or set(unit) & set("%[]<>&\"'\\"):  # % means shares, which are shown times 100
            raise ValueError("a unit without %, brackets and quotes")
        return unit

    def flat(self) -> dict[str, Any]:
        """Return every key with its value, as in ``config.toml``."""
        return flatten(self)

    def completed(self, *defaults: Mapping[str, Any]) -> RunConfig:
        """Return the configuration with ``auto`` and 0 replaced by defaults, for the keys in ``AUTOMATIC``.

        Args:
            defaults: Flat keys to values; the first mapping that has the key is used.

        Raises:
            ConfigError: A key has no default.
        """
        flat = self.flat()
        values: dict[str, Any] = {"partition.name": self.partition.name}
        for key in AUTOMATIC:
            if flat[key] not in (0, 0.0, "auto"):
                continue
            in_order = [d[key] for d in defaults if key in d]
            if not in_order:
                raise ConfigError(key, f"a value (the data set {self.dataset!r} has no default)", "none")
            values[key] = float(in_order[0]) if key == "lr" else in_order[0]
        partition = self.partition.model_copy(update={"name": values.pop("partition.name")})
        changed = {key.replace("-", "_"): value for key, value in values.items()}
        return self.model_copy(update={**changed, "partition": partition})

    def gradient_limit(self, method: float | None = None) -> float:
        """Return the largest norm of a step's gradient, with ``auto`` replaced; 0: no limit.

        Targets with a unit make gradients of any size, so ``auto`` sets no limit there, unless they are standardised. A
        step of Adam is bounded by itself.

        Args:
            method: The method's default of ``clip-gradient``; None if it has none.
        """
        if self.clip_gradient != AUTO:
            return float(self.clip_gradient)
        if method is not None:
            return method
        in_unit = ":" in self.task or (self.task == "regression" and self.target_scale != "client")
        unbounded = in_unit or self.optimizer != "sgd"
        return 0.0 if unbounded else GRADIENT_NORM

    @property
    def depends_on_rounds(self) -> str:
        """What clients do in a round by the number of all rounds, in words; empty if nothing.

        Then ``rounds`` is agreed on, and a run cannot be given more of them.
        """
        if self.schedule != "constant":
            return f"the schedule of {self.schedule}"
        return "drift.rounds = 0" if self.drift.name != "none" and not self.drift.rounds else ""

    def learning_rate(self, round: int, first: float | None = None) -> float:
        """Return the learning rate of ``round`` (from 1); ``first`` replaces ``lr`` as the rate of round 1.

        The closing round, after the last, has the rate of the last: ``schedule`` ends there.
        """
        share = 1.0
        if self.schedule != "constant":
            share_over = min(round - 1, self.rounds - 1) / self.rounds
            step = 0.01 if share_over >= 0.75 else 0.1 if share_over >= 0.5 else 1.0
            share = step if self.schedule == "step" else (1 + math.cos(math.pi * share_over)) / 2
        return float((float(self.lr) if first is None else first) * self.lr_decay ** (round - 1) * share)


AUTOMATIC = marked(RunConfig, Mark.AUTOMATIC)
PARTS = group_names(RunConfig)  # the first part of the keys in groups
