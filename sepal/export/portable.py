"""A client's model in its own file: safetensors, with what is needed to rebuild the module.

:func:`load` is all that is needed to use it::

    predict = load("client-00003.safetensors")
    logits = predict(predict.prepare(["one.jpg", "other.jpg"]))

Rows of a CSV file are taken as they are in the file: the module begins with the client's own standardisation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import nn

from sepal import models
from sepal.config.elsewhere import check_code
from sepal.errors import ModelError, StateError, one_line
from sepal.export.preparing import prepared, read, schema_of
from sepal.method.interface import resolve
from sepal.modules import bring_back, floating, frozen_tensors, set_frozen, tied_names
from sepal.storage.regular import check_parts, check_regular
from sepal.storage.serialize import digest_arrays
from sepal.strategies import registry
from sepal.tasks import Task
from sepal.tasks.builtin import TASKS
from sepal.tasks.inputs import several
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.making import own_task
from sepal.training.allocation import AllocatedBytes
from sepal.training.module_state import may_hold
from sepal.training.target_scale import InUnit

FORMAT = "sepal.model.v1"
DIGEST = "sha256"  # of the weights, in a file's header; files of earlier versions have none
# Left out of a file: earlier versions do not know these fields.
PLAIN = (
    ("task", CLASSIFICATION),
    ("unit", ""),
    ("inputs", ""),
    ("fill", False),
    ("target_mean", ()),
    ("target_spread", ()),
    ("schema", ""),
)


@dataclass(frozen=True)
class Origin:
    """What the module is built from, and where it came from.

    Attributes:
        model: Name of a model of ours, or ``package.module:function``.
        shape: Shape of one example.
        mean: Mean of each channel, subtracted from images after their bytes were scaled to 0 … 1.
        std: Standard deviation of each channel, by which they are then divided.
        class_names: Name of each class; empty if classes are known by their numbers.
        rule: How several networks are combined into one predictor: the method, whose record names
            the ``combination``; empty for one network.
        numbers: What the rule takes besides the networks' logits.
        offset: Of each column of a table: the mean over the client's training part, which the module subtracts.
        factor: 1 / standard deviation of each column there, by which the module then multiplies.
        columns: Names of the columns of a table, in the order in which the module takes them; empty for other data.
        task: What the model has learned, the run key ``task``.
        unit: Unit of a regression's targets.
        resize: Whether image files are scaled and cut to the shape, as in training.
        channels: Whether image files are brought to the shape's channels, as in training.
        inputs: ``own.shape`` of several inputs, which stand side by side in a row; empty for one.
        fill: Whether a missing number of a table, NaN, becomes the column's ``offset``, as in training.
        target_mean: Of each number that a regression predicts, where the client's targets were standardised: the mean
            over its training part, which the module adds last.
        target_spread: The standard deviation of each there, by which the module multiplies before.
        schema: How a table becomes the module's inputs, :meth:`sepal.data.schema.TableSchema.text`; empty where each of
            its columns is one, and labels are in the column ``label``.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int
    width: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    method: str
    dataset: str
    run: str
    client: str
    rule: str = ""
    numbers: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    factor: tuple[float, ...] = ()
    resize: bool = False
    channels: bool = False
    columns: tuple[str, ...] = ()
    task: str = CLASSIFICATION
    unit: str = ""
    inputs: str = ""
    fill: bool = False
    target_mean: tuple[float, ...] = ()
    target_spread: tuple[float, ...] = ()
    schema: str = ""


def task_of_origin(origin: Origin) -> Task:
    """Return the task that a model has learned.

    Raises:
        ConfigError: It is an own one that cannot be used.
    """
    make = partial(own_task, origin.task) if ":" in origin.task else partial(TASKS[origin.task], unit=origin.unit)
    return make(origin.shape, origin.classes)


