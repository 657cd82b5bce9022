"""Builds the parts of a run from flat keys: configuration, model layout, initial weights.

Server, clients, the ``sepal`` command and custom ServerApps all use this module, so the same keys give the same run. It
imports no server code, because clients import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sepal import models
from sepal.config import RunConfig, Settings, flatten, parse
from sepal.config.agreement import agreed_text
from sepal.config.base import AUTO
from sepal.config.rules import check_together
from sepal.config.run import SEARCH
from sepal.data import DatasetInfo, FederatedData, federated_data
from sepal.data.federation import as_read
from sepal.data.incoming import colours_last
from sepal.data.owners import with_owners
from sepal.data.sources import FILES
from sepal.errors import ConfigError
from sepal.layout import statistics
from sepal.method import Method, RunSetup
from sepal.method.compression import with_compression
from sepal.names import client_name
from sepal.strategies import registry, rules
from sepal.strategies.first_weights import first_weights, part_frozen, torch_seed
from sepal.tasks import task_of_run

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Assembly:
    """The parts of a run.

    Attributes:
        method: The method's record.
        setup: The arguments of server and client algorithms.
        data: The run's data.
        make: Builds the model's module.
        agreed: The keys on which server and clients must agree (:mod:`sepal.config.agreement`).
        notes: Lines to show when the run starts, such as where its rates come from.
        names: The clients' names by number; empty where they are called by their numbers.
        rate_of: The other method for which ``lr`` was calibrated; empty where it is set, or this method's own.
    """

    method: Method
    setup: RunSetup
    data: FederatedData
    make: Callable[[], nn.Module]
    agreed: str
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    rate_of: str = ""

    def client_name(self, number: int) -> str:
        """Return the name of client ``number`` on this machine: its owner's, or ``client-00000``."""
        return self.names[number] if number < len(self.names) else client_name(number)

    def client_number(self, name: str) -> int | None:
        """Return the number of the client ``name`` on this machine: its owner's name, or ``client-00000``.

        Returns:
            None if no client has the name, as of a machine with a name of its own.
        """
        both = (self.client_name, client_name)  # a deployed client has no owner's name
        numbers = range(self.setup.config.clients)
        return next((number for name_of in both for number in numbers if name_of(number) == name), None)

    @property
    def info(self) -> DatasetInfo:
        """Metadata of the data."""
        return self.data.info


def assemble(
    flat: Mapping[str, Any],
    method: Method | None = None,
    sources: Mapping[str, str] | None = None,
    data: FederatedData | None = None,
    make: Callable[..., nn.Module] | None = None,
    arrays: Collection[str] = (),
) -> Assembly:
    """Return the parts of the run that ``flat`` describes.

    Args:
        flat: Flat keys, as in Flower's run config.
        method: Used instead of ``flat["method"]``; it need not be registered.
        sources: Key to where it was set, for keys set outside the run config; used in error messages.
        data: Used instead of the data that ``flat`` names, which is then not read.
        make: Builds the model, instead of the one that ``flat`` names.
        arrays: With ``make``, the names of the tensors with which it has the weights to start from.

    Raises:
        SepalError: A key, the data set or the model is invalid.
    """
    hypers: Mapping[str, Any] = registry.Hypers()
    if method is not None:
        hypers = {**{name: hypers[name] for name in _prefixes(flat) if name in hypers}, method.name: method.hyper}
        flat = {**flat, "method": method.name}
    config, hyper = parse(flat, hypers)
    chosen = method or registry.get(config.method)
    data = data or federated_data(config)
    info = data.info
    config = as_read(config, data)
    owners = with_owners(config, data, "clients" in config.model_fields_set)
    if owners.config.clients != config.clients:
        check_together(owners.config)
    config = owners.config
    rules.check_data(config, data)
    rules.check_method(chosen, config)
    config, hyper, notes, rate_of = complete(config, hyper, chosen, info)
    task = task_of_run(config, info.input_shape, info.classes)
    rules.check_task(chosen, config, task, info)
    shape = info.input_shape, info.classes, info.vocabulary
    sides: dict[str, Any] = {"output": task.output, "inputs": info.inputs}
    if ":" in config.model:  # built-in models draw nothing that NumPy does not draw again
        sides["seed"] = torch_seed(config.seed)
    given_arrays = None if make is None else arrays
    make = make or partial(models.build, config.model, *shape, config.width, **sides)
    if config.trainable or config.lora.rank:
        make = partial(part_frozen, make, config)
    first = first_weights(config, make, given_arrays)
    labels_and_schema = (info.class_names, info.schema) if config.dataset in FILES else ()
    agreed = agreed_text(config, hyper, flat, sources or {}, *labels_and_schema)
    setup = RunSetup(
        first.layout, first.weights, config, hyper, make, info.input_shape, first.user_set, first.frozen, task
    )
    if chosen.starts_from and (
        first.user_set - {part.name for part in statistics(first.layout)} or config.initial_weights
    ):
        notes = (*notes, f"model: {chosen.name} starts from {chosen.starts_from}, not from weights that are given")
    notes = (*notes, *info.notes, *colours_last(info), *unused(flat, chosen.name))
    exchanged = with_compression(chosen, config, hyper)
    notes = (*owners.notes, *notes, *first.notes)
    return Assembly(exchanged, setup, data, make, agreed, notes, owners.names, rate_of)


