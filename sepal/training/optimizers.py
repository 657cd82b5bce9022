"""Optimizers of local training, with options by parameter group and a state that can be kept between rounds.

By default :meth:`sepal.training.trainer.Trainer.fit` creates a new optimizer for each call. A method that keeps
momentum or Adam's moments between rounds creates one with ``Trainer.optimizer``, passes it to ``fit``, and stores the
result of :func:`read_state` in its client state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.config import RunConfig
from sepal.errors import ModelError
from sepal.training.sgd_adam import SGD, Adam, Optimizer

OptimizerState: TypeAlias = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with options of their own; None uses the run's value.

    Attributes:
        parameters: The parameters.
        lr: Learning rate of the first round; ``lr-decay`` applies to it too.
        momentum: Momentum of SGD.
        weight_decay: L2 penalty.
    """

    parameters: Sequence[nn.Parameter]
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None


Trained: TypeAlias = Sequence[nn.Parameter] | Sequence[ParameterGroup]


def make_optimizer(config: RunConfig, trained: Trained, round: int, halvings: int = 0) -> Optimizer:
    """Return a new optimizer without state.

    Args:
        config: The run's configuration: the optimizer, and options that a group does not set.
        trained: Parameters, or groups of them.
        round: Determines the learning rate.
        halvings: How often the learning rate of each group is halved.

    Raises:
        ValueError: There is no parameter.
    """
    groups = [part if isinstance(part, ParameterGroup) else ParameterGroup([part]) for part in trained]
    if not any(len(group.parameters) for group in groups):
        raise ValueError("optimizer got an empty parameter list")
    if not isinstance(trained[0], ParameterGroup):  # one group, as torch makes one of a list
        groups = [ParameterGroup([parameter for group in groups for parameter in group.parameters])]
    adam = config.optimizer == "adam"
    settings = [
        {
            "params": list(group.parameters),
            "lr": config.learning_rate(round, group.lr) * 0.5**halvings,
            "weight_decay": config.weight_decay if group.weight_decay is None else group.weight_decay,
            **({} if adam else {"momentum": config.momentum if group.momentum is None else group.momentum}),
        }
        for group in groups
    ]
    return (Adam if adam else SGD)(settings, config.gradient_limit())


def read_state(optimizer: Optimizer, module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Return copies of the optimizer's state, float32 by ``KEY/NAME`` such as ``momentum_buffer/fc1.weight``.

    Args:
        optimizer: SGD or Adam. SGD without momentum keeps nothing.
        module: The module whose parameters are named.
    """
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {
        f"{key}/{names[parameter]}": moments[key].detach().cpu().numpy().astype(np.float32)
        for parameter, moments in optimizer.state.items()
        for key in optimizer.KEPT
        if moments.get(key) is not None
    }


def load_state(optimizer: Optimizer, module: nn.Module, state: OptimizerState) -> None:
    """Load the result of :func:`read_state` into a new optimizer. Parameters without state start from zero.

    Raises:
        ModelError: An array is unknown or has a different shape, or one of a parameter's arrays is missing.
    """
    if not state:
        return
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter in trained}
    keys = optimizer.KEPT
    for label in state:
        key, _, name = label.partition("/")
        if key not in keys or name not in parameters:
            raise ModelError("optimizer state", f"{' and '.join(keys)} of what is trained", label)
    for name, parameter in parameters.items():
        arrays = {key: state.get(f"{key}/{name}") for key in keys}
        if all(array is None for array in arrays.values()):
            continue
        for key, array in arrays.items():
            shape = () if key == Adam.STEP else tuple(parameter.shape)
            if array is None or array.shape != shape:
                got = "none" if array is None else f"shape {array.shape}"
                raise ModelError(f"optimizer state {key}/{name}", f"shape {shape}", got)
            tensor = torch.tensor(array, dtype=torch.float32)
            optimizer.state.setdefault(parameter, {})[key] = tensor if key == Adam.STEP else tensor.to(parameter.device)