class Loaded:
    """A loaded model: call it with float32 inputs (n, *shape); it returns logits (n, classes) or a task's outputs.

    Of a table that it standardises, inputs are float64 rows as in the file.

    Its attribute ``task`` is the task: ``task.predict`` maps outputs to predictions.

    Images are as in training (:meth:`prepare`), rows of a table as in their file.
    """

    def __init__(self, origin: Origin, module: nn.Module) -> None:
        self.origin, self.module, self.task = origin, module.eval(), task_of_origin(origin)

    def __call__(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the logits of a batch."""
        plain = np.float64 if self.origin.offset else np.float32
        kind = np.int64 if self.origin.vocabulary and not self.origin.inputs else plain
        with torch.no_grad():
            logits: torch.Tensor = self.module(torch.from_numpy(np.ascontiguousarray(x, kind)))
        return logits.numpy()

    def prepare(self, data: Any) -> npt.NDArray[Any]:
        """Return examples (n, *shape) as the model takes them, prepared as in training.

        They are float32; tokens are int64, and rows of a table that the model standardises float64.

        Args:
            data: As for :func:`sepal.export.preparing.read`.

        Raises:
            DataError: They cannot be read.
            ModelError: They do not have the model's shape.
        """
        return prepared(self.origin, read(self.origin, data).x)


def named(networks: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a model's networks by their names in a file, such as ``0/conv1.weight``."""
    return {
        f"{n}/{name}": np.asarray(tensor, order="C") for n, part in enumerate(networks) for name, tensor in part.items()
    }


def save(
    path: Path,
    origin: Origin,
    networks: Sequence[Mapping[str, npt.NDArray[np.float32]]],
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write the tensors of a model's networks, with what is needed to build its module.

    Args:
        path: The file.
        origin: What its module is built from.
        networks: Tensors by name; usually of one network.
        facts: Which model it is, for the file's header.
    """
    from safetensors.numpy import save as to_bytes

    from sepal.storage.files import write_atomically

    built_from = {key: value for key, value in asdict(origin).items() if (key, value) not in PLAIN}
    about = {**(facts or {}), "format": FORMAT, "origin": json.dumps(built_from)}
    write_atomically(path, to_bytes(named(networks), about))


def load(path: Path | str, allow: Collection[str] = ()) -> Loaded:
    """Return the model in a file that `sepal export` wrote.

    Args:
        path: The file; it may come from elsewhere.
        allow: Code (``package.module:function``) that the file may name as its model.

    Raises:
        StateError: The file is not one that `sepal export` wrote, or its weights are not those that it names.
        ModelError: The model it names cannot be built here, is code that is not allowed, or does not fit in memory.
    """
    from safetensors import SafetensorError, safe_open

    from sepal.storage.files import tensors_of

    try:
        check_regular(Path(path))
        with safe_open(str(path), "np") as file:
            about = file.metadata() or {}
            tensors = tensors_of(file)
        if about.get("format") != FORMAT:
            raise ValueError(about.get("format", "no format"))
        check_parts(path, about["origin"])
        fields: dict[str, Any] = dict(json.loads(about["origin"]))
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        origin = Origin(**fields)
        _check_types(origin)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, RecursionError) as reason:
        raise StateError(str(path), "a model that `sepal export` wrote", str(reason)) from None
    digest = about.get(DIGEST, "")
    if digest and digest != (actual := digest_arrays(tensors)):
        raise StateError(str(path), f"weights with the digest {digest[:12]}", actual[:12])
    built = {"model": origin.model, "task": origin.task}  # the method is a label here: it is never imported
    check_code(built, allow, "you allow (sepal predict --allow package.module:function)", ModelError)
    if ":" in origin.model:
        return Loaded(origin, _scaled(origin, tensors))
    try:
        _check_size(origin)
        loaded = Loaded(origin, _scaled(origin, tensors))
        sides = loaded(np.zeros((1, *origin.shape), np.float32)).shape
    except (RuntimeError, TypeError) as reason:  # torch's, of shapes and types
        raise ModelError("model", f"tensors and numbers that fit {origin.model}", one_line(str(reason), 200)) from None
    if sides != (1, *loaded.task.output):
        raise ModelError("model", f"a number for each of {origin.classes} classes", sides[1:])
    return loaded


def _scaled(origin: Origin, tensors: Mapping[str, npt.NDArray[np.float32]]) -> nn.Module:
    """Return the module, which standardises its inputs first if the client's data was, and undoes that of targets."""
    module = _module(origin, tensors)
    if origin.target_mean:
        module = InUnit(module, origin.target_mean, origin.target_spread)
    return Standardized(module, origin.offset, origin.factor, origin.fill) if origin.offset else module


def _check_types(origin: Origin) -> None:
    for name, kind in get_type_hints(Origin).items():
        value, inner = getattr(origin, name), get_args(kind)
        item_type = inner[0] if inner else kind
        items = value if inner else (value,)
        if not isinstance(items, tuple) or not all(
            isinstance(i, (int, float) if item_type is float else item_type) for i in items
        ):
            raise ValueError(f"origin.{name} of another type")
    if ":" not in origin.task and origin.task not in TASKS:
        raise ValueError(f"origin.task {origin.task!r}")
    if len(origin.class_names) not in (0, origin.classes) or not all(map(str.isprintable, origin.class_names)):
        raise ValueError(f"origin.class_names without a printable name for each of {origin.classes} classes")
    if not origin.mean or len(origin.mean) != len(origin.std):
        raise ValueError("origin.mean and origin.std without a number for each other")
    if len(origin.offset) != len(origin.factor) or (origin.offset and (len(origin.offset),) != origin.shape):
        raise ValueError(f"origin.offset and origin.factor without a number for each of {origin.shape} columns")
    numbers = len(origin.target_mean), len(origin.target_spread)
    if numbers != (0, 0) and (origin.task != "regression" or numbers != (origin.classes, origin.classes)):
        raise ValueError(f"origin.target_mean and origin.target_spread without a regression's {origin.classes} numbers")
    if schema_of(origin).inputs != origin.columns:  # or a ValueError, such as of a column that is there twice
        raise ValueError("origin.schema of other columns than origin.columns")
    if origin.fill and not origin.offset:
        raise ValueError("origin.fill without means")


def _check_size(origin: Origin) -> None:
    """Raise ModelError if the model, or an example of its shape, takes more than half of the free memory.

    It is built and tried without memory for its weights and for what its layers give.
    """
    room = psutil.virtual_memory().available // 2
    with torch.device("meta"), torch.no_grad(), AllocatedBytes() as counter:
        module = models.build(origin.model, origin.shape, origin.classes, origin.vocabulary, output=_output(origin))
        weights = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
        counter.bytes = 0
        module.eval()(torch.zeros((1, *origin.shape), dtype=torch.int64 if origin.vocabulary else torch.float32))
    for size, subject in ((weights, origin.model), (counter.bytes, f"an example of shape {origin.shape}")):
        if size > room:
            raise ModelError("model", f"one of at most {room / 2**30:.3g} GiB", f"{subject} of {size / 2**30:.3g} GiB")


def _output(origin: Origin) -> tuple[int, ...]:
    """Return the shape of the outputs for one example; nothing for logits."""
    return () if origin.task == CLASSIFICATION else task_of_origin(origin).output


def _module(origin: Origin, tensors: Mapping[str, npt.NDArray[np.float32]]) -> nn.Module:
    parts: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
    for name, tensor in tensors.items():
        number, _, rest = name.partition("/")
        parts.setdefault(number, {})[rest] = tensor
    sizes = origin.shape, origin.classes, origin.vocabulary, origin.width
    build = partial(models.build, origin.model, *sizes, output=_output(origin), inputs=several(origin.inputs))
    networks = [fill(build(), part) for _, part in sorted(parts.items())]
    if not origin.rule and len(networks) == 1:
        return networks[0]
    combination = registry.get(origin.method).combination if origin.rule and origin.method in registry.table() else ""
    if not combination:
        raise ModelError("model", "networks that its method says how to combine", origin.rule or len(networks))
    return Combined(networks, resolve(combination), origin.numbers)


class Standardized(nn.Module):
    """A module that takes rows of a table as they are in its file, and standardises them in float64."""

    offset: torch.Tensor
    factor: torch.Tensor

    def __init__(self, module: nn.Module, offset: Sequence[float], factor: Sequence[float], fill: bool) -> None:
        super().__init__()
        self.module, self.fill = module, fill
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float64))
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's logits (n, classes) of raw rows (n, columns); with ``fill``, some may lack numbers."""
        scaled = (x - self.offset) * self.factor
        rows = torch.where(torch.isnan(x), 0.0, scaled) if self.fill else scaled
        logits: torch.Tensor = self.module(rows.to(torch.float32))
        return logits


