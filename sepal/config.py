"""The run's configuration: frozen, validated, and flat where it meets the outside.

Flower's run-config holds scalars under flat keys, so that is the language of every front: ``flwr run --run-config``,
``sepal run --set``, a TOML file. Keys with a dot belong to a part (``partition.alpha``) or to a method
(``fedpse.keep``). A key that is unknown, of the wrong type or out of range is one :class:`ConfigError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sepal.data.corruption import Corruption
from sepal.data.settings import OwnSettings, PartitionSettings, SplitSettings
from sepal.errors import ConfigError

Flat: TypeAlias = Mapping[str, int | float | str | bool]
M = TypeVar("M", bound=BaseModel)


def kebab(name: str) -> str:
    """``batch_size`` → ``batch-size``: keys are written with hyphens, attributes with underscores."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """Base of every group of keys: frozen, strict (an int counts as a float, nothing else is converted)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, alias_generator=kebab
    )


class EvaluateSettings(Settings):
    """What the closing round evaluates beyond the three views: keys ``evaluate.*``."""

    # DM-PFL, section 4.2: 0 to 100 % of a client's test set replaced from the test data of all clients.
    shift: bool = Field(False, description="also at 0 … 100 % of each client's test data replaced by other clients'")
    corruption: Corruption = Field("none", description="also on test images corrupted so")
    severity: int = Field(3, ge=1, le=5, description="of the corruption, as in CIFAR-10-C")


