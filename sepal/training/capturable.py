"""What a hook declares, so that one captured step can serve all clients (:mod:`sepal.training.programs`).

A captured step reads and writes always the same tensors. So a hook says which of its values differ between clients:
they are copied into tensors of the step before a client's first step. All others are part of what the step was captured
for, and with other values another step is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, TypeAlias

import torch

Objective: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps a batch's outputs and targets to its mean loss, such as :meth:`sepal.training.trainer.Trainer.loss`."""


class Steps(Protocol):
    """What a loss that takes steps of its own needs of an optimizer."""

    def zero_grad(self) -> None:
        """Drop the gradients of what is trained."""
        ...

    def step(self) -> None:
        """Update what is trained."""
        ...


class Capturable:
    """A hook that can be part of a captured step; a dataclass.

    Its fields ``objective`` and ``optimizer``, if it has them, are replaced by the step's own: an objective in which
    examples that fill up a batch count nothing, and an optimizer whose rate is a tensor. It must not read a tensor on
    the host, nor change anything but gradients, parameters and the tensors that it names.

    Attributes:
        TENSORS: Fields that differ between clients: numbers, tensors, or mappings from names to tensors.
        CHANGED: Those of them that the hook itself changes.
        OF_NETWORK: Fields that belong to the network that is trained, such as its parameters.
        FILLED: Of a loss: whether all that depends on the number of examples goes through ``objective``, so that a
            batch may be filled up.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ()
    CHANGED: ClassVar[tuple[str, ...]] = ()
    OF_NETWORK: ClassVar[tuple[str, ...]] = ()
    FILLED: ClassVar[bool] = True

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what differs between clients by ``FIELD`` or ``FIELD/NAME``; a number is a scalar on the CPU."""
        return self._named(self.TENSORS)

    def changed_tensors(self) -> dict[str, torch.Tensor]:
        """Return those of :meth:`tensors` that the hook changes."""
        return self._named(self.CHANGED)

    def constants(self) -> Hashable:
        """Return the other fields' values, in which hooks have to agree to be part of one captured step."""
        passed_over = {*self.TENSORS, *self.OF_NETWORK, "objective", "optimizer"}
        return tuple((field, value) for field, value in self._fields().items() if field not in passed_over)

    def captured(
        self, tensors: Mapping[str, torch.Tensor], objective: Objective, optimizer: Steps
    ) -> Callable[..., Any]:
        """Return the hook with the step's own tensors, by the names of :meth:`tensors`, objective and optimizer."""
        values: dict[str, Any] = {}
        for field in self.TENSORS:
            now = getattr(self, field)
            if isinstance(now, Mapping):
                values[field] = {name: tensors[f"{field}/{name}"] for name in now}
            else:
                values[field] = tensors[field]
        replacements = {"objective": objective, "optimizer": optimizer}
        values |= {field: value for field, value in replacements.items() if field in self._fields()}
        hook: Any = replace(self, **values)  # type: ignore[type-var]
        captured: Callable[..., Any] = hook
        return captured

    def choices(self, batches: Sequence[int]) -> Sequence[Hashable]:
        """Return for each batch, of whose sizes there is a list, what its step depends on; each gets a step of its own.

        A loss with random choices draws them here. It may be called more than once, or in vain, and changes nothing.
        """
        return [None] * len(batches)

    def chosen(self, choice: Hashable) -> Capturable:
        """Return the hook for steps of one of the :meth:`choices`."""
        return self

    def ended(self, batches: Sequence[int], last: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Do what is left after the last step of batches of these sizes; ``last`` returns the last batch."""

    def _fields(self) -> dict[str, Any]:
        hook: Any = self
        return {field.name: getattr(self, field.name) for field in fields(hook)}

    def _named(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        tensors = dict[str, torch.Tensor]()
        for field in names:
            value = getattr(self, field)
            if isinstance(value, Mapping):
                tensors |= {f"{field}/{name}": tensor for name, tensor in value.items()}
            else:
                tensors[field] = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        return tensors
