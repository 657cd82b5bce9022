"""The states in a run's files that its models are made of, and what its closing round starts from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sepal.client_app.state_store import DiskStateStore, Stored
from sepal.errors import ConfigError
from sepal.method.algorithms import ClientAlgorithm
from sepal.protocol.messages import Content, is_version, version_round
from sepal.protocol.payloads import unseal
from sepal.protocol.types import Plan, Predictor
from sepal.runs.stored_run import stored_summary
from sepal.server.run_state import RoundStart, RunState
from sepal.server.run_store.disk import checkpoints_of, read_best, read_checkpoint
from sepal.storage.home import home
from sepal.storage.regular import expanded, is_inside, is_regular
from sepal.strategies.assembly import Assembly

_RUN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True)
class NewestState:
    """A client's newest state.

    Attributes:
        stored: The state with its reply; None if it is damaged.
        store: The store of both, in ``directory``.
        last: What the run's last checkpoint has, or that of the round that was asked for; None without one.
    """

    round: int
    stored: Stored | None
    store: DiskStateStore
    directory: Path
    last: RunState | None


def newest_state(
    path: Path, assembly: Assembly, client: str, elsewhere: bool = True, round: int | None = None
) -> NewestState | None:
    """Return the state of a client that the run's last checkpoint names, else its newest; None if none is here.

    Of an earlier round it is the state that this round's checkpoint names.

    A deployed client's are in the state directory, if it ran here as this user.

    Args:
        path: The run directory; links that lead out of it are not followed.
        assembly: The run's parts.
        client: The client's name.
        elsewhere: Whether to search the state directory, too.
        round: The earlier round; None for the last one.

    Raises:
        ConfigError: The models of that round are not kept.
    """
    last = progress_of(path, assembly, round)
    places = [folder for folder in path.glob(f"clients/*/{client}") if is_inside(folder, path)]
    if elsewhere and not any(map(_versions, places)) and last and _RUN.fullmatch(last.run):
        chosen = assembly.setup.config.state_dir
        places = [(expanded("state-dir", chosen) if chosen else home() / "state") / last.run / client]
    files = [file for folder in places for file in _versions(folder)]
    if not files:
        return None
    # Of a run that is being extended, its old closing state is there as well, and may be of a later round.
    recorded = [file for file in files if last and file.stem == last.versions.get(client)]
    if round is not None and not recorded:
        raise ConfigError("client", f"one with a state of round {round} here", client)
    newest = recorded[0] if recorded else max(files, key=lambda file: version_round(file.stem))
    store = DiskStateStore(newest.parent, assembly.method.client_state, durable=False)
    return NewestState(version_round(newest.stem), store.load(newest.stem), store, newest.parent, last)


def _versions(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.safetensors") if is_version(file.stem) and is_regular(file, folder)]


def progress_of(path: Path, assembly: Assembly, round: int | None = None) -> RunState | None:
    """Return what the run's last checkpoint has; None if there is none.

    Args:
        path: The run directory.
        assembly: The run's parts.
        round: The round of an earlier checkpoint, or of the models that were best on validation data.

    Raises:
        ConfigError: The models of that round are not kept.
    """
    kind, checkpoints = assembly.method.server_state, checkpoints_of(path)
    states = (read_checkpoint(file, kind) for file in reversed(checkpoints))
    if round is None:
        return next(states, None)
    by_round = {state.round: state for state in states if state.round and not state.closed}
    if (best := read_best(path, kind)) and best.round:
        by_round.setdefault(best.round, best)
    if round not in by_round:
        kept = ", ".join(map(str, sorted(by_round))) or "none"
        raise ConfigError("--round", f"a round of {path.name} whose models are kept: {kept}", round)
    return by_round[round]


def last_trained(path: Path, closed: RunState) -> int:
    """Return the last round whose training is in the models of a run that has ended."""
    best = (stored_summary(path) or {}).get("best_round")
    return best - 1 if isinstance(best, int) else closed.round - 1


def start_after(last: RunState, assembly: Assembly) -> RoundStart:
    """Return what the closing round starts from, if it is the one after ``last``, or ``last`` is after it."""
    algorithm, round = assembly.method.make_server(assembly.setup), last.round + (not last.closed)
    plan = replace(algorithm.plan(assembly.setup.config.rounds + 1), round=round)  # also if it ended early
    return RoundStart(algorithm, last, plan, closing=True)


def received_predictor(algorithm: ClientAlgorithm[Any], before: Any, content: Content, plan: Plan) -> Predictor | None:
    """Return the predictor of the model that a client in the state ``before`` receives with ``content``."""
    return algorithm.predictor(before, unseal(content, algorithm.download_schema(before, plan)), plan)
