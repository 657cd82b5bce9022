"""Builds the parts of a run from flat keys: configuration, model layout, initial weights.

Server, clients, the ``sepal`` command and custom ServerApps all use this module, so the same keys give the same run. It
imports no server code, because clients import it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sepal import models
from sepal.config import RunConfig, Settings, flatten, parse
from sepal.config.agreement import agreed_text
from sepal.config.base import AUTO
from sepal.config.rules import check_together
from sepal.config.run import SEARCH
from sepal.data import DatasetInfo, FederatedData, federated_data
from sepal.data.incoming import colours_last
from sepal.data.owners import with_owners
from sepal.data.sources import FILES
from sepal.errors import ConfigError, StateError
from sepal.layout import Layout, statistics, trained
from sepal.method import Method, Task, Weights
from sepal.method.compression import with_compression
from sepal.names import client_name
from sepal.rng import derive_seed
from sepal.strategies import registry, rules
from sepal.tasks import learning_task

if TYPE_CHECKING:
    from torch import nn

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")  # what torch.save's files are called
CONVERT = 'safetensors.torch.save_file(torch.load("{}", weights_only=True), "{}") writes one'


@dataclass(frozen=True)
class Assembly:
    """The parts of a run.

    Attributes:
        method: The method's record.
        task: The arguments of server and client algorithms.
        data: The run's data.
        make: Builds the model's module.
        agreed: The keys on which server and clients must agree (:mod:`sepal.config.agreement`).
        notes: Lines to show when the run starts, such as where its rates come from.
        names: The clients' names by number; empty where they are called by their numbers.
    """

    method: Method
    task: Task
    data: FederatedData
    make: Callable[[], nn.Module]
    agreed: str
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def client_name(self, number: int) -> str:
        """Return the name of client ``number`` on this machine: its owner's, or ``client-00000``."""
        return self.names[number] if number < len(self.names) else client_name(number)

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
    owners = with_owners(config, data, "clients" in config.model_fields_set)
    if owners.config.clients != config.clients:
        check_together(owners.config)
    config = owners.config
    rules.check_data(config, data)
    rules.check_method(chosen, config)
    config, hyper, notes = complete(config, hyper, chosen, info)
    learning = learning_task(config, info.input_shape, info.classes)
    rules.check_task(chosen, config, learning, info)
    shape = info.input_shape, info.classes, info.vocabulary
    sides: dict[str, Any] = {"output": learning.output, "inputs": info.inputs}
    if ":" in config.model:  # built-in models draw nothing that NumPy does not draw again
        sides["seed"] = torch_seed(config.seed)
    given = None if make is None else arrays
    make = make or partial(models.build, config.model, *shape, config.width, **sides)
    if config.trainable or config.lora.rank:
        make = partial(_part_frozen, make, config)
    first = first_weights(config, make, given)
    labels_and_schema = (info.class_names, info.schema) if config.dataset in FILES else ()
    agreed = agreed_text(config, hyper, flat, sources or {}, *labels_and_schema)
    task = Task(
        first.layout, first.weights, config, hyper, make, info.input_shape, first.user_set, first.frozen, learning
    )
    if chosen.starts_from and (
        first.user_set - {part.name for part in statistics(first.layout)} or config.initial_weights
    ):
        notes = (*notes, f"model: {chosen.name} starts from {chosen.starts_from}, not from weights that are given")
    notes = (*notes, *info.notes, *colours_last(info), *unused(flat, chosen.name))
    exchanged = with_compression(chosen, config, hyper)
    notes = (*owners.notes, *notes, *first.notes)
    return Assembly(exchanged, task, data, make, agreed, notes, owners.names)