class Completed(NamedTuple):
    """A run's keys with every 0 and ``auto`` replaced by its default.

    Attributes:
        config: The shared keys.
        hyper: The method's own.
        notes: A line that says where rates come from, if there is something to say.
        rate_of: As in :class:`Assembly`.
    """

    config: RunConfig
    hyper: Settings
    notes: tuple[str, ...] = ()
    rate_of: str = ""


def complete(config: RunConfig, hyper: Settings, method: Method, info: DatasetInfo) -> Completed:
    """Return the keys with every 0 and ``auto`` replaced by its default, and where the rates come from.

    Rates are those calibrated for the method and the data (:mod:`sepal.strategies.calibrated`), without momentum. With
    it, a gradient counts 1/(1 - momentum) times, so ``lr`` is that much smaller. Other keys have the method's default,
    or else the data set's.
    """
    from sepal.strategies.calibrated import FINDS, Rates, datasets, rates

    if config.lr == SEARCH:  # what starts runs in process has replaced it (sepal.study.rate_search)
        raise ConfigError("lr", "a number: the rate is searched by `sepal run` and `sepal.run` alone", SEARCH)
    defaults = {"partition.name": info.partition, **info.defaults}
    variant = f"{defaults.get('model', '')}{method.model_variant}"
    own_model = {"model": variant} if method.model_variant and variant in models.names() else {}
    full = config.completed({**own_model, **method.defaults}, defaults)
    if not config.lora.rank and (rank := method.defaults.get("lora.rank")):
        full = full.model_copy(update={"lora": config.lora.model_copy(update={"rank": rank})})
    if not config.devices and (devices := method.defaults.get("devices")):  # a method that needs a profile
        full = full.model_copy(update={"devices": devices})
    if config.target_scale == AUTO:  # the target is scaled as the other columns are
        scaled = config.task == "regression" and info.table
        full = full.model_copy(update={"target_scale": "client" if scaled else "none"})
    limit = method.defaults.get("clip-gradient")
    full = full.model_copy(update={"clip_gradient": full.gradient_limit(None if limit is None else float(limit))})
    named = str(defaults["model"]) if own_model and full.model == variant else full.model
    calibrated = rates(method.name, info, named, full.optimizer)
    scale = 1 - config.momentum if full.optimizer == "sgd" else 1.0
    if "lr" in method.defaults and calibrated.other_method:  # the method's own default is nearer than FedAvg's rate
        calibrated = Rates()
    if not config.lr and "lr" in calibrated.keys:
        full = full.model_copy(update={"lr": calibrated.keys["lr"] * scale})
    full_hyper = hyper.completed(calibrated.of_method(method.name))
    before = {"lr": config.lr, **flatten(hyper, f"{method.name}.")}
    after = {"lr": full.lr, **flatten(full_hyper, f"{method.name}.")}
    chosen = [
        f"{key} = {after[key]:g}" for key, value in before.items() if value != after[key] and key in calibrated.keys
    ]
    by_method = "lr" in method.defaults
    if not config.lr and "lr" not in calibrated.keys and not (by_method and info.name in datasets()):
        whose = f"{method.name}'s own default" if by_method else f"the default of {info.name}"
        return Completed(full, full_hyper, (f"lr = {full.lr:g}: {whose}, not calibrated; {FINDS}",))
    origin = calibrated.origin + (f", times 1 - momentum = {scale:g}" if scale < 1 else "")
    rate_of = "" if config.lr or "lr" not in calibrated.keys else calibrated.other_method
    return Completed(full, full_hyper, (f"{', '.join(chosen)}: {origin}",) if chosen else (), rate_of)


def unused(flat: Mapping[str, Any], method: str) -> tuple[str, ...]:
    """Return a line for the keys of other methods than ``method`` whose value is not their default."""
    hypers, odd = registry.Hypers(), []
    for name in sorted(_prefixes(flat) - {method}):
        if name in registry.table():
            plain = flatten(hypers[name](), f"{name}.")
            odd += [key for key in flat if key in plain and flat[key] != plain[key]]
    return (f"{', '.join(odd)}: without effect, because the method is {method}",) if odd else ()


def _prefixes(flat: Mapping[str, Any]) -> set[str]:
    return {key.partition(".")[0] for key in flat if "." in key}
