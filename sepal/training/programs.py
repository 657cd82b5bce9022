"""Captured steps: a training step on a device as one program, which is replayed for each batch of each client.

A step of a small model is a hundred operations that a GPU finishes sooner than the host can ask for them. CUDA can
record them once, as a graph, and repeat them on the same tensors. So what changes from step to step and from client to
client is in tensors whose addresses stay: the network's parameters, the client's examples, the rows of each batch and
their share of the loss, the learning rate, and what the method's hooks declare
(:class:`sepal.training.capturable.Capturable`). Batches are filled up with examples that count nothing, so that one
program serves all sizes; a model that would notice gets a program for each size.

A program is captured for a network, what is trained, the optimizer, the size of a batch, and the hooks' constants.
Before it is used, one replay is compared with one usual step from the same values; if they differ, or if anything
cannot be captured, clients of that kind train as usual, and the log says why. Programs are kept with their network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn

from sepal.errors import one_line
from sepal.training.capturable import Capturable, Objective
from sepal.training.columns import StreamColumn, read_batches
from sepal.training.device_steps import DeviceSteps
from sepal.training.hooks import Hooks, do_nothing, no_epoch
from sepal.training.losses import Losses
from sepal.training.module_state import fingerprint, is_known
from sepal.training.network import Network
from sepal.training.sgd_adam import Adam
from sepal.training.stacked import Fitted, Job

if TYPE_CHECKING:
    from sepal.training.trainer import Trainer

log = logging.getLogger("sepal")

MOST_PROGRAMS = 8  # kept with a network
MOST_STEPS = 32  # steps captured for a program: one for each size of a batch, and for each choice of a loss
LEAST_ROWS = 16  # of steps and of examples for which a program has room: powers of two from here
WARM_UP = 3  # steps before a capture, in which libraries choose what to do
# How far a replay may be from the usual step, as a share of the step's length. Adam's first step has the same length
# in each entry, also in those whose gradient is rounding.
TOLERANCE, TOLERANCE_OF_ADAM = 0.01, 0.1

Step: TypeAlias = Callable[[], None]
Recorder: TypeAlias = Callable[[Step], Step]
"""Returns what repeats a step; it may call the step a few times before."""


class NotCapturableError(Exception):
    """This kind of training cannot be captured."""


class CudaGraphs:
    """Records steps as CUDA graphs, which share their memory: only one of them may run at a time.

    Args:
        device: Such as ``cuda`` or ``cuda:1``, which need not be the current one.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pool: Any = None

    def __call__(self, step: Step) -> Step:
        """Return what replays the step on the stream that is current then."""
        with torch.cuda.device(self._device):
            graph = self._recorded(step)

        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay

    def _recorded(self, step: Step) -> torch.cuda.CUDAGraph:
        aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # The device's own generator, from which dropout draws, is registered by the capture itself.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        return graph


def recorder(device: str) -> Recorder | None:
    """Return what captures steps on a device; None where nothing can."""
    return CudaGraphs(device) if device.partition(":")[0] == "cuda" else None


def programs_for(device: str, capture: bool) -> Programs | None:
    """Return where a process keeps what it knows of captured steps; None without them."""
    record = recorder(device) if capture else None
    if capture and record is None:
        log.info("engine.capture: steps are captured on CUDA only; on %s they are made one by one", device)
    return None if record is None else Programs(record)