def complete(
    config: RunConfig, hyper: Settings, method: Method, info: DatasetInfo
) -> tuple[RunConfig, Settings, tuple[str, ...]]:
    """Return the keys with every 0 and ``auto`` replaced by its default, and a line that says where rates come from.

    Rates are those calibrated for the method and the data (:mod:`sepal.strategies.calibrated`), without momentum. With
    it, a gradient counts 1/(1 - momentum) times, so ``lr`` is that much smaller. Other keys have the method's default,
    or else the data set's.
    """
    from sepal.strategies.calibrated import FINDS, Rates, datasets, rates

    if config.lr == SEARCH:  # what starts runs in process has replaced it (sepal.study.rate_search)
        raise ConfigError("lr", "a number: the rate is searched by `sepal run` and `sepal.run` alone", SEARCH)
    full = config.completed(method.defaults, {"partition.name": info.partition, **info.defaults})
    if not config.lora.rank and (rank := method.defaults.get("lora.rank")):
        full = full.model_copy(update={"lora": config.lora.model_copy(update={"rank": rank})})
    if config.target_scale == AUTO:  # the target is scaled as the other columns are
        scaled = config.task == "regression" and info.table
        full = full.model_copy(update={"target_scale": "client" if scaled else "none"})
    limit = method.defaults.get("clip-gradient")
    full = full.model_copy(update={"clip_gradient": full.gradient_limit(None if limit is None else float(limit))})
    calibrated = rates(method.name, info, full.model, full.optimizer)
    scale = 1 - config.momentum if full.optimizer == "sgd" else 1.0
    if "lr" in method.defaults and not calibrated.own_method:  # the method's own default is nearer than FedAvg's rate
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
        return full, full_hyper, (f"lr = {full.lr:g}: {whose}, not calibrated; {FINDS}",)
    origin = calibrated.origin + (f", times 1 - momentum = {scale:g}" if scale < 1 else "")
    return full, full_hyper, (f"{', '.join(chosen)}: {origin}",) if chosen else ()


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


@dataclass(frozen=True)
class FirstWeights:
    """What a run starts from.

    Attributes:
        layout: The model's tensors.
        weights: W_0, float32 by name.
        user_set: Names of the tensors that the user's ``build`` sets, to other values than a draw would give.
        frozen: The model's frozen tensors.
        notes: Lines to show when the run starts.
    """

    layout: Layout
    weights: Weights
    user_set: frozenset[str] = frozenset()
    frozen: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def first_weights(
    config: RunConfig, make: Callable[..., nn.Module], arrays: Collection[str] | None = None
) -> FirstWeights:
    """Return the model's layout and W_0: from ``initial-weights``, from the user's ``build``, or drawn from the seed.

    A user's ``build`` is called twice, with different seeds of torch's generator. A tensor that is the same both times
    was set there (from a file of pretrained weights, to a constant), and W_0 has that value. A tensor that differs is
    drawn from the run's seed by NumPy, as for built-in models, so that all machines have the same. Where
    :func:`sepal.models.weights.initial_weights` does not know the layer, it is as ``build`` draws it with torch's
    generator, whose seed is the run's, too. A line says which it was.

    Args:
        config: The run's configuration.
        make: Builds the model.
        arrays: Names of the tensors that ``make`` gives the weights to start from; others, such as adapters, are drawn.
            None: as above.

    Raises:
        ConfigError: The model is refused (:func:`sepal.strategies.rules.check_model`), or the file does not fit it.
        ModelError: The module holds something that clients cannot share.
    """
    from sepal.models.weights import as_built, initial_weights, layout, views
    from sepal.modules import floating, frozen_tensors
    from sepal.training.module_state import ModuleState

    module = make()
    parameters, frozen = layout(module), frozen_tensors(module)
    rules.check_model(config, parameters)
    ModuleState(module, floating(module))  # so that what clients would refuse is refused before the run
    set_by = "initial-weights" if config.initial_weights and (config.trainable or config.lora.rank) else config.model
    kept = (f"model: {len(frozen)} frozen tensors stay as {set_by} sets them",) if frozen else ()
    if config.initial_weights:
        return FirstWeights(parameters, _from_file(config, module, parameters), frozenset(), frozen, kept)
    weights = initial_weights(module, config.seed)
    if arrays is not None:
        weights |= {name: array.copy() for name, array in views(module).items() if name in arrays}
        return FirstWeights(parameters, weights, frozenset(), frozen, kept)
    if ":" not in config.model:
        return FirstWeights(parameters, weights, frozenset(), frozen, kept)
    built, again, kept_as_built = views(module), views(make(seed=torch_seed(config.seed, "again"))), as_built(module)
    same = {name for name in built if np.array_equal(built[name], again[name])}
    torchs = {**weights, **kept_as_built}
    user_set = frozenset(name for name in same if torchs[name] is None or (built[name] != torchs[name]).any())
    weights = {name: built[name].copy() if name in user_set else drawn for name, drawn in weights.items()}
    return FirstWeights(parameters, weights, user_set, frozen, (*kept, _start(config.model, parameters, user_set)))


