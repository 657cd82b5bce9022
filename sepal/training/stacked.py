"""Training of several clients at once: their parameters are stacked, and each step is one step of all of them.

A client keeps its own data, order of batches, learning rate, masks and number of steps. Batches of different sizes are
padded with examples that count nothing. Clients that have done their steps drop out. What a client gets is what it
would get alone, within rounding (tests/sepal/engines/test_batched.py says how much).

``torch.func.vmap`` maps the model over the clients. Whether it can, and whether a model treats each example of a batch
by itself, is tried on the first batch of two clients, for each kind of model once (:func:`check`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, vmap

from sepal.modules import floating
from sepal.training.columns import StreamColumn
from sepal.training.hooks import Hooks, Stacked, do_nothing, no_epoch
from sepal.training.module_state import fingerprint
from sepal.training.sgd_adam import Optimizer
from sepal.training.stacked_steps import StackedSteps, settings

if TYPE_CHECKING:
    from sepal.training.trainer import Trainer

Tensors = dict[str, torch.Tensor]
# Largest difference of a gradient, as a share of its largest entry; a model that mixes examples is far above.
TOLERANCE = 1e-2


class NotStackableError(Exception):
    """This kind of model cannot train several clients at once."""


@dataclass
class Job:
    """One call of :meth:`sepal.training.trainer.Trainer.fit`.

    Attributes:
        trainer: The client's data and configuration.
        module: The module to train in place, in training mode.
        hooks: The method's hooks.
        optimizer: A new optimizer of the module's parameters.
        passes: Epochs.
        rows: Returns the batches of an epoch, from 1: int64 rows of the training part, on the CPU.
        kind: What it has in common with those with which it can train; see :func:`kind`.
    """

    trainer: Trainer
    module: nn.Module
    hooks: Hooks
    optimizer: Optimizer
    passes: int
    rows: Callable[[int], Sequence[torch.Tensor]]
    kind: Hashable | None = None


@dataclass(frozen=True)
class Fitted:
    """What training has cost and given: mean loss of the last epoch, seconds (its share), steps, examples seen."""

    loss: float
    seconds: float
    steps: int
    examples: int


def _plain(trainer: Trainer) -> bool:
    """Return whether batches are in memory and unchanged, and the loss is the task's: what clients train at once."""
    keys = trainer.augment is not None or trainer.config.label_smoothing or trainer.config.precision != "fp32"
    return not keys and not isinstance(trainer.x, StreamColumn) and not isinstance(trainer.y, StreamColumn)


def kind(job: Job) -> Hashable | None:
    """Return what jobs that train together have in common; None if this one trains alone."""
    trainer, hooks, module = job.trainer, job.hooks, job.module
    steps = (hooks.before_step, hooks.after_step)
    if hooks.loss is not None or not trainer.task.averages or not job.passes or not _plain(trainer):
        return None
    if any(hook is not do_nothing and not hasattr(hook, "stacked") for hook in steps):
        return None
    if getattr(module, "least_batch", 1) > 1 or any(unfit(part) for part in module.modules()):
        return None
    names = {parameter: name for name, parameter in module.named_parameters()}
    groups = settings(job.optimizer)
    trained = tuple(
        (names[parameter], group["weight_decay"], group.get("momentum"))
        for parameter, group in zip(_parameters(job.optimizer), groups, strict=True)
    )
    return (
        *(type(module), str(module), tuple((n, tuple(t.shape)) for n, t in floating(module).items()), trained),
        *(type(job.optimizer), job.optimizer.most_norm, trainer.device, id(trainer.task)),
        *(part for t in (trainer.x[:1], trainer.y[:1]) for part in (tuple(t.shape[1:]), t.dtype)),
        *(type(hook) for hook in steps),
    )


def unfit(layer: nn.Module) -> bool:
    """Return whether a layer is known not to fit: it mixes a batch's examples, draws numbers, or is no map."""
    norm = isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.RNNBase)
    return norm or (isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0)


def train(jobs: Sequence[Job], tried: set[Hashable]) -> list[Fitted]:
    """Train the modules of ``jobs``, which are of one :func:`kind`, in place, and return what each has cost and given.

    Args:
        jobs: At least two. If this raises, their modules are as they were.
        tried: Kinds that :func:`check` has passed; updated.

    Raises:
        UnfitError: This kind does not fit.
    """
    begun, stack = time.monotonic(), _Stack(jobs)
    if jobs[0].kind not in tried:
        check(stack)
        tried.add(jobs[0].kind)
    losses = stack.train()
    seconds, examples = time.monotonic() - begun, sum(stack.examples)
    results = zip(losses, stack.steps, stack.examples, strict=True)
    fitted = [Fitted(loss, seconds * count / max(1, examples), steps, count) for loss, steps, count in results]
    return [fitted[position] for position in np.argsort(stack.order)]


