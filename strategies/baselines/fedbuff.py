"""FedBuff: asynchronous rounds. The server takes a step whenever K uploads have come, from whoever is first.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022 (https://arxiv.org/abs/2106.06639). Symbols: v → the server's version, the number of its steps; w_v → its
model; K → uploads in the buffer; M_c → clients that train at a time (``clients-per-round``); y → a client's model after
its E epochs from w_v; τ → versions since a client's start; s(τ) = (1 + τ)^-a → its weight; η_g → the server's rate.

A client starts from the newest model. When it is done, an idle client starts in its place, and the server adds
s(τ)·(y - w_v) to its buffer. At K uploads it takes w ← w + η_g·(1/K)·Σ s(τ)·(y - w_v), and empties the buffer. It
divides by K and not by Σ s, so that a buffer of stale uploads moves the model less.

**Time is simulated** on every engine, also where clients are real ones: who is first follows from what the work takes
on their devices of the profile ``devices``. Bytes, steps and multiply-adds of a job follow from the model and n_i, so
its end is known at its start. The state has the clock, the jobs and the uploads that have not come yet by that clock: a
resumed run goes on to the same bits (docs/decisions/0043-asynchronous-rounds.md).

**A round** trains the clients that start from the newest model before the server can go on, so each downloads what is
evaluated, too. Then the clock advances to the next start of which the training is needed. So a version takes one round,
or a few if fast clients start from it more than once.

*Received* is the newest model, which is deployed; *trained* is a client's model after local epochs from it, *kept* that
of its last job, which may not have come yet. Deviations: clients send y, which is as many bytes, and the server
subtracts; statistics of normalisation layers are means over the buffer, with the weights of the uploads. NOTES.md has
what was decided besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from sepal.config import Settings
from sepal.errors import ModelError
from sepal.layout import statistics, trained
from sepal.method import ClientInfo, Metrics, Payload, Plan, ServerBase, Uploads, Weights, dense, derive
from sepal.protocol.payloads import seal
from sepal.simulated_time import ClientWork, DeviceProfile, rates, read_profile, seconds
from sepal.strategies.baselines.fedavg import FedAvgClient
from sepal.strategies.registration import register
from sepal.training.batches import smallest_batch
from sepal.training.multiply_adds import costs
from sepal.training.network import Network
from sepal.wire import rounded

DEVICES = "phones"
Sums = Mapping[str, npt.NDArray[np.float64]]


class Hyper(Settings):
    """FedBuff's keys."""

    buffer: int = Field(10, ge=1, description="K, uploads in the buffer: with so many the server takes a step")
    exponent: float = Field(0.5, ge=0, description="a in the weight (1 + τ)^-a of an upload that is τ versions old")
    most_staleness: int = Field(0, ge=0, description="uploads that are more versions old are dropped; 0: none is")
    rate: float = Field(1.0, gt=0, description="η_g, the server's learning rate")
    beta: float = Field(0.0, ge=0, lt=1, description="momentum of the server")
    weights: Literal["equal", "examples"] = Field(
        "equal", description="client's weight in the buffer: 1, or n_i divided by the mean over all clients"
    )


