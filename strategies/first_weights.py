"""W_0, the weights that a run starts from: drawn from the seed, set by the user's ``build``, or read from a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sepal.config import RunConfig
from sepal.errors import ConfigError, StateError
from sepal.layout import Layout, trained
from sepal.method import Weights
from sepal.rng import derive_seed
from sepal.strategies import rules

if TYPE_CHECKING:
    from torch import nn

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")  # what torch.save's files are called
CONVERT = "safetensors.torch.save_file(torch.load({!r}, weights_only=True), {!r}) writes one"


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
    notes = (f"model: {len(frozen)} frozen tensors stay as {set_by} sets them",) if frozen else ()
    if config.initial_weights:
        return FirstWeights(parameters, _from_file(config, module, parameters), frozenset(), frozen, notes)
    weights = initial_weights(module, config.seed)
    if arrays is not None:
        weights |= {name: array.copy() for name, array in views(module).items() if name in arrays}
        return FirstWeights(parameters, weights, frozenset(), frozen, notes)
    if ":" not in config.model:
        return FirstWeights(parameters, weights, frozenset(), frozen, notes)
    built, again, kept_as_built = views(module), views(make(seed=torch_seed(config.seed, "again"))), as_built(module)
    same = {name for name in built if np.array_equal(built[name], again[name])}
    torchs = {**weights, **kept_as_built}
    user_set = frozenset(name for name in same if torchs[name] is None or (built[name] != torchs[name]).any())
    weights = {name: built[name].copy() if name in user_set else drawn for name, drawn in weights.items()}
    return FirstWeights(parameters, weights, user_set, frozen, (*notes, _start(config.model, parameters, user_set)))


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


def part_frozen(make: Callable[..., nn.Module], config: RunConfig, **seed: int) -> nn.Module:
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
            expected = f"a safetensors file: {CONVERT.format(str(path), str(Path(path).with_suffix('.safetensors')))}"
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