class _Stack:
    """The jobs of a batch, longest first, as stacked tensors."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        rows = [[(epoch, r.numpy()) for epoch in range(1, job.passes + 1) for r in job.rows(epoch)] for job in jobs]
        self.order = sorted(range(len(jobs)), key=lambda position: -len(rows[position]))
        self.jobs, self._rows = [jobs[position] for position in self.order], [rows[position] for position in self.order]
        self.steps = [len(of_client) for of_client in self._rows]
        self.examples = [sum(len(batch) for _, batch in of_client) for of_client in self._rows]
        self.device = jobs[0].trainer.device
        self._loss_each: Callable[..., torch.Tensor] = jobs[0].trainer.task.loss_each or _no_loss
        tensors = [floating(job.module) for job in self.jobs]
        self.values = {name: torch.stack([of_client[name].detach() for of_client in tensors]) for name in tensors[0]}
        names = {parameter: name for name, parameter in self.jobs[0].module.named_parameters()}
        self.trained = [names[parameter] for parameter in _parameters(self.jobs[0].optimizer)]
        self.x = torch.cat([job.trainer.x[:] for job in self.jobs])
        self.y = torch.cat([job.trainer.y[:] for job in self.jobs])
        self.index, self.share, self.last = self._batches()

    def _batches(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each step's rows and their share of the loss, (steps, clients, batch), and sizes in the last epoch."""
        sizes = [len(job.trainer.y) for job in self.jobs]
        most = max((len(batch) for of_client in self._rows for _, batch in of_client), default=1)
        shape = max(self.steps), len(self.jobs)
        index, present = np.zeros((*shape, most), np.int64), np.zeros((*shape, most), np.float32)
        last = np.zeros(shape, np.float32)
        for client, (offset, of_client) in enumerate(zip(np.cumsum([0, *sizes[:-1]]), self._rows, strict=True)):
            for step, (epoch, batch) in enumerate(of_client):
                index[step, client] = batch[0] + offset  # padding: an example of the same batch, which counts nothing
                index[step, client, : len(batch)] = batch + offset
                present[step, client, : len(batch)] = 1
                last[step, client] = len(batch) * (epoch == self.jobs[client].passes)
        rows, share, ends = (torch.from_numpy(array).to(self.device) for array in (index, present, last))
        if any(job.trainer.class_weights is not None for job in self.jobs):
            share = share * torch.cat([_example_weights(job.trainer) for job in self.jobs])[rows]
        return rows, share / share.sum(2, keepdim=True).clamp(min=1e-30), ends

    def losses(self, values: Tensors, index: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Return the loss of each client, (clients,), on its rows (clients, batch)."""
        module, loss_each = self.jobs[0].module, self._loss_each

        def loss(values: Tensors, x: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
            outputs = functional_call(module, values, (x,))
            return (loss_each(outputs, y) * share).sum()

        losses: torch.Tensor = vmap(loss, randomness="error")(values, self.x[index], self.y[index], share)
        return losses

    def leaves(self, count: int) -> Tensors:
        """Return the values of the first clients, of which what is trained requires gradients. Storage is shared."""
        leaves = {name: value[:count] for name, value in self.values.items()}
        return {name: value.requires_grad_(name in self.trained) for name, value in leaves.items()}

    def gradients(self, losses: torch.Tensor, leaves: Tensors) -> Tensors:
        """Return the gradient of each client's loss, (clients, …), for what is trained and affects the loss."""
        gradients = torch.autograd.grad(losses.sum(), [leaves[name] for name in self.trained], allow_unused=True)
        return {name: gradient for name, gradient in zip(self.trained, gradients, strict=True) if gradient is not None}

    def train(self) -> list[float]:
        """Make all steps, write the results into the modules, and return the mean losses of the last epochs."""
        before, after = (self._hook(which) for which in ("before_step", "after_step"))
        optimizer = StackedSteps([job.optimizer for job in self.jobs], self.trained, self.device)
        has_epoch_hook = [job.hooks.after_epoch is not no_epoch for job in self.jobs]
        values_before = {name: value.clone() for name, value in self.values.items()} if any(has_epoch_hook) else {}
        total = torch.zeros(len(self.jobs), device=self.device)
        count, leaves = 0, Tensors()
        try:
            for step in range(len(self.index)):
                active = sum(steps > step for steps in self.steps)
                if active != count:
                    count, leaves = active, self.leaves(active)
                losses = self.losses(leaves, self.index[step, :count], self.share[step, :count])
                gradients = self.gradients(losses, leaves)
                with torch.no_grad():
                    before(leaves, gradients)
                    optimizer.step(leaves, gradients)
                    after(leaves, gradients)
                    total[:count] += losses.detach() * self.last[step, :count]
                for client in range(count):
                    if has_epoch_hook[client] and self._ends(client, step):
                        self._write(client, self.values)
                        self.jobs[client].hooks.after_epoch(self.jobs[client].module, self._rows[client][step][0])
        except BaseException:
            for client in range(len(self.jobs) if values_before else 0):
                self._write(client, values_before)
            raise
        for client in range(len(self.jobs)):
            self._write(client, self.values)
        sizes = (len(job.trainer.y) for job in self.jobs)
        return [loss / size for loss, size in zip(total.tolist(), sizes, strict=True)]

    def _ends(self, client: int, step: int) -> bool:
        rows = self._rows[client]
        return step + 1 == len(rows) or rows[step + 1][0] != rows[step][0]

    def _hook(self, which: str) -> Stacked:
        hooks: list[Any] = [getattr(job.hooks, which) for job in self.jobs]
        if hooks[0] is do_nothing:
            return lambda values, gradients: None
        stacked: Stacked = type(hooks[0]).stacked(hooks)
        return stacked

    @torch.no_grad()
    def _write(self, client: int, values: Mapping[str, torch.Tensor]) -> None:
        tensors = floating(self.jobs[client].module)
        for name in self.trained:
            tensors[name].copy_(values[name][client])


def check(stack: _Stack) -> None:
    """Compare the gradients of the first batch with those that the clients with the most and least padding get alone.

    One more example is padding, so that a model in which examples of a batch affect each other is noticed.

    Raises:
        UnfitError: They differ, the model changes its buffers, or ``vmap`` cannot map it.
    """
    leaves = {name: value.requires_grad_(name in stack.trained) for name, value in _copied(stack.values).items()}
    before = _copied(leaves)
    index = torch.cat([stack.index[0], stack.index[0, :, :1]], 1)
    share = torch.cat([stack.share[0], torch.zeros_like(stack.share[0, :, :1])], 1)
    module = stack.jobs[0].module
    holds = _fingerprint(module)
    functorch: Any = torch._C._functorch
    functorch._set_vmap_fallback_enabled(False)  # a loop over clients, with a warning, would gain nothing
    try:
        gradients = stack.gradients(stack.losses(leaves, index, share), leaves)
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        raise NotStackableError(f"{type(reason).__name__}: {reason}") from None
    finally:
        functorch._set_vmap_fallback_enabled(True)
    if any(not torch.equal(leaves[name], before[name]) for name in leaves):
        raise NotStackableError("the model changes its buffers in training")
    if holds != _fingerprint(module):
        raise NotStackableError("the model changes what it holds in training, or draws numbers")
    sizes = [len(rows[0][1]) for rows in stack._rows]
    for client in {sizes.index(min(sizes)), sizes.index(max(sizes))}:
        _compare({name: gradient[client] for name, gradient in gradients.items()}, stack, client)


def _fingerprint(module: nn.Module) -> bytes:
    try:
        return fingerprint(module)
    except Exception as reason:  # whatever an object's own code raises
        raise NotStackableError(f"an attribute that cannot be compared: {reason}") from None


def _compare(gradients: Tensors, stack: _Stack, client: int) -> None:
    job, rows = stack.jobs[client], torch.from_numpy(stack._rows[client][0][1]).to(stack.device)
    parameters = dict(job.module.named_parameters())
    loss = job.trainer.loss(job.module(job.trainer.x[rows]), job.trainer.y[rows])
    trained = [parameters[name] for name in stack.trained]
    alone = torch.autograd.grad(loss, trained, allow_unused=True)
    for name, gradient in zip(stack.trained, alone, strict=True):
        if (gradient is None) != (name not in gradients):
            raise NotStackableError(f"{name} has a gradient in one way only")
        if gradient is not None:
            limit = TOLERANCE * gradient.abs().max() + 1e-7
            if not bool(((gradients[name] - gradient).abs() <= limit).all() | ~gradient.isfinite().all()):
                raise NotStackableError(f"another gradient of {name}")


def _no_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise NotStackableError("the task has no loss for each example")


def _copied(values: Tensors) -> Tensors:
    return {name: value.detach().clone() for name, value in values.items()}


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _example_weights(trainer: Trainer) -> torch.Tensor:
    weights = trainer.class_weights
    return torch.ones(len(trainer.y), device=trainer.device) if weights is None else weights[trainer.y[:]]
