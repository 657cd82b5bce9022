"""Sub-FedAvg, client algorithm: training at the masks, and a step of pruning behind three gates (Algorithms 1 and 2).

Vahidian, Morafah, Lin: "Personalized Federated Learning by Structured and Unstructured Pruning under Data
Heterogeneity", ICDCS Workshops 2021. Deviations: see NOTES.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import nn

from sepal.masks.cuts import Cut, parameters
from sepal.masks.packed import Mask, Masks, density, spread, take, unpack
from sepal.method import ClientBase, Payload, Plan, Predictor, RunSetup, Schema, Trainer, Weights
from sepal.method.tensors import at_masks
from sepal.models import cut_model, forward_multiply_adds
from sepal.strategies.subfedavg.contract import ClientState
from sepal.strategies.subfedavg.prunable import Prunable
from sepal.strategies.subfedavg.pruning import distance
from sepal.tasks.learning import SHARE
from sepal.training.evaluation import share
from sepal.training.hooks import frozen

Dense = dict[str, npt.NDArray[np.float32]]


class SubFedAvgClient(ClientBase[ClientState]):
    """Keeps m_k and θ_k. Pruned channels are removed from the module, which makes training cheaper."""

    needs_of_task = (SHARE,)

    batched = True

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.prunable, self.capacity = Prunable(setup), trainer.client.capacity

    def init(self) -> ClientState:
        """Start with all entries and without a model."""
        return ClientState()

    def kept(self, state: ClientState) -> dict[str, Mask]:
        """Return m_k by part."""
        return unpack(state.kept, self.prunable.parts)

    def personal_weights(self, state: ClientState) -> Weights:
        """Return θ_k in the full shapes, 0 where it was pruned."""
        return spread(state.model, self.prunable.masks(self.kept(state))) if state.model else {}

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit θ_g at m_k; in round 1 nothing, because W_0 is known."""
        return Schema() if plan.round == 1 else self.prunable.download_schema(self.kept(state))

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return m_k ⊙ θ_g, or without a download θ_k; None before there is one."""
        weights = self.personal_weights(state) if download is None else self.received_weights(state, download, plan)
        return self.predict(weights, self.prunable.cut(self.kept(state))) if weights else None

    # One round

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train for E epochs at m_k, prune if the gates allow it, and send changed masks and the remaining θ_k."""
        kept = self.kept(state)
        candidates: list[dict[str, Mask]] = []

        def note(weights: Dense) -> None:
            candidates.append(self.candidate(weights, kept))

        weights = self.fit_kept(self.received_weights(state, download, plan), kept, plan, note)
        first = kept if self.setup.config.local_epochs == 1 else candidates[0]
        after = self.prune(weights, kept, first)
        masks = self.prunable.masks(after)
        self.report(after)
        sent = self.prunable.changes(kept, after) | at_masks(weights, masks, self.coding, derived=True)
        return ClientState(self.prunable.packed(after), take(weights, masks)), Payload(sent)

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train in the same way without pruning.

        Only a client that has never taken part is above its capacity; it is pruned to fit after it has trained.
        """
        masks = self.kept(state)
        weights = self.fit_kept(self.received_weights(state, download, plan), masks, plan)
        masks = self.prunable.fitted(weights, masks, self.capacity)
        self.report(masks)
        return ClientState(self.prunable.packed(masks), take(weights, self.prunable.masks(masks)))

    def candidate(self, weights: Weights, masks: Masks) -> dict[str, Mask]:
        """Return the masks after one more pruning step, regardless of the gates."""
        return self.prunable.prune_channels(weights, masks) | self.prunable.prune_weights(weights, masks, self.capacity)

    def prune(self, weights: Weights, masks: Masks, first: Masks) -> dict[str, Mask]:
        """Return the masks after the round: those that the gates allow, or fewer entries if they do not fit.

        Args:
            weights: θ_k after the last epoch, in full shapes.
            masks: The masks used in training.
            first: The candidate after the first epoch.
        """
        return self.prunable.fitted(weights, self.gated(weights, masks, first), self.capacity)

    def gated(self, weights: Weights, masks: Masks, first: Masks) -> dict[str, Mask]:
        """Return the masks after the three gates (Algorithm 1, line 14; Algorithm 2, lines 18-21).

        Channels and weights have separate gates. Once the target is reached, the candidate equals the current mask.
        Weights are pruned after channels, so that they meet their target even if entries were removed with a channel.
        """
        last, after = self.candidate(weights, masks), dict(masks)
        channels, entries = (distance(first, last, p) for p in (self.prunable.channels, self.prunable.weights))
        self.trainer.report("distance", entries)
        if self.prunable.channels:
            self.trainer.report("channel-distance", channels)
        if self.tested(weights, masks, last) < self.hyper.accuracy:
            return after
        if channels >= self.hyper.channel_distance:
            after = self.prunable.within({**masks, **{p.name: last[p.name] for p in self.prunable.channels}})
        if entries >= self.hyper.distance:
            after |= self.prunable.prune_weights(weights, after, self.capacity)
        return after

    def tested(self, weights: Weights, kept: Masks, last: Masks) -> float:
        """Return the accuracy that the gate is about: before the step to the masks ``last``, or after it."""
        if self.hyper.accuracy_of == "before":
            return self.accuracy(weights, kept)
        after = self.prunable.within(last)
        masks = self.prunable.masks(after)
        return self.accuracy({name: array * masks[name] for name, array in weights.items()}, after)

    def accuracy(self, weights: Weights, masks: Masks) -> float:
        """Return the accuracy on the validation part, or the task's other share; 0 without one: it never prunes."""
        predictor = self.predict(weights, self.prunable.cut(masks))
        trainer = self.trainer
        return share(trainer.task, predictor, trainer.x_validation, trainer.y_validation)

    # The module that trains

    def fit_kept(self, start: Weights, masks: Masks, plan: Plan, note: Callable[[Dense], None] | None = None) -> Dense:
        """Return θ_k in full shapes after E epochs from ``start``; ``note`` is called with it after the first epoch."""
        cut = self.prunable.cut(masks)
        network = self.trainer.network(*self.shape(cut))
        network.load(cut.take(start))
        free = cut.take(self.prunable.masks(masks))

        def after_epoch(module: nn.Module, epoch: int) -> None:
            if note and epoch == 1:
                note(cut.put(network.read()))

        hooks = replace(frozen(network, free), after_epoch=after_epoch)
        self.trainer.fit(network.module, plan.round, hooks, density=density(free))
        return cut.put(network.read())

    def predict(self, weights: Weights, cut: Cut) -> Predictor:
        """Return the cut model with ``weights``, which are in full shapes."""
        return self.trainer.predictor(cut.take(weights), *self.shape(cut))

    def shape(self, cut: Cut) -> tuple[str, Callable[[], nn.Module]]:
        """Return a name for the shape of a cut, and a function that builds its module; "model" for the full model."""
        sides = [f"{small.name}={small.shape}" for small in cut.layout if small not in cut.full]
        return " ".join(sides) or "model", lambda: cut_model(self.trainer.make, cut)

    def report(self, masks: Masks) -> None:
        """Report the pruned fractions and the size of the client's model."""
        cut = self.prunable.cut(masks)
        self.trainer.report("pruned", self.prunable.pruned(masks))
        if not self.prunable.channels:
            return
        self.trainer.report("channels-pruned", self.prunable.channels_pruned(masks))
        self.trainer.report("parameters", parameters(cut.layout))
        small = forward_multiply_adds(self.trainer.network(*self.shape(cut)).module, self.trainer.x[:1])
        # A layer makes as many sums a weight in the cut module as in the whole one, which therefore need not run.
        sizes = {p.name: p.size for p in cut.layout}
        whole = sum(small[p.name] * p.size // sizes[p.name] for p in self.layout if p.name in small)
        self.trainer.report("flop-reduction", whole / sum(small.values()))
