"""The local training loop.

All methods use the same loop. A method adds its own loss, gradient mask or projection with
:class:`~sepal.training.hooks.Hooks`, and may run the loop more than once a round. All randomness is derived from (seed,
client, round, purpose), so a repeated round has the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sepal.config import RunConfig
from sepal.protocol.types import ClientInfo, Weights
from sepal.rng import derive, derive_seed
from sepal.tasks.builtin import BY_CLASS
from sepal.tasks.learning import Task
from sepal.training.augment import Augment
from sepal.training.batches import shuffled, smallest_batch
from sepal.training.columns import Part, read_batches, split
from sepal.training.devices import seeded
from sepal.training.drifting import Drifting
from sepal.training.hooks import Hooks, Loss, cross_entropy, frozen
from sepal.training.losses import Losses, autocast
from sepal.training.meeting import Meeting
from sepal.training.module_state import Buffers
from sepal.training.multiply_adds import costs
from sepal.training.network import Network, NetworkPredictor, read_gradients
from sepal.training.optimizers import OptimizerState, ParameterGroup, Trained, load_state, make_optimizer, read_state
from sepal.training.privacy import Released, release
from sepal.training.programs import Programs
from sepal.training.reports import reported
from sepal.training.sgd_adam import Optimizer
from sepal.training.stacked import Fitted, Job
from sepal.wire.tensors import Values

__all__ = ["Hooks", "Network", "ParameterGroup", "Trainer", "cross_entropy", "frozen", "read_state"]

MOST_NETWORKS = 16  # networks kept by a process


@dataclass
class Trainer:
    """A client's data, networks and training loop.

    Attributes:
        client: The client's roster entry.
        config: The run's configuration.
        x: Inputs of the training part, (n, …), on the client's device; read when needed if a Dataset has them.
        y: int64 labels (n,), or targets of another task, on the client's device.
        x_validation, y_validation: The same of the validation part; may be empty.
        make: Builds the module of the run's model.
        networks: Networks by use, most recently used last; shared by all clients of a process.
        device: Device on which to train.
        seconds: Seconds of training since :meth:`spent` was last called.
        steps: Optimizer steps since then.
        multiply_adds: Multiply-adds since then; see :mod:`sepal.training.multiply_adds`.
        reports: The method's own figures since then; see :meth:`report`.
        secret: What the noise of ``privacy.noise`` is drawn from, known to this client only; empty to draw it from the
            run's seed, which the server knows.
        request: Digest of the message that is answered; the noise depends on it. The host sets it (:meth:`begin`).
        halvings: How often the learning rate is halved in the round that is answered (:attr:`Plan.halvings`).
        task: Targets, loss and metrics.
        class_weights: The weight of each class in the loss, float32 (classes,); None: all alike.
        augment: Changes the inputs of each training batch; None: nothing does.
        meeting: Where it meets other clients of the process to train at once; None: each trains alone.
        programs: Makes its steps as captured ones where it can; None: each step is made by itself.
        local: By name, the model's buffers that stay with the client (:mod:`sepal.training.module_state`). The host
            sets them before each message and stores them after it; training changes them. All networks of a client
            have the same, as far as they have buffers of those names.
        round: The round of the message that is answered.
        in_use: By use, the networks that were asked for in the work on that message.
        drifting: With ``drift.name``, all training examples; :attr:`x` and :attr:`y` are then those of :attr:`round`,
            and all of them before the first message.
    """

    client: ClientInfo
    config: RunConfig
    x: Part
    y: Part
    x_validation: Part
    y_validation: Part
    make: Callable[[], nn.Module]
    networks: dict[str, Network] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 0.0
    steps: int = 0
    multiply_adds: float = 0.0
    reports: dict[str, float] = field(default_factory=dict)
    secret: bytes = b""
    request: bytes = b""
    halvings: int = 0
    task: Task = BY_CLASS
    class_weights: torch.Tensor | None = None
    augment: Augment | None = None
    meeting: Meeting | None = None
    programs: Programs | None = None
    local: Buffers = field(default_factory=dict)
    round: int = 0
    in_use: dict[str, Network] = field(default_factory=dict)
    drifting: Drifting | None = None

    def begin(self, request: bytes, halvings: int) -> None:
        """Set what the work on the next message depends on: the digest of its request, and halvings of the rate."""
        self.request, self.halvings = request, halvings

    @contextmanager
    def changed(self, **fields: Any) -> Iterator[Trainer]:
        """Yield a trainer with other fields, such as ``config`` or ``y``; what it spends counts for this one, too."""
        other = replace(self, **fields)
        yield other
        for name in ("seconds", "steps", "multiply_adds", "local"):
            setattr(self, name, getattr(other, name))

    def take_up(self, round: int, local: Buffers) -> None:
        """Set the round of the next message, with its training examples, and :attr:`local`."""
        self.round, self.local = round, local
        self.in_use.clear()
        if self.drifting is not None:
            self.x, self.y = self.drifting.part(round)

    def learning_rate(self, round: int) -> float:
        """Return the run's learning rate in ``round``."""
        return self.config.learning_rate(round) * 0.5**self.halvings

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch's outputs (n, …): the task's, or of classes with weights and smoothing."""
        return Losses(self.task, self.class_weights, self.config.label_smoothing).mean(outputs, targets)

    def loss_of(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the same of a module's outputs: the loss of :meth:`fit` where a method has none of its own."""
        with self.cast():
            return self.loss(module(x), y)

    def cast(self) -> AbstractContextManager[Any]:
        """Return what forward passes and losses of training run in: autocast with ``precision = "bf16"``."""
        return autocast(self.config.precision, self.device)

    def randomness(self, round: int, purpose: str = "train") -> AbstractContextManager[None]:
        """Return what training runs in: global generators, from which dropout draws, follow from the run's seed."""
        seed = derive_seed(self.config.seed, "torch", self.client.name, round, purpose)
        return seeded(seed, self.device)

    def loss_each(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of each example (n,), for methods that declare that they need it."""
        return Losses(self.task, self.class_weights, self.config.label_smoothing).by_example(outputs, targets)

    def network(self, use: str = "model", make: Callable[[], nn.Module] | None = None) -> Network:
        """Return the network for ``use``. Its weights are arbitrary until some are loaded; all else is the client's.

        Args:
            use: A method that needs two models at once uses two names. With ``make``, the name must identify the shape
                too (``width-0.5``), because networks are shared between clients.
            make: Builds a module of another shape than the run's model, such as a narrower one.
        """
        networks = self.networks if self.meeting is None else self.meeting.networks(self.networks)
        network = networks.pop(use, None) or Network((make or self.make)(), self.device)
        networks[use] = network
        if len(networks) > MOST_NETWORKS:
            del networks[next(iter(networks))]
        network.state.restore(self.local)
        self.in_use[use] = network
        return network

    def _trained(self, module: nn.Module) -> list[Network]:
        """Return the networks that are trained where ``module`` is."""
        parts = {id(part) for part in module.modules()}
        return [network for network in self.in_use.values() if id(network.module) in parts]

    def _keep(self, module: nn.Module) -> None:
        """Keep the buffers that the training of ``module`` has moved."""
        if all(network.state.empty for network in self.in_use.values()):
            return
        for network in self._trained(module):
            self.local = network.state.kept(self.local)

    def predictor(
        self, weights: Weights, use: str = "model", make: Callable[[], nn.Module] | None = None
    ) -> NetworkPredictor:
        """Return the model with ``weights`` as a function from a batch to logits.

        The function is valid until other weights are loaded into the network for ``use``.
        """
        network = self.network(use, make)
        network.load(weights)
        return NetworkPredictor([network])

    def fit(
        self,
        module: nn.Module,
        round: int,
        hooks: Hooks | None = None,
        *,
        epochs: int | None = None,
        purpose: str = "train",
        parameters: Trained | None = None,
        optimizer: Optimizer | None = None,
        density: Mapping[str, float] | None = None,
    ) -> float:
        """Train ``module`` in place on the client's training part and return the mean loss of the last epoch.

        Batch normalisation cannot train on a batch of one example. Such a batch is merged with the others, and a client
        with a single example makes no step.

        Args:
            module: Module on the client's device; it is put into training mode.
            round: Determines the batches and the learning rate.
            hooks: The method's hooks.
            epochs: Passes over the data; None for ``local-epochs``.
            purpose: Distinguishes several calls in one round; each purpose has its own batches.
            parameters: Parameters to train, or groups with options of their own; None for all parameters.
            optimizer: An optimizer from :meth:`optimizer`, instead of ``parameters``, to keep its state.
            density: Fraction of each weight that is present, by name (default 1). Only used to count multiply-adds.

        Raises:
            ValueError: Both ``parameters`` and ``optimizer`` are given, or there is no parameter to train.
        """
        if optimizer is not None and parameters is not None:
            raise ValueError("give either parameters or an optimizer, which has its own parameters")
        hooks, kept = hooks or Hooks(), optimizer is not None
        objective = hooks.loss or self.loss_of
        module.train()
        optimizer = optimizer or self.optimizer(module, round, parameters)
        passes, smallest = self.config.local_epochs if epochs is None else epochs, smallest_batch(module)
        if self.meeting is not None:
            rows = partial(self.rows, round, purpose, smallest=smallest)
            if fitted := self.meeting.train(None if kept else Job(self, module, hooks, optimizer, passes, rows)):
                return self._count(module, fitted, density)
            for network in self._trained(module):  # that clients cannot train at once is noticed by trying
                network.state.restore(self.local)
        if self.programs is not None:
            job = Job(self, module, hooks, optimizer, passes, partial(self.rows, round, purpose, smallest=smallest))
            with self.randomness(round, purpose):
                pending = self.programs.begin(job, self._trained(module))
            if pending is not None:
                fitted = pending.result()
                self._keep(module)
                return self._count(module, fitted, density)
            for network in self._trained(module):  # what cannot be captured is noticed by trying, too
                network.state.restore(self.local)
        begun, mean, examples = time.monotonic(), torch.zeros((), device=self.device), 0
        weights = list(module.parameters())  # looked for once, because that takes as long as a small model's step
        with self.randomness(round, purpose):
            for epoch in range(1, passes + 1):
                mean.zero_()
                for x, y in self.batches(round, purpose, epoch, smallest):
                    _drop_gradients(weights)  # also of parameters that are not trained: hooks may read them
                    optimizer.zero_grad()
                    with self.cast():
                        loss = objective(module, x, y)
                    loss.backward()  # type: ignore[no-untyped-call]
                    hooks.before_step(module)
                    optimizer.step()
                    hooks.after_step(module)
                    mean += loss.detach() * len(y)
                    examples += len(y)
                    self.steps += 1
                hooks.after_epoch(module, epoch)
        self.seconds += time.monotonic() - begun
        self._keep(module)
        self.account(module, examples, density)
        return float(mean) / len(self.y)

    def _count(self, module: nn.Module, fitted: Fitted, density: Mapping[str, float] | None) -> float:
        """Count what training that was not made here has cost, and return its loss."""
        self.seconds, self.steps = self.seconds + fitted.seconds, self.steps + fitted.steps
        self.account(module, fitted.examples, density)
        return fitted.loss

    def optimizer(
        self,
        module: nn.Module,
        round: int,
        parameters: Trained | None = None,
        state: OptimizerState | None = None,
    ) -> Optimizer:
        """Return an optimizer for :meth:`fit`, new or with the state of an earlier round.

        Args:
            module: The module to train.
            round: Determines the learning rate.
            parameters: Parameters of ``module``, or groups with options of their own; None for all parameters.
            state: Result of :func:`~sepal.training.optimizers.read_state` after an earlier round.

        Raises:
            ModelError: ``state`` does not fit the parameters.
        """
        trained = list(module.parameters()) if parameters is None else parameters
        optimizer = make_optimizer(self.config, trained, round, self.halvings)
        load_state(optimizer, module, state or {})
        return optimizer

    def batches(
        self, round: int, purpose: str, epoch: int, smallest: int = 1
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield one shuffled pass over the training part; inputs are changed as the run key ``augment`` says.

        Args:
            round: Seeds the order, together with ``purpose`` and ``epoch``.
            purpose: See :meth:`fit`.
            epoch: From 1.
            smallest: Minimum batch size; see :func:`~sepal.training.batches.shuffled`.
        """
        pairs = read_batches(self.x, self.y, self.rows(round, purpose, epoch, smallest))
        if self.augment is None:
            yield from pairs
            return
        rng = derive(self.config.seed, "augment", self.client.name, round, purpose, epoch)
        for x, y in pairs:
            yield self.augment(x, rng), y

    def rows(self, round: int, purpose: str, epoch: int, smallest: int = 1) -> Sequence[torch.Tensor]:
        """Return the rows of each of :meth:`batches`, int64, on the CPU."""
        rng = derive(self.config.seed, "batches", self.client.name, round, purpose, epoch)
        return shuffled(len(self.y), self.config.batch_size, smallest, rng)

    def gradient(self, module: nn.Module, loss: Loss | None = None) -> dict[str, npt.NDArray[np.float32]]:
        """Return the gradient of the mean loss over the whole training part, float32 by parameter name.

        The module is in evaluation mode. Entries that a mask sets to 0 have a gradient too. The gradient of
        parameters that do not affect the loss is 0. Multiply-adds are counted at full density.

        Args:
            module: The module; afterwards in evaluation mode and without gradients.
            loss: Maps module, inputs and targets to the mean loss of a batch; None for the task's.
        """
        begun, objective = time.monotonic(), loss or self.loss_of
        module.eval()
        module.zero_grad(set_to_none=True)
        with self.randomness(self.round, "gradient"):
            for x, y in split(self.x, self.y):
                with self.cast():
                    share = objective(module, x, y) * (len(y) / len(self.y))
                share.backward()  # type: ignore[no-untyped-call]
        gradients = read_gradients(module)
        module.zero_grad(set_to_none=True)
        self.seconds += time.monotonic() - begun
        self.account(module, len(self.y))
        return gradients

    def release(self, update: Values, round: int) -> Released:
        """Return an update, float32 (d,), as ``privacy.*`` allows it to leave the client; see :func:`release`.

        Without ``privacy.clip`` it is returned as it is, and where the server adds the noise
        (``privacy.mode = "central"``): then what is sent is clipped later.
        """
        if not self.config.privacy.by_clients:
            return Released(update, update)
        key = self.secret or derive_seed(self.config.seed, "privacy", self.client.name).to_bytes(16, "little")
        return release(update, self.config.privacy, key, round, self.request)

    def account(self, module: nn.Module, examples: int, density: Mapping[str, float] | None = None) -> None:
        """Count the multiply-adds of ``examples`` forward and backward passes; :meth:`fit` counts its own."""
        self.multiply_adds += examples * costs(module, self.x[:1], density or {})

    def report(self, name: str, value: float) -> None:
        """Report a figure of this round; it appears in the client's ``metrics`` in metrics.jsonl.

        Call it from ``train`` or ``adapt``; a name's last value counts. See :func:`~sepal.training.reports.reported`.
        """
        self.reports = reported(self.reports, name, value)

    def spent(self) -> Mapping[str, float]:
        """Return the figures since the last call, and reset them: seconds, steps, multiply-adds, reports."""
        figures = {"seconds": self.seconds, "steps": float(self.steps), "multiply-adds": self.multiply_adds}
        figures |= self.reports
        self.seconds, self.steps, self.multiply_adds, self.reports = 0.0, 0, 0.0, {}
        return figures


def _drop_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
