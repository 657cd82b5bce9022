"""Models by name, and functions to read, load and initialise their weights.

A model is a ``torch.nn.Module`` that maps a batch to logits, float32 (batch, classes). ``build`` imports a
built-in model by name, or a user's function by ``package.module:function``. Importing this package does not import
torch.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sepal.errors import ModelError, suggest
from sepal.tasks.inputs import Input, unpacking
from sepal.user_modules import described, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from sepal.models.channels import coupling
    from sepal.models.narrow import cut_model, forward_multiply_adds
    from sepal.models.weights import initial_weights, layout, load_weights, read_weights

__all__ = [
    "build",
    "coupling",
    "cut_model",
    "forward_multiply_adds",
    "initial_weights",
    "layout",
    "load_weights",
    "names",
    "read_weights",
]

_HOMES = {  # name → module that imports torch and is only imported when the name is first used
    **dict.fromkeys(("initial_weights", "layout", "load_weights", "read_weights"), "sepal.models.weights"),
    **dict.fromkeys(("cut_model", "forward_multiply_adds"), "sepal.models.narrow"),
    "coupling": "sepal.models.channels",
}


class _Registered(NamedTuple):
    target: str  # "module:class", called as class(input_shape, classes), or with the vocabulary third if text
    text: bool = False  # whether the input is tokens


_MODELS = {
    "cnn-cifar100": _Registered("sepal.models.cnn:CnnCifar100"),
    "cnn-cifar100-pa3dfl": _Registered("sepal.models.cnn:CnnCifar100Pa3dfl"),
    "cnn-emnist": _Registered("sepal.models.cnn:CnnEmnist"),
    "cnn-fmnist-pa3dfl": _Registered("sepal.models.cnn:CnnFmnistPa3dfl"),
    "cnn2": _Registered("sepal.models.cnn:Cnn2"),
    "cnn2-small": _Registered("sepal.models.cnn:Cnn2Small"),
    "digits-cnn": _Registered("sepal.models.cnn:DigitsCnn"),
    "digits-cnn-bn": _Registered("sepal.models.cnn:DigitsCnnBn"),
    "embedding-linear": _Registered("sepal.models.text:EmbeddingLinear", text=True),
    "har-cnn": _Registered("sepal.models.har:HarCnn"),
    "har-cnn-bn": _Registered("sepal.models.har:HarCnnBn"),
    "har-mlp": _Registered("sepal.models.har:HarMlp"),
    "lenet-cifar10": _Registered("sepal.models.lenet:LenetCifar10"),
    "lenet5": _Registered("sepal.models.lenet:Lenet5"),
    "lenet5-bn": _Registered("sepal.models.lenet:Lenet5Bn"),
    "mnist-cnn": _Registered("sepal.models.cnn:MnistCnn"),
    "mnist-cnn-bn": _Registered("sepal.models.cnn:MnistCnnBn"),
    "resnet18-gn": _Registered("sepal.models.resnet:Resnet18Gn"),
    "shakespeare-lstm": _Registered("sepal.models.text:ShakespeareLstm", text=True),
}


def names() -> tuple[str, ...]:
    """Return the names that ``build`` knows, sorted."""
    return tuple(sorted(_MODELS))


def build(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    vocabulary: int = 0,
    width: float = 1.0,
    seed: int = 0,
    output: Sequence[int] = (),
    inputs: tuple[Input, ...] = (),
) -> nn.Module:
    """Return a new model for the data, without changing any global generator.

    The model's weights are the same in each call; a run starts from those of
    ``sepal.strategies.first_weights.first_weights`` instead.
    Parameters that a user's model freezes keep their value (:mod:`sepal.modules`).

    Args:
        name: One of ``names()``, or ``package.module:function``, called as ``function(input_shape, classes)``.
        input_shape: Shape of one example: (channels, height, width), (channels, length), or (tokens,).
        classes: Number of logits.
        vocabulary: Number of token ids, padding included; 0 where the data is not text.
        width: Fraction of the channels of every layer, in (0, 1], rounded down to whole units, at least one. Below 1,
            the model must be a sequence of layers; see :mod:`sepal.models.channels`.
        seed: Seed of the global generators (torch's, NumPy's, Python's) while a user's function builds the model.
        output: Shape of the outputs for one example; empty for logits ``(classes,)``.
        inputs: What one example has, if that is several inputs (:mod:`sepal.tasks.inputs`): the user's function gets
            their shapes, by name or as a tuple, and the model takes rows.

    Raises:
        ModelError: The name is unknown, the function cannot be used, or the model does not fit the data.
    """
    from sepal.seeding import generators_seeded

    shape = tuple(int(side) for side in input_shape)
    if not shape or min(shape) < 1:
        raise ModelError("model", f"data with a shape of positive sides for {name!r}", shape)
    output_shape = tuple(output) or (classes,)
    if classes < (1 if output else 2):
        raise ModelError("model", f"data with at least 2 classes for {name!r}", classes)
    if ":" not in name and output_shape != (classes,):
        expected = f"package.module:function of your own, for outputs of shape {output_shape}"
        raise ModelError("model", expected, f"{name!r}, with a number for each class")
    if ":" not in name and inputs:
        raise ModelError("model", f"package.module:function of your own, for {len(inputs)} inputs", repr(name))
    make: Callable[[], nn.Module] = partial(_built_in, name, shape, classes, vocabulary)
    if ":" in name:
        make = partial(_of_user, name, shape, classes, vocabulary, output_shape, inputs)
    with generators_seeded(seed):
        return make() if width == 1 else _narrow(make, width)


def _narrow(make: Callable[[], nn.Module], width: float) -> nn.Module:
    """Return the model with the first fraction ``width`` of every layer's channels, rounded down."""
    from sepal.masks.cuts import Cut, windows
    from sepal.models.channels import coupling
    from sepal.models.narrow import cut_model
    from sepal.models.weights import layout

    full = make()
    groups = coupling(full)
    return cut_model(make, Cut(layout(full), groups, windows(groups, width, rounding="down")))


def _built_in(name: str, shape: tuple[int, ...], classes: int, vocabulary: int) -> nn.Module:
    if name not in _MODELS:
        raise ModelError(
            "model", f"one of {', '.join(names())}, or package.module:function", suggest(name, name, names())
        )
    entry = _MODELS[name]
    if entry.text and vocabulary < 1:
        raise ModelError("model", f"text (tokens and a vocabulary) for {name!r}", f"data of shape {shape}")
    if not entry.text and vocabulary > 0:
        raise ModelError("model", f"a model for text, such as {_first_text_model()!r}", name)
    module, _, attribute = entry.target.partition(":")
    family: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    try:
        return family(shape, classes, vocabulary) if entry.text else family(shape, classes)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as reason:
        # What torch says of sizes that no tensor has.
        sizes = f"shape {shape}, {classes} classes, vocabulary {vocabulary}: {type(reason).__name__}"
        raise ModelError("model", f"sizes with which {name!r} can be built", sizes) from None


def _first_text_model() -> str:
    return next(name for name in names() if _MODELS[name].text)


def _of_user(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int,
    output: tuple[int, ...],
    inputs: tuple[Input, ...],
) -> nn.Module:
    """Build a user's model and try it on two examples of zeros; any exception becomes a ModelError."""
    import torch
    from torch import nn

    from sepal.models.outputs import take_logits
    from sepal.modules import refuse_unfit_tensors, set_aside

    function = load("model", name, ModelError)
    sides: Any = shape
    if inputs:
        sides = (
            {entry.name: entry.shape for entry in inputs} if inputs[0].name else tuple(entry.shape for entry in inputs)
        )
    try:
        model = function(sides, classes)
    except Exception as error:
        expected = f"{name}{sides, classes} to return a torch.nn.Module"
        raise ModelError("model", expected, described(error)) from error
    if not isinstance(model, nn.Module):
        raise ModelError("model", f"{name} to return a torch.nn.Module", type(model).__name__)
    if inputs:
        model = unpacking(model, inputs)
    examples = torch.zeros(2, *shape, dtype=torch.int64 if vocabulary and not inputs else torch.float32)
    take_logits(model)
    try:
        with torch.no_grad():
            logits = model.eval()(examples)
        got = f"shape {tuple(logits.shape)}"
    except ModelError:
        raise
    except Exception as error:
        refuse_unfit_tensors(model)
        got = described(error)
        if not vocabulary and "indices" in got and "Long" in got:  # of an embedding
            got += "; whole numbers come with own.vocabulary (vocabulary= in Python)"
    if got != f"shape {(2, *output)}":
        raise ModelError("model", f"{name} to map {tuple(examples.shape)} to logits of shape {(2, *output)}", got)
    refuse_unfit_tensors(model)
    return set_aside(model.train())


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
