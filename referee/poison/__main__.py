"""``python -m referee.poison``: accuracy under four attacks, with each option against them.

Ten clients share half of the digits data; the first two attack in every round. An attacker knows its own download and
its honest upload, and no more. Accuracy is that of the received model on the honest clients' test data, at the end.

Each run's record is appended to ``referee/results/poison.ndjson``; runs that are there are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from referee.checkout import RESULTS, commit_now, options, render
from sepal.method.interface import Method, resolve
from sepal.strategies import registry
from sepal.study.record import RunRecord, append, read, recorded
from sepal.study.runner import records

ROWS = RESULTS / "poison.ndjson"
METHODS = ("fedavg", "fedpse")
ATTACKERS = ("client-00000", "client-00001")
KEYS = {
    "dataset": "digits",
    "clients": 10,
    "rounds": 10,
    "partition.subsample": 900,
    "evaluate-every": 0,
    "evaluate-sampled": False,
}
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "norm 3": {"max-update-norm": 3.0},
    "trimmed": {"robust-mean": "trimmed"},
    "median": {"robust-mean": "median"},
    "norm 3, trimmed": {"max-update-norm": 3.0, "robust-mean": "trimmed"},
}
Values: TypeAlias = Any
# What an attacker sends, from what it would send and what it started from, float32 (n,).
ATTACKS: Mapping[str, Callable[[Values, Values, np.random.Generator], Values] | None] = {
    "no attack": lambda sent, start, rng: sent,
    "flipped, x20": lambda sent, start, rng: start - 20 * (sent - start),
    "nine times the weights": lambda sent, start, rng: 9 * sent,
    "noise": lambda sent, start, rng: start + rng.normal(0, 0.1, sent.shape),
    "flipped labels": None,  # trains and sends honestly, with labels 9 - y
}


def attacked(method: Method, attack: str, seed: int) -> Method:
    """Return the method, whose first two clients attack."""
    change = ATTACKS[attack]

    class Attacking(resolve(method.client)):  # type: ignore[misc]
        def __init__(self, setup: Any, trainer: Any) -> None:
            super().__init__(setup, trainer)
            self.evil = attack != "no attack" and trainer.client.name in ATTACKERS
            if self.evil and change is None:
                trainer.y = 9 - trainer.y

        def train(self, state: Any, download: Any, plan: Any) -> Any:
            after, upload = super().train(state, download, plan)
            if not self.evil or change is None:
                return after, upload
            start = self.received_weights(state, download, plan) if method.name == "fedavg" else {}
            rng = np.random.default_rng([seed, plan.round, ATTACKERS.index(self.trainer.client.name)])
            tensors = {}
            for name, tensor in upload.tensors.items():
                begun = start[name].reshape(-1)[tensor.positions()] if name in start else np.zeros_like(tensor.values)
                tensors[name] = replace(tensor, values=change(tensor.values, begun, rng).astype(np.float32))
            return after, replace(upload, tensors=tensors)

    return replace(method, client=Attacking)


class HonestClients:
    """Counts refused uploads, and keeps the accuracies of the closing round."""

    def __init__(self) -> None:
        self.refused = {"attackers": 0, "others": 0}
        self.accuracy = 0.0

    def opened(self, progress: Any, total: int) -> None:
        """Do nothing."""

    def round(self, progress: Any, record: Any, line: Any) -> None:
        """Count."""
        for entry in record.ledger:
            if entry.status == "refused":
                self.refused["attackers" if entry.client in ATTACKERS else "others"] += 1
        honest = [reply.metrics for name, reply in record.replies.items() if name not in ATTACKERS]
        pairs = [(m["received.correct"], m["received.examples"]) for m in honest if "received.correct" in m]
        if pairs:
            self.accuracy = sum(right for right, _ in pairs) / sum(count for _, count in pairs)

    def closed(self, progress: Any, report: Any) -> None:
        """Do nothing."""


PoisonedRun: TypeAlias = tuple[int, str, str, str]  # seed, method, defence, attack


def execute(planned: PoisonedRun, commit: str) -> RunRecord:
    """Execute one run and return its record."""
    seed, method, defence, attack = planned
    honest = HonestClients()
    keys = {**KEYS, **DEFENCES[defence], "method": method, "seed": seed}
    labels = {"attack": attack, "defence": defence}
    hostile = attacked(registry.get(method), attack, seed)
    record = recorded(keys, labels, commit, (), method=hostile, observers=[honest])
    accuracy = {"received": {"weighted": round(honest.accuracy, 4)}}
    return record.model_copy(update={"accuracy": accuracy, "figures": {"refused": honest.refused}})


def table(rows: Sequence[RunRecord]) -> str:
    """Return the rows as a Markdown table: mean accuracy over seeds in per cent, and refused uploads."""
    lines = ["| method | option | " + " | ".join(ATTACKS) + " |", "|---|---|" + "---:|" * len(ATTACKS)]
    for method, defence in product(METHODS, DEFENCES):
        option_rows = [row for row in rows if (row.method, row.labels["defence"]) == (method, defence)]
        by_attack = [[row for row in option_rows if row.labels["attack"] == attack] for attack in ATTACKS]
        cells = [_cell(attack_rows) for attack_rows in by_attack if attack_rows]
        lines += [f"| {method} | {defence} | {' | '.join(cells)} |"] if cells else []
    return "\n".join(lines)


def _cell(rows: Sequence[RunRecord]) -> str:
    ended = sum(bool(row.error) for row in rows)
    bad, good = (_mean_refused(rows, who) for who in ("attackers", "others"))
    cell = f"{100 * _mean_accuracy(rows):.1f} ({bad:.0f}, {good:.0f})"
    return cell + (f", {ended} ended" if ended else "")


def _mean_accuracy(rows: Sequence[RunRecord]) -> float:
    return float(np.mean([row.accuracy["received"]["weighted"] for row in rows]))


def _mean_refused(rows: Sequence[RunRecord], who: str) -> float:
    return float(sum(row.figures["refused"][who] for row in rows)) / len(rows)


class PoisonFindings:
    """What the page's sentences quote: means over seeds of the runs with one method, option and attack."""

    def __init__(self, rows: Sequence[RunRecord]) -> None:
        self._rows = rows

    def _of(self, method: str, defence: str, attack: str) -> list[RunRecord]:
        wanted = (method, defence, attack)
        return [row for row in self._rows if (row.method, row.labels["defence"], row.labels["attack"]) == wanted]

    def refused(self, method: str, defence: str, attack: str, who: str = "attackers") -> str:
        """Return the number of refused uploads."""
        return f"{_mean_refused(self._of(method, defence, attack), who):.0f}"

    def accuracy(self, method: str, defence: str, attack: str) -> str:
        """Return the accuracy in per cent."""
        return f"{100 * _mean_accuracy(self._of(method, defence, attack)):.1f}"

    def lost(self, method: str, defence: str = "none", attack: str = "no attack") -> str:
        """Return how many points an option or an attack costs, from the accuracies as the table has them."""
        points = float(self.accuracy(method, "none", "no attack")) - float(self.accuracy(method, defence, attack))
        return f"{points:.1f}"