class Programs:
    """Trains clients by captured steps.

    Args:
        record: Captures a step.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self.reasons: dict[str, None] = {}  # why something was not captured, each once, in order

    def begin(self, job: Job, networks: Sequence[Network]) -> PendingSteps | None:
        """Ask the device for all steps of a job, and return what waits for them; None if it has to train as usual.

        Args:
            job: A call of :meth:`sepal.training.trainer.Trainer.fit`. Unchanged if None is returned.
            networks: The networks of which its module consists, the one that it is kept with first.
        """
        reason = unfit(job) or ("" if networks else "its module is none of the process's networks")
        if reason:
            self._refuse(reason)
            return None
        rows = [(epoch, batch) for epoch in range(1, job.passes + 1) for batch in job.rows(epoch)]
        if not rows:
            return None
        common = _kind(job), tuple(id(network) for network in networks)
        refused = networks[0].programs
        for filled in (True, False):
            if (filled and not _can_be_filled(job)) or (common, filled) in refused:
                continue
            try:
                return self._begin(job, networks, rows, common, filled)
            except NotCapturableError as error:
                self._refuse(f"{error}{' (with batches filled up)' if filled else ''}")
            except torch.OutOfMemoryError as error:
                self._refuse(one_line(str(error)))
            refused[common, filled] = None
        return None

    def _refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons[reason] = None
            log.debug("steps are not captured: %s", reason)

    def _begin(
        self,
        job: Job,
        networks: Sequence[Network],
        rows: Sequence[tuple[int, torch.Tensor]],
        common: Hashable,
        filled: bool,
    ) -> PendingSteps:
        longest, most = max(len(batch) for _, batch in rows), job.trainer.config.batch_size
        size = max(longest, min(most, _room(longest, 1))) if filled else max(longest, most)
        shape = ProgramShape(size, _room(len(rows), LEAST_ROWS), _room(len(job.trainer.y), LEAST_ROWS), filled)
        known_programs, key = networks[0].programs, (common, shape)
        program: Program | None = known_programs.pop(key, None)
        if program is None or not program.fits(job):
            program = Program(job, networks, shape, self._record)
        known_programs[key] = program
        programs = [old_key for old_key, program in known_programs.items() if program is not None]
        for old_key in programs[:-MOST_PROGRAMS]:
            del known_programs[old_key]
        try:
            return program.begin(job, rows)
        except BaseException:
            known_programs.pop(key, None)
            raise


@dataclass(frozen=True)
class ProgramShape:
    """For what a program has room: examples of a batch, steps, examples of a client; and whether batches are filled."""

    batch: int
    steps: int
    examples: int
    filled: bool


class Program:
    """The captured steps of one network for one :class:`ProgramShape` and kind of hooks.

    Args:
        job: The first job.
        networks: The networks of which its module consists; they are kept alive.
        shape: For what it has room.
        record: Captures a step.
    """

    def __init__(self, job: Job, networks: Sequence[Network], shape: ProgramShape, record: Recorder) -> None:
        trainer, device = job.trainer, job.trainer.device
        self.module, self.shape, self._networks, self._record = job.module, shape, tuple(networks), record
        self._device = device
        self._cast: Callable[[], AbstractContextManager[Any]] = trainer.cast
        self._graphs: dict[Hashable, Step] = {}
        self._parameters = [parameter for parameter in job.module.parameters() if parameter.requires_grad]
        self._steps = DeviceSteps(job.optimizer, device)
        self._x, self._y = (
            torch.zeros((shape.examples, *part.shape[1:]), dtype=part.dtype, device=device) for part in _data(trainer)
        )
        steps = shape.steps + WARM_UP + 1  # a capture goes beyond the last one
        self._index = torch.zeros((steps, shape.batch), dtype=torch.int64, device=device)
        self._share = torch.zeros((steps, shape.batch), device=device)
        self._last = torch.zeros(steps, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._total = torch.zeros((), device=device)
        weights = trainer.class_weights
        self._weights = None if weights is None else weights.clone()
        self._losses = Losses(trainer.task, self._weights, trainer.config.label_smoothing)
        twins: dict[int, torch.Tensor] = {}
        self._twins = [
            {name: twins.setdefault(id(tensor), tensor.detach().to(device).clone()) for name, tensor in named.items()}
            for named in _tensors(job.hooks)
        ]
        self._hooks = job.hooks
        self._loose = _loose(job.module, networks)
        self.addresses = self._addresses()

    def static(self) -> list[torch.Tensor]:
        """Return all tensors whose addresses must stay."""
        buffers = [self._x, self._y, self._index, self._share, self._last, self._step, self._total]
        weights = [] if self._weights is None else [self._weights]
        twins = [tensor for named in self._twins for tensor in named.values()]
        return [*buffers, *weights, *twins, *self._steps.tensors, *_module_tensors(self.module).values()]

    def fits(self, job: Job) -> bool:
        """Return whether the module's tensors are still where they were, and are those of ``job``."""
        tensors, job_tensors = _module_tensors(self.module), _module_tensors(job.module)
        same = all(tensors[name] is job_tensors[name] for name in tensors if name not in self._loose)
        return tensors.keys() == job_tensors.keys() and same and self.addresses == self._addresses()

    def begin(self, job: Job, rows: Sequence[tuple[int, torch.Tensor]]) -> PendingSteps:
        """Copy what is the job's into the program, and ask the device for all steps.

        Raises:
            UnfitError: A step cannot be captured. The module is as it was.
        """
        begun, sizes = time.monotonic(), [len(batch) for _, batch in rows]
        self._take(job, rows)
        choices = _loss_of(job).choices(sizes)
        keys = [(choice, None if self.shape.filled else size) for choice, size in zip(choices, sizes, strict=True)]
        if lacking := {key: at for at, key in reversed([*enumerate(keys)]) if key not in self._graphs}:
            if len(self._graphs) + len(lacking) > MOST_STEPS:
                raise NotCapturableError(f"more than {MOST_STEPS} sizes of batches, or choices")
            with _generators(job.trainer.device), self._unchanged():
                for key, at in lacking.items():
                    self._capture(key, at, rows[at][1])
        for at, ((epoch, _), key) in enumerate(zip(rows, keys, strict=True)):
            self._graphs[key]()
            if job.hooks.after_epoch is not no_epoch and (at + 1 == len(rows) or rows[at + 1][0] != epoch):
                job.hooks.after_epoch(job.module, epoch)
        return PendingSteps(self, job, begun, sizes, rows[-1][1])

    def end(self, job: Job, sizes: Sequence[int], last: torch.Tensor) -> float:
        """Give the job what is its own, wait for the device, and return the mean loss of the last epoch."""
        self._steps.end(job.optimizer)
        with torch.no_grad():
            for hook, twins in zip(_hooks(job.hooks), self._twins, strict=True):
                for name, tensor in hook.changed_tensors().items():
                    tensor.copy_(twins[name])
            for name, tensor in self._loose_of(job):
                tensor.copy_(_module_tensors(self.module)[name])
        for parameter in self._parameters:
            parameter.grad = None
        _loss_of(job).ended(sizes, lambda: next(iter(read_batches(*_data(job.trainer), [last]))))
        return float(self._total) / len(job.trainer.y)

    @torch.no_grad()
    def _take(self, job: Job, rows: Sequence[tuple[int, torch.Tensor]]) -> None:
        trainer, shape, length = job.trainer, self.shape, len(rows)
        for static, part in zip((self._x, self._y), _data(trainer), strict=True):
            static[: len(part)].copy_(part)
        index, present = np.zeros((length, shape.batch), np.int64), np.zeros((length, shape.batch), np.float32)
        last = np.zeros(length, np.float32)
        for step, (epoch, batch) in enumerate(rows):
            index[step] = int(batch[0])  # what fills up is an example of the same batch
            index[step, : len(batch)] = batch.numpy()
            present[step, : len(batch)] = 1
            last[step] = len(batch) * (epoch == rows[-1][0])
        self._index[:length].copy_(torch.from_numpy(index))
        share = torch.from_numpy(present).to(trainer.device)
        counts = share
        if trainer.class_weights is not None and self._weights is not None:
            self._weights.copy_(trainer.class_weights)
            counts = share * self._weights[self._y[self._index[:length]]]
        self._share[:length].copy_(share / counts.sum(1, keepdim=True))
        self._last[:length].copy_(torch.from_numpy(last))
        self._step.zero_()
        self._total.zero_()
        if not self._steps.begin(job.optimizer):
            raise NotCapturableError("an optimizer whose parameters have made different numbers of steps")
        for hook, twins in zip(_hooks(job.hooks), self._twins, strict=True):
            for name, tensor in hook.tensors().items():
                twins[name].copy_(tensor)
        for name, tensor in self._loose_of(job):
            _module_tensors(self.module)[name].copy_(tensor)

    def _loose_of(self, job: Job) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the job's module that are not its networks'; none if it is the program's module."""
        if job.module is not self.module:
            yield from ((name, tensor) for name, tensor in _module_tensors(job.module).items() if name in self._loose)

    def _body(self, choice: Hashable, size: int | None) -> Step:
        """Return one step, which reads its number from the device."""
        share = torch.zeros(())

        def filled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return (self._losses.by_example(outputs, targets) * share).sum()

        loss_of, before_step, after_step = self._captured(
            self._hooks, choice, filled if size is None else self._losses.mean, self._steps
        )

        def step() -> None:
            nonlocal share
            rows = self._index.index_select(0, self._step)[0]
            share = self._share.index_select(0, self._step)[0]
            rows = rows if size is None else rows[:size]
            x, y = self._x.index_select(0, rows), self._y.index_select(0, rows)
            for parameter in self._parameters:
                parameter.grad = None
            with self._cast():
                loss = loss_of(self.module, x, y)
            self._set_gradients(loss)
            before_step(self.module)
            self._steps.step()
            after_step(self.module)
            self._total.add_(loss.detach() * self._last.index_select(0, self._step)[0])
            self._step.add_(1)

        return step

    def _set_gradients(self, loss: torch.Tensor) -> None:
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def _captured(
        self, hooks: Hooks, choice: Hashable, objective: Objective, optimizer: Any
    ) -> tuple[Callable[..., torch.Tensor], Callable[..., None], Callable[..., None]]:
        """Return the hooks' loss, ``before_step`` and ``after_step`` on the program's tensors."""
        loss, before, after = _hooks(hooks)
        places = zip((loss.chosen(choice), before, after), self._twins, strict=True)
        loss_hook, before_hook, after_hook = (hook.captured(twins, objective, optimizer) for hook, twins in places)
        return loss_hook, before_hook, after_hook

    def _capture(self, key: tuple[Hashable, int | None], at: int, rows: torch.Tensor) -> None:
        """Capture a step and compare one replay of it with the usual step on ``rows``, int64 (m,)."""
        module = self.module
        self._step.fill_(at)
        start = self._copies()
        holds = _holds(module)
        try:
            with _generators(self._device):  # dropout draws the same in both
                expected = self._usual(key[0], rows)
            self._put_back(start)
            with _generators(self._device):
                graph = self._record(self._body(*key))
            self._put_back(start)
            graph()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # CUDA's own, or whatever a model's code raises under capture
            raise NotCapturableError(one_line(f"{type(error).__name__}: {error}")) from None
        if self.addresses != self._addresses() or holds != _holds(module):
            raise NotCapturableError("the model changes what it holds in training, or draws numbers on the host")
        self._compare(start, expected, self._copies())
        self._put_back(start)
        self._graphs[key] = graph

    def _usual(self, choice: Hashable, rows: torch.Tensor) -> list[torch.Tensor]:
        """Make one step as :meth:`sepal.training.trainer.Trainer.fit` does, and return what is afterwards."""
        optimizer = self._steps.plain()
        loss_of, before_step, after_step = self._captured(self._hooks, choice, self._losses.mean, optimizer)
        rows = rows.to(self._x.device)
        for parameter in self._parameters:
            parameter.grad = None
        with self._cast():
            loss = loss_of(self.module, self._x[rows], self._y[rows])
        self._set_gradients(loss)
        before_step(self.module)
        optimizer.step()
        after_step(self.module)
        for parameter in self._parameters:
            parameter.grad = None
        return self._copies()

    def _compare(
        self, before: Sequence[torch.Tensor], usual: Sequence[torch.Tensor], replayed: Sequence[torch.Tensor]
    ) -> None:
        """Raise if a replay and the usual step, from the same values, do not lead to the same."""
        adam = isinstance(self._steps.plain(), Adam)
        for kind, count in (("parameters", len(self._parameters)), ("buffers and hooks' tensors", None)):
            places = slice(count) if count is not None else slice(len(self._parameters), self._compared)
            start, replayed_values, usual_values = (_flat(tensors[places]) for tensors in (before, replayed, usual))
            if not bool(usual_values.isfinite().all()):
                raise NotCapturableError(f"{kind} that are not finite after a step")
            allowed = (TOLERANCE_OF_ADAM if adam else TOLERANCE) * (
                usual_values - start
            ).norm() + 1e-6 * usual_values.norm()
            if not bool((replayed_values - usual_values).norm() <= allowed):
                raise NotCapturableError(f"a replay leads to other {kind} than the usual step")

    @property
    def _compared(self) -> int:
        """How many of :meth:`_all` a usual step moves: not the program's own."""
        return len(self._all()) - 2 - len(self._steps.tensors)

    def _all(self) -> list[torch.Tensor]:
        """Return what a step moves: parameters, buffers, hooks' tensors, and the program's own."""
        parameter_ids = set(map(id, self._parameters))
        others = [tensor for tensor in _module_tensors(self.module).values() if id(tensor) not in parameter_ids]
        twins = {id(tensor): tensor for named in self._twins for tensor in named.values()}
        return [*self._parameters, *others, *twins.values(), self._step, self._total, *self._steps.tensors]

    def _copies(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in self._all()]

    @torch.no_grad()
    def _put_back(self, copies: Sequence[torch.Tensor]) -> None:
        for tensor, copy in zip(self._all(), copies, strict=True):
            tensor.copy_(copy)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = self._copies()
        try:
            yield
        finally:
            self._put_back(before)
            for parameter in self._parameters:
                parameter.grad = None

    def _addresses(self) -> tuple[tuple[str, int, bool], ...]:
        named = _module_tensors(self.module).items()
        return tuple((name, tensor.data_ptr(), tensor.requires_grad) for name, tensor in named)