class RunConfig(Settings):
    """The keys that all methods share. ``auto`` and 0 take the data set's published default where it says so."""

    name: str = Field(
        "", pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$", description="run name; the same name resumes; empty: made up"
    )
    out: str = Field("runs", description="directory under which the run's directory is written")
    method: str = Field("fedpse", description="see `sepal methods`")
    dataset: str = Field("digits", description="data set; folder: your own files; own: your own function")
    data_dir: str = Field("", description="where the data lies; empty: SEPAL_DATA, then ~/.cache/sepal/data")
    clients: int = Field(10, ge=0, description="clients needed to start; 0: all that are registered")
    clients_per_round: int = Field(0, ge=0, description="clients sampled each round; 0: all")
    rounds: int = Field(0, ge=0, description="federated rounds; 0: the data set's default")
    local_epochs: int = Field(0, ge=0, description="E, passes over the client's data a round; 0: default")
    batch_size: int = Field(0, ge=0, description="examples a step; 0: the data set's default")
    optimizer: Literal["auto", "sgd", "adam"] = Field("auto", description="of the clients' local training")
    lr: float = Field(0.0, ge=0, description="learning rate of the first round; 0: the data set's default")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate after each round")
    momentum: float = Field(0.0, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty in the optimizer")
    model: str = Field("auto", description="model name, package.module:build, or auto: the data set's default")
    initial_weights: str = Field("", description="safetensors file to start from; empty: drawn from the seed")
    seed: int = Field(0, ge=0, lt=2**63, description="every random number of the run derives from it")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where clients train; a node may override it")
    threads: int = Field(1, ge=1, le=256, description="torch threads a process; 1 keeps engines bit-identical")
    evaluate_every: int = Field(10, ge=0, description="rounds between full evaluations; 0: at the end only")
    evaluate_sampled: bool = Field(
        True, description="also evaluate the sampled clients, received and trained, every round"
    )
    pooled_samples: int = Field(1000, ge=0, description="test examples of all clients in the pooled view; 0: all")
    on_missing: Literal["retry", "skip"] = Field("retry", description="a client gives no reply: ask again, or go on")
    min_replies: int = Field(1, ge=1, description="fewest replies with which a round may go on (on-missing = skip)")
    timeout: float = Field(600.0, gt=0, description="seconds to wait for clients at the start and in each round")
    checkpoint_every: int = Field(10, ge=1, description="rounds between full checkpoints of the server's state")
    state_dir: str = Field("", description="clients' states; empty: in the run's directory, or the node's own")
    values: Literal["fp32", "fp16", "bf16"] = Field("fp32", description="coding of values on the wire")
    partition: PartitionSettings = Field(default_factory=PartitionSettings)
    split: SplitSettings = Field(default_factory=SplitSettings)
    own: OwnSettings = Field(default_factory=OwnSettings)
    evaluate: EvaluateSettings = Field(default_factory=EvaluateSettings)

    def flat(self) -> dict[str, Any]:
        """Every key with its value, parts as dotted keys: what ``config.toml`` holds."""
        return flatten(self)

    def completed(self, *defaults: Mapping[str, Any]) -> RunConfig:
        """Return this with ``auto`` and 0 replaced; of several ``defaults`` the first that has the key wins.

        Only keys that mean "default" by 0 or ``auto`` are replaced; a value that somebody set stays.

        Raises:
            ConfigError: Nothing says what the default is.
        """
        open_keys = [key for key in AUTOMATIC if getattr(self, key) in (0, 0.0, "auto")]
        values: dict[str, Any] = {}
        for key in open_keys:
            found = [d[kebab(key)] for d in defaults if kebab(key) in d]
            if not found:
                raise ConfigError(kebab(key), f"a value (the data set {self.dataset!r} has no default)", "none")
            values[key] = float(found[0]) if key == "lr" else found[0]
        return self.model_copy(update=values)

    def learning_rate(self, round: int) -> float:
        """Return the learning rate of ``round`` (from 1)."""
        return float(self.lr * self.lr_decay ** (round - 1))


AUTOMATIC = ("rounds", "local_epochs", "batch_size", "optimizer", "lr", "model")
PARTS = ("partition", "split", "own", "evaluate")


def flatten(settings: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return a group of keys as flat keys, nested groups dotted."""
    flat: dict[str, Any] = {}
    for name, info in type(settings).model_fields.items():
        value, key = getattr(settings, name), prefix + (info.alias or kebab(name))
        if isinstance(value, BaseModel):
            flat.update(flatten(value, key if key.endswith(".") else f"{key}."))
        else:
            flat[key] = value
    return flat


def parse(flat: Flat, methods: Mapping[str, type[BaseModel]]) -> tuple[RunConfig, BaseModel]:
    """Return the shared keys and the chosen method's own, validated.

    Args:
        flat: Flat keys; whatever is left out takes its default.
        methods: Method name to the model of its own keys; consulted only for names that occur.

    Raises:
        ConfigError: An unknown key or method, a wrong type, or a value out of range. Keys of methods that were not
            chosen are checked too: a misspelt one must not pass unseen.
    """
    shared: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        part, dot, rest = key.partition(".")
        if "_" in (rest if dot else key):
            raise ConfigError(key, f"hyphens: {kebab(key)}", key)
        if key in PARTS:
            raise ConfigError(key, f"its parts as keys, {key}.…", repr(value))
        if not dot:
            shared[key] = value
        elif part in PARTS:
            shared.setdefault(part, {})[rest] = value
        else:
            groups.setdefault(part, {})[rest] = value
    config = validate(RunConfig, shared)
    for part, values in groups.items():
        if part not in methods:
            raise ConfigError(f"{part}.{next(iter(values))}", "a known key", "an unknown one")
        validate(methods[part], values, f"{part}.")
    if config.method not in methods:
        raise ConfigError("method", f"one of {', '.join(methods)}", config.method)
    _check_counts(config)
    return config, validate(methods[config.method], groups.get(config.method, {}), f"{config.method}.")


def _check_counts(config: RunConfig) -> None:
    if config.clients and config.clients_per_round > config.clients:
        raise ConfigError("clients-per-round", f"at most clients = {config.clients}", config.clients_per_round)
    asked = config.clients_per_round or config.clients
    if asked and config.min_replies > asked:
        raise ConfigError("min-replies", f"at most the {asked} clients of a round", config.min_replies)


def validate(kind: type[M], values: Mapping[str, Any], prefix: str = "") -> M:
    """Return ``kind`` made of ``values``, or raise its first fault as a ConfigError whose key has ``prefix``."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = prefix + ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            raise ConfigError(key, "a known key", "an unknown one") from None
        raise ConfigError(key, _expected(fault["msg"]), repr(fault["input"])) from None


def _expected(message: str) -> str:
    text = message.removeprefix("Input should be ").removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