@dataclass(frozen=True)
class ClientJob:
    """A client's training under way.

    Attributes:
        version: The version from which it started.
        end: When its upload comes, in seconds of simulated time.
        trained: Whether a round has had it.
        change: y - w_v as the server has read it, float32 by name, of statistics their values; empty before it is
            trained, and for an upload that was refused or lost.
    """

    version: int
    end: float
    trained: bool = False
    change: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        weights: The newest model, float32 by name.
        version: v.
        stepped: Seconds of simulated time when that model came to be.
        now: Seconds when the last upload came; 0 before round 1.
        examples: n_i by client, of all that may train.
        jobs: By client.
        started: Jobs so far.
        count: Uploads in the buffer.
        weight: Σ c over them, with c = s(τ) or, with ``weights = examples``, s(τ)·n_i / mean n.
        sums: Σ c·(y - w_v), of statistics Σ c·y, by name; empty if the buffer is.
        velocity: The momentum by name; empty without.
    """

    weights: Weights
    version: int = 0
    stepped: float = 0.0
    now: float = 0.0
    examples: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, ClientJob] = field(default_factory=dict)
    started: int = 0
    count: int = 0
    weight: float = 0.0
    sums: Sums = field(default_factory=dict)
    velocity: Sums = field(default_factory=dict)

    @property
    def starting(self) -> list[str]:
        """Names of the clients whose jobs no round has had; they start from the newest model."""
        return sorted(name for name, job in self.jobs.items() if not job.trained)


class FedBuffServer(ServerBase[ServerState]):
    """Takes uploads in the order of simulated time."""

    reads_uploads = "the version from which each client has trained"
    learns_novel = False  # they never train
    unbounded = ("sums",)  # of K uploads, each of which is bounded

    def init(self) -> ServerState:
        """Start from W_0; nobody trains yet."""
        return ServerState(dict(self.setup.weights))

    def joined(self, state: ServerState, clients: Sequence[ClientInfo]) -> ServerState:
        """Add clients, which start as far as M_c allows."""
        examples = {**state.examples, **{client.name: client.examples for client in clients}}
        return self._with_starts(replace(state, examples=examples))

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Forget clients, and what they have sent that has not come yet; others start in their place after a round."""
        examples = {name: count for name, count in state.examples.items() if name not in names}
        jobs = {name: job for name, job in state.jobs.items() if name not in names}
        return replace(state, examples=examples, jobs=jobs)

    def participants(self, state: ServerState, plan: Plan) -> Sequence[str]:
        """Return the clients that start."""
        return state.starting

    def clock(self, state: ServerState) -> float:
        """Return when the newest model came to be."""
        return state.stepped

    def model(self, state: ServerState) -> Weights:
        """Return the newest model."""
        return state.weights

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Keep the uploads until they come, and take the steps up to the next start that needs a round."""
        jobs, examples = dict(state.jobs), dict(state.examples)
        for name in state.starting:
            jobs[name] = replace(jobs[name], trained=True)
        for upload in uploads:
            name, tensors = upload.client.name, upload.payload.tensors
            change = {p.name: tensors[p.name].dense() for p in self.layout}
            for p in trained(self.layout):
                change[p.name] = change[p.name] - self._sent(state, p.name, plan)
            jobs[name] = replace(jobs[name], change=change)
            examples[name] = upload.client.examples
        after, staleness, dropped = self._advanced(replace(state, jobs=jobs, examples=examples))
        return after, {
            "version": after.version,
            "seconds": after.stepped,
            "came": len(staleness),
            "dropped": dropped,
            "buffered": after.count,
            "staleness": sum(staleness) / max(1, len(staleness)),
        }

    def _sent(self, state: ServerState, name: str, plan: Plan) -> npt.NDArray[np.float32]:
        """Return a tensor of the newest model as clients have it; W_0, which they derive, is not rounded."""
        array = state.weights[name]
        return array if plan.round == 1 else rounded(array, self.coding).reshape(array.shape)

    def _advanced(self, state: ServerState) -> tuple[ServerState, list[int], int]:
        """Let uploads come in the order of time, until the server needs one that no round has trained.

        That is where it would come next, or where the next one fills the buffer: whoever starts before gets this model.
        At the same time, uploads come first, by their clients' names, and then clients start.

        Returns:
            The state, the staleness of the uploads that came, and how many of them were dropped.
        """
        staleness, dropped = list[int](), 0
        while True:
            state = self._with_starts(state)
            client = min(state.jobs, key=lambda name: (state.jobs[name].end, name), default="")
            if not client or not state.jobs[client].trained:
                return state, staleness, dropped
            job = state.jobs[client]
            age = state.version - job.version
            counts = bool(job.change) and not 0 < self.hyper.most_staleness < age
            if counts and state.count + 1 == self.hyper.buffer and state.starting:
                return state, staleness, dropped
            remaining = {name: under_way for name, under_way in state.jobs.items() if name != client}
            state = replace(state, jobs=remaining, now=job.end)
            if job.change:
                staleness.append(age)
                dropped += not counts
            if counts:
                state = self._buffered(state, job.change, self._share(state, client, age))

    def _with_starts(self, state: ServerState) -> ServerState:
        """Return the state with jobs of clients drawn from the idle ones, so that M_c train, if no upload comes now."""
        idle = sorted(state.examples.keys() - state.jobs.keys())
        most = self.setup.config.clients_per_round or len(state.examples)
        number = min(most - len(state.jobs), len(idle))
        if number <= 0 or any(job.end <= state.now for job in state.jobs.values()):
            return state
        drawn = derive(self.setup.config.seed, "fedbuff", state.started).choice(len(idle), number, replace=False)
        jobs = dict(state.jobs)
        for name in sorted(idle[place] for place in drawn):
            spent = self.seconds(name, state.examples[name], first=not state.now)
            jobs[name] = ClientJob(state.version, state.now + spent)
        return replace(state, jobs=jobs, started=state.started + number)

    def _share(self, state: ServerState, client: str, staleness: int) -> float:
        """Return c, the weight of an upload."""
        share = float((1 + staleness) ** -self.hyper.exponent)
        if self.hyper.weights == "equal":
            return share
        return share * state.examples[client] * len(state.examples) / sum(state.examples.values())

    def _buffered(self, state: ServerState, change: Weights, share: float) -> ServerState:
        """Return the state with an upload more in the buffer, after a step if that is full."""
        sums = {
            name: np.asarray(state.sums.get(name, 0.0) + share * array.astype(np.float64))
            for name, array in change.items()
        }
        state = replace(state, sums=sums, count=state.count + 1, weight=state.weight + share)
        if state.count < self.hyper.buffer:
            return state
        weights, velocity = dict(state.weights), dict[str, npt.NDArray[np.float64]]()
        for p in trained(self.layout):
            step = sums[p.name] / state.count
            if self.hyper.beta:
                step = velocity[p.name] = np.asarray(self.hyper.beta * state.velocity.get(p.name, 0.0) + step)
            weights[p.name] = np.asarray(weights[p.name] + self.hyper.rate * step, np.float32)
        for p in statistics(self.layout):
            weights[p.name] = np.asarray(sums[p.name] / state.weight, np.float32)
        version, empty = state.version + 1, dict[str, npt.NDArray[np.float64]]()
        after = replace(state, weights=weights, version=version, stepped=state.now, velocity=velocity)
        return replace(after, sums=empty, count=0, weight=0.0)

    def seconds(self, client: str, examples: int, first: bool = False) -> float:
        """Return what a job takes on the client's device.

        Args:
            client: Its name.
            examples: n_i.
            first: Whether it is of round 1, in which nothing is downloaded.
        """
        config = self.setup.config
        of_device = rates(self._profile, [client], config.seed)
        passed = examples if examples >= self._smallest_batch else 0
        steps = config.local_epochs * min(-(-passed // config.batch_size), passed // self._smallest_batch)
        cost = config.local_epochs * passed * self._example_cost if of_device[0, 3] else 0.0  # else nobody asks for it
        work = ClientWork(0 if first else self._bytes, self._bytes, 2, cost, steps)
        return float(seconds(np.array([work], np.float64), of_device)[0])

    @cached_property
    def _profile(self) -> DeviceProfile:
        return read_profile(self.setup.config.devices or DEVICES)

    @cached_property
    def _bytes(self) -> int:
        """Bytes of a model, up or down."""
        return len(seal(Payload(dense(self.setup.weights, self.layout, self.coding))).data)

    @cached_property
    def _smallest_batch(self) -> int:
        return smallest_batch(self.setup.make())

    @cached_property
    def _example_cost(self) -> float:
        """Multiply-adds of an example, forward and backward, as clients count them.

        Raises:
            ModelError: The model takes no example of zeros.
        """
        module = Network(self.setup.make()).module.requires_grad_(True)
        for kind in (torch.float32, torch.int64):
            try:
                return costs(module, torch.zeros(1, *self.setup.input_shape, dtype=kind), {})
            except Exception:  # such as an embedding's, of numbers that are no tokens
                continue
        expected = "one that takes an example of zeros, by which fedbuff counts the work of a job"
        raise ModelError("model", f"{expected} (or devices with step-seconds)", "another")


class FedBuffClient(FedAvgClient):
    """FedAvg's client."""

    private_phases = ()
    fixed_keys = MappingProxyType(
        {
            "oversample": "whose asynchrony is in simulated time: nobody is left out for being late",
            "deadline": "whose asynchrony is in simulated time: nobody is left out for being late",
            "on-missing": "whose asynchrony is in simulated time: to go on in the order of real arrivals is not built",
            "min-replies": "whose rounds may have a single upload",
            "drift.name": "whose rounds are no times by which data could change",
        }
    )


FedBuff = register(
    "fedbuff",
    "Asynchronous FedAvg in simulated time, with a buffer of uploads",
    "Nguyen et al., AISTATS 2022",
    FedBuffServer,
    FedBuffClient,
    Hyper,
    defaults={"devices": DEVICES},
    deployed="received",
    one_model=True,
)