def pages() -> dict[Path, str]:
    """Return path → text of the page."""
    rows = read(ROWS)
    changed = [name for name, change in ATTACKS.items() if change is not None and name != "no attack"]
    words = {"table": table(rows), "f": PoisonFindings(rows), "methods": METHODS, "changed": changed}
    without_mean = [name for name in METHODS if not registry.get(name).robust]
    return {ROWS.with_suffix(".md"): render("poison.md", **words, without_mean=without_mean)}


def needed(seeds: Sequence[int], rows: Sequence[RunRecord]) -> list[PoisonedRun]:
    """Return the runs that have no record."""
    stored_runs = {(row.seed, row.method, row.labels["defence"], row.labels["attack"]) for row in rows}
    possible = [run for run in product(seeds, METHODS, DEFENCES, ATTACKS) if run not in stored_runs]
    return [run for run in possible if "robust-mean" not in DEFENCES[run[2]] or registry.get(run[1]).robust]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = options("python -m referee.poison", __doc__, hours=24.0)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    args = parser.parse_args(arguments)
    missing = needed(args.seeds, read(ROWS))
    for record in records(lambda: missing, partial(execute, commit=commit_now()), args.jobs, args.hours):
        append(ROWS, record)
        print(record.method, record.labels, f"seed {record.seed}:", record.accuracy, flush=True)


if __name__ == "__main__":
    main()