class Combined(nn.Module):
    """Several networks that are combined into one predictor."""

    def __init__(
        self, networks: list[nn.Module], rule: Callable[..., torch.Tensor], numbers: tuple[float, ...]
    ) -> None:
        super().__init__()
        self.networks, self.rule, self.numbers = nn.ModuleList(networks), rule, numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, classes) that the rule makes from those of all networks."""
        return self.rule(*(network(x) for network in self.networks), *self.numbers)


def fill(module: nn.Module, tensors: Mapping[str, npt.NDArray[np.float32]]) -> nn.Module:
    """Return ``module`` with ``tensors``, whose shapes may be smaller than its own: a model without some channels.

    Layers that share a weight share it afterwards, too, and what the model freezes is a frozen parameter again.

    Buffers that stay with a client may be missing: they are then as the module is built. One that only training makes,
    in a layer of the module, is added.

    Raises:
        ModelError: A tensor is missing or unknown, or a parameter's is not of floating point.
    """
    frozen = frozen_tensors(module)
    names, tied = {*floating(module), *frozen}, tied_names(module)
    if odd := sorted(name for name in {*tensors} - names if not _may_be_buffer(module, name)):
        raise ModelError("model", f"the {len(names)} tensors of its module", odd[0])
    if missing := sorted(names - {*tensors}):
        raise ModelError("model", f"the {len(names)} tensors of its module", missing[0])
    for name, array in tensors.items():
        path, _, leaf = name.rpartition(".")
        layer, tensor = module.get_submodule(path), torch.from_numpy(array.copy())
        if leaf in layer._parameters:
            if not tensor.is_floating_point():
                raise ModelError(f"model: {name}", "floating point", array.dtype)
            layer._parameters[leaf] = nn.Parameter(tensor)
        elif leaf in layer._buffers:
            layer._buffers[leaf] = tensor
        else:
            layer.register_buffer(leaf, tensor, persistent=False)
        if name in frozen:
            set_frozen(module, name, tensor)
    for name, first in tied.items():
        (path, _, leaf), shared = name.rpartition("."), module.get_parameter(first)
        module.get_submodule(path)._parameters[leaf] = shared
    return bring_back(module)


def _may_be_buffer(module: nn.Module, name: str) -> bool:
    """Return whether a layer has a buffer of that name, or may have one."""
    path, _, leaf = name.rpartition(".")
    layer = dict(module.named_modules()).get(path)
    return layer is not None and leaf not in layer._parameters and may_hold(layer, leaf)