def torch_seed(seed: int, purpose: str = "build") -> int:
    """Return the seed of torch's generator, below 2^63, while a user's ``build`` makes the model of a run."""
    return derive_seed(seed, purpose) >> 65


def _start(model: str, parameters: Layout, user_set: frozenset[str]) -> str:
    """Return a line that says with which weights a model of the user's starts.

    Args:
        model: The key ``model``.
        parameters: The model's tensors.
        user_set: Names of those that ``build`` sets.
    """
    words = f"model: {len(user_set)} of {len(parameters)} tensors start as {model} sets them"
    if not user_set:
        words = f"model: {model} sets none of its {len(parameters)} tensors"
    others = len(parameters) - len(user_set)
    return words + (f"; the {others} that are drawn at random start from the run's seed" if others else "")


def _part_frozen(make: Callable[..., nn.Module], config: RunConfig, **seed: int) -> nn.Module:
    """Return a new model of which adapters and ``trainable`` are trained; the rest is as in ``initial-weights``."""
    from sepal.modules import bring_back, fill_frozen, freeze_others, set_aside

    module, lora = make(**seed), config.lora
    values = _read(config.initial_weights) if config.initial_weights else {}
    if config.trainable:
        freeze_others(module, config.trainable, values)
    else:
        fill_frozen(module.requires_grad_(False), values)
    if not lora.rank:
        return module
    from sepal.models.lora import add_adapters

    return set_aside(add_adapters(bring_back(module), lora.rank, lora.alpha, lora.targets, seed.get("seed", 0)))


def _read(path: str) -> Weights:
    """Return the weights in a safetensors file from any source, float32 by name; counters are left out.

    Raises:
        ConfigError: The file is missing or damaged, or a number is not finite in float32.
    """
    from sepal.storage.files import read_plain_tensors

    try:
        stored = read_plain_tensors(Path(path))
    except StateError as reason:
        # Only safetensors: a pickle, also one that torch loads with weights_only, can ask for any amount of memory.
        expected = "a safetensors file, as safetensors.torch.save_file writes it"
        if not os.path.exists(path):  # pathlib raises an error for a name that is too long
            raise ConfigError("initial-weights", expected, f"{path}, which does not exist") from None
        if Path(path).suffix in TORCH_FILES:
            expected = f"a safetensors file: {CONVERT.format(path, Path(path).with_suffix('.safetensors'))}"
        raise ConfigError("initial-weights", expected, reason.got) from None
    with np.errstate(over="ignore"):
        weights = {name: array.astype("float32") for name, array in stored.items() if array.dtype.kind == "f"}
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise ConfigError(f"initial-weights: {name}", "finite numbers of float32", "NaN or infinity")
    return weights


def _from_file(config: RunConfig, module: nn.Module, parameters: Layout) -> Weights:
    """Return W_0 from ``initial-weights``, with a new last layer if ``initial-head`` says so.

    The file may have more: counters that are not floating point, and what the model freezes.
    """
    from sepal.models.lora import plain_name
    from sepal.models.weights import initial_weights
    from sepal.modules import frozen_names

    stored, head = _read(config.initial_weights), set[str]()
    if config.initial_head == "new":
        head = {parameter.name for parameter in parameters if parameter.name.rpartition(".")[0] == _last(parameters)}
    head |= {parameter.name for parameter in parameters if parameter.name.endswith((".lora_A", ".lora_B"))}
    expected_shapes = {parameter.name: parameter.shape for parameter in parameters if parameter.name not in head}
    extra = head | {plain_name(name) for name in frozen_names(module)}
    stored_shapes = {name: tuple(array.shape) for name, array in stored.items() if name not in extra}
    if expected_shapes != stored_shapes:
        odd = next(
            name
            for name in {**expected_shapes, **stored_shapes}
            if expected_shapes.get(name) != stored_shapes.get(name)
        )
        got = f"shape {stored_shapes.get(odd)}"
        if odd.rpartition(".")[0] == _last(parameters):
            got += ' in its last layer (initial-head = "new" draws that anew)'
        raise ConfigError(f"initial-weights: {odd}", f"shape {expected_shapes.get(odd)}", got)
    drawn = initial_weights(module, config.seed) if head else {}
    return {parameter.name: (drawn if parameter.name in head else stored)[parameter.name] for parameter in parameters}


def _last(parameters: Layout) -> str:
    """Return the name of the last layer that has a weight."""
    return trained(parameters)[-1].name.rpartition(".")[0]