@dataclass
class PendingSteps:
    """Steps that the device was asked for; :meth:`result` waits for them."""

    program: Program
    job: Job
    begun: float
    sizes: Sequence[int]
    last: torch.Tensor

    def result(self) -> Fitted:
        """Wait for the device and return what training has cost and given."""
        loss = self.program.end(self.job, self.sizes, self.last)
        return Fitted(loss, time.monotonic() - self.begun, len(self.sizes), sum(self.sizes))


class _Nothing(Capturable):
    """No hook."""

    def captured(self, tensors: Any, objective: Objective, optimizer: Any) -> Callable[..., Any]:
        return do_nothing

    def constants(self) -> Hashable:
        return ()


class _TasksLoss(_Nothing):
    """The task's loss, where a method has none of its own."""

    def captured(self, tensors: Any, objective: Objective, optimizer: Any) -> Callable[..., Any]:
        return lambda module, x, y: objective(module(x), y)


def unfit(job: Job) -> str:
    """Return why a job's steps cannot be captured, as far as it shows before one is tried; empty if nothing does."""
    trainer = job.trainer
    if trainer.augment is not None:
        return "augment changes inputs on the host"
    if isinstance(trainer.x, StreamColumn) or isinstance(trainer.y, StreamColumn):
        return "a Dataset is read batch by batch"
    parts = {"loss": job.hooks.loss, "before_step": job.hooks.before_step, "after_step": job.hooks.after_step}
    for name, hook in parts.items():
        if hook is not None and hook is not do_nothing and not isinstance(hook, Capturable):
            return f"{getattr(hook, '__qualname__', type(hook).__qualname__)} ({name}) does not say what it depends on"
    return ""


