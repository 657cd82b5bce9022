"""Which clients a round asks, and for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.method.algorithms import ChoosesParticipants
from sepal.protocol.messages import Order, version_round
from sepal.protocol.types import Kind
from sepal.protocol.views import CLOSING_VIEWS, VIEWS, further_views
from sepal.server.run_state import RoundStart
from sepal.server.sampling import sample, sample_spare


@dataclass(frozen=True)
class Request:
    """The order to one client in a round."""

    client: str
    order: Order
    purpose: str


def is_full(start: RoundStart, config: RunConfig) -> bool:
    """Return whether the round evaluates the whole roster in all views (``evaluate-every``, and the closing round)."""
    every = config.evaluate_every
    return start.closing or bool(every and start.plan.round % every == 0)


def plan_requests(
    start: RoundStart,
    config: RunConfig,
    durable: Mapping[str, str],
    best: Mapping[str, str],
    drawn: Sequence[str] | None = None,
    oversampled: bool = False,
    simulated: bool = False,
) -> tuple[dict[str, Request], frozenset[str]]:
    """Return the round's requests by client name, in the order of names, and which of these clients are spare.

    Args:
        start: What the round starts from.
        config: The run's configuration.
        durable: The oldest version that the server may still ask for, by client name; but for the best ones.
        best: The version of the best full evaluation, by client name.
        drawn: Who trains, if it was drawn already: with ``roster = "drawn"``, where the last of them are spare, or by
            ``privacy.sampling = "poisson"``, which may draw any number.
        oversampled: Whether ``oversample`` applies. A full evaluation waits for everybody, so nobody is spare there.
        simulated: Whether it applies in simulated time, in which evaluations take none: then also there.
    """
    full = is_full(start, config)
    trained, others = _trained(start, config, drawn)
    spare = frozenset(others if simulated or (oversampled and not full) else ())
    training = {*trained, *spare}
    requested = training | set(_evaluated(start, config)) if full else training
    state, views = start.state, _views(start, config)
    requests = {}
    for name in sorted(requested):
        kind = Kind.TRAIN if name in training else Kind.ADAPT
        purpose = "closing" if start.closing else "training" if name in training else "evaluation"
        base = state.versions.get(name, "")
        oldest = min(base, durable.get(name, ""), key=version_round)  # the closing round may begin with the best state
        older = best.get(name, "")
        older = older if version_round(older) < version_round(oldest) else ""
        order = Order(state.run, kind, start.plan_of(name), base, oldest, views, start.closing, older)
        requests[name] = Request(name, order, purpose)
    return requests, spare


def _trained(start: RoundStart, config: RunConfig, drawn: Sequence[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    """Return who is asked to train, and who beyond ``clients-per-round``."""
    everybody, number = start.state.participants, start.plan.round
    if start.closing or start.plan.who == "none":
        return (), ()
    if isinstance(start.algorithm, ChoosesParticipants):
        return _chosen(start, start.algorithm), ()
    if start.plan.who == "all":
        return everybody, ()
    if drawn is not None and config.privacy.sampling == "poisson":
        return drawn, ()
    if drawn is not None:
        return drawn[: config.clients_per_round], drawn[config.clients_per_round :]
    trained = sample(everybody, config.clients_per_round, config.seed, number)
    return trained, sample_spare(set(everybody) - set(trained), config, number)


def _chosen(start: RoundStart, algorithm: ChoosesParticipants) -> Sequence[str]:
    """Return whom the method chooses to train.

    Raises:
        ConfigError: One of them does not train.
    """
    names = sorted(algorithm.participants(start.state.server, start.plan))
    if strangers := sorted(set(names) - set(start.state.participants)):
        expected = f"{type(algorithm).__name__}.participants to return clients that train"
        raise ConfigError("method", expected, ", ".join(strangers[:3]))
    return names


def _evaluated(start: RoundStart, config: RunConfig) -> Sequence[str]:
    """Return whom a full evaluation asks: all, or ``evaluate-clients`` of them; nobody if the plan asks nobody."""
    if start.plan.who == "none" and not start.closing:
        return ()
    names = start.state.members if start.closing else start.state.participants
    return sample(names, config.evaluate_clients, config.seed, start.plan.round, "evaluate")


def _views(start: RoundStart, config: RunConfig) -> tuple[str, ...]:
    if start.closing:
        return CLOSING_VIEWS + further_views(config.evaluate.shift, config.evaluate.corruption != "none")
    return CLOSING_VIEWS if is_full(start, config) else VIEWS[:2] if config.evaluate_sampled else ()
