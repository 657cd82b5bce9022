"""``python -m referee.poison``: accuracy under four attacks, with each option against them.

Ten clients share half of the digits data; the first two attack in every round. An attacker knows its own download and
its honest upload, and no more. Accuracy is that of the received model on the honest clients' test data, at the end.

A row for each run is appended to ``referee/results/poison.ndjson``; runs that are there are not repeated.
``--table`` prints the table of referee/results/poison.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sepal.engines.in_process import run_in_process
from sepal.errors import SepalError
from sepal.method.interface import Method, resolve
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

ROWS = Path(__file__).parents[2] / "referee" / "results" / "poison.ndjson"
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
        def __init__(self, task: Any, trainer: Any) -> None:
            super().__init__(task, trainer)
            self.evil = attack != "no attack" and trainer.client.name in ATTACKERS
            if self.evil and change is None:
                trainer.y = 9 - trainer.y

        def train(self, state: Any, download: Any, plan: Any) -> Any:
            after, upload = super().train(state, download, plan)
            if not self.evil or change is None:
                return after, upload
            start = self.arrived(state, download, plan) if method.name == "fedavg" else {}
            rng = np.random.default_rng([seed, plan.round, ATTACKERS.index(self.trainer.client.name)])
            tensors = {}
            for name, tensor in upload.tensors.items():
                begun = start[name].reshape(-1)[tensor.positions()] if name in start else np.zeros_like(tensor.values)
                tensors[name] = replace(tensor, values=change(tensor.values, begun, rng).astype(np.float32))
            return after, replace(upload, tensors=tensors)

    return replace(method, client=Attacking)


class Watch:
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


def run(method: str, attack: str, defence: str, seed: int) -> dict[str, Any]:
    """Execute one run and return its row."""
    watch, end = Watch(), "complete"
    keys = {**KEYS, **DEFENCES[defence], "seed": seed}
    try:
        run_in_process(assemble(keys, attacked(registry.get(method), attack, seed)), observers=[watch])
    except SepalError as reason:
        end = str(reason)[:200]
    row = {"method": method, "attack": attack, "defence": defence, "seed": seed, "end": end}
    return {**row, "accuracy": round(watch.accuracy, 4), "refused": watch.refused}


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table: mean accuracy over seeds in per cent, and refused uploads."""
    lines = ["| method | option | " + " | ".join(ATTACKS) + " |", "|---|---|" + "---:|" * len(ATTACKS)]
    for method in ("fedavg", "fedpse"):
        for defence in DEFENCES:
            cells = []
            for attack in ATTACKS:
                at = (method, attack, defence)
                found = [r for r in rows if (r["method"], r["attack"], r["defence"]) == at]
                if not found:
                    continue
                ended = sum(r["end"] != "complete" for r in found)
                bad, good = (sum(r["refused"][who] for r in found) / len(found) for who in ("attackers", "others"))
                cell = f"{100 * np.mean([r['accuracy'] for r in found]):.1f} ({bad:.0f}, {good:.0f})"
                cells.append(cell + (f", {ended} ended" if ended else ""))
            if cells:
                lines.append(f"| {method} | {defence} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(prog="python -m referee.poison")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--table", action="store_true", help="print the table of the rows that are there")
    given = parser.parse_args()
    rows = (
        [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines()]
        if given.rows.exists()
        else []
    )
    if given.table:
        print(table(rows))
        return
    done = {(r["method"], r["attack"], r["defence"], r["seed"]) for r in rows}
    for seed in given.seeds:
        for method in ("fedavg", "fedpse"):
            options = [d for d in DEFENCES if "robust-mean" not in DEFENCES[d] or registry.get(method).robust]
            for defence in options:
                for attack in ATTACKS:
                    if (method, attack, defence, seed) not in done:
                        row = run(method, attack, defence, seed)
                        with given.rows.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(row) + "\n")
                        print(row, file=sys.stderr)


if __name__ == "__main__":
    main()