def _hooks(hooks: Hooks) -> tuple[Capturable, Capturable, Capturable]:
    before, after = (
        hook if isinstance(hook, Capturable) else _Nothing() for hook in (hooks.before_step, hooks.after_step)
    )
    return hooks.loss if isinstance(hooks.loss, Capturable) else _TasksLoss(), before, after


def _loss_of(job: Job) -> Capturable:
    return _hooks(job.hooks)[0]


def _tensors(hooks: Hooks) -> list[dict[str, torch.Tensor]]:
    return [hook.tensors() for hook in _hooks(hooks)]


def _data(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = trainer.x, trainer.y
    if isinstance(x, StreamColumn) or isinstance(y, StreamColumn):
        raise NotCapturableError("a Dataset is read batch by batch")
    return x, y


def _kind(job: Job) -> Hashable:
    """Return all on which a captured step depends, but its network and its :class:`ProgramShape`."""
    trainer, module, optimizer = job.trainer, job.module, job.optimizer
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    groups = tuple(
        (tuple(names.get(weight, "") for weight in group["params"]), group["weight_decay"], group.get("momentum"))
        for group in optimizer.param_groups
    )
    free = tuple(name for name, parameter in module.named_parameters() if parameter.requires_grad)
    modes = tuple(part.training for part in module.modules())
    hooks = tuple((type(hook), hook.constants()) for hook in _hooks(job.hooks))
    tensors = tuple(
        (name, tuple(tensor.shape), tensor.dtype) for named in _tensors(job.hooks) for name, tensor in named.items()
    )
    parts = tuple((tuple(part.shape[1:]), part.dtype) for part in _data(trainer))
    config, task = trainer.config, trainer.task
    loss = id(task), trainer.class_weights is None, config.label_smoothing, config.precision
    optimizer_kind = type(optimizer), optimizer.most_norm
    return type(module), str(module), groups, free, modes, hooks, tensors, parts, loss, optimizer_kind, trainer.device


def _can_be_filled(job: Job) -> bool:
    """Return whether batches may be filled up: no example affects another, and no number is drawn for one."""
    task = job.trainer.task
    if not (task.averages and task.loss_each is not None and _loss_of(job).FILLED):
        return False
    if getattr(job.module, "least_batch", 1) > 1:
        return False
    kinds = nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd | nn.RNNBase
    return not any(isinstance(part, kinds) for part in job.module.modules())


def _room(count: int, least: int) -> int:
    """Return the smallest power of two that is at least ``count`` and ``least``."""
    return max(least, 1 << (count - 1).bit_length())


def _module_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _loose(module: nn.Module, networks: Sequence[Network]) -> frozenset[str]:
    """Return the names of the module's tensors that belong to none of its networks."""
    network_ids = {id(tensor) for network in networks for tensor in _module_tensors(network.module).values()}
    return frozenset(name for name, tensor in _module_tensors(module).items() if id(tensor) not in network_ids)


def _holds(module: nn.Module) -> bytes:
    """Return bytes that change with the attributes of layers that are not torch's or Sepal's, and with generators."""
    if all(is_known(layer) for layer in module.modules()):
        return b""
    try:
        return fingerprint(module, buffers=False)
    except Exception as error:  # whatever an object's own code raises
        raise NotCapturableError(f"an attribute that cannot be compared: {one_line(str(error))}") from None


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    parts = [tensor.flatten().double() for tensor in tensors]
    return torch.cat(parts) if parts else torch.zeros(1, dtype=torch.float64)


@contextmanager
def _generators(device: str) -> Iterator[None]:
    """Put back the state of the generator from which a device draws."""
    on_device = torch.device(device).type == "cuda"
    before = torch.cuda.get_rng_state(device) if on_device else torch.get_rng_state()
    try:
        yield
    finally:
        torch.cuda.set_rng_state(before, device) if on_device else torch.set_rng_state(before)
