"""FedPSE and FedAvg over limited links, and a cut: ``python -m tools.hosts [--cut 120]``. Needs root.

Prints a row of JSON for each run: time to each target accuracy, and bytes by the ledger, by Flower's account and at the
interfaces. A run with a cut must end with the same hashes as without one: no client's residual is lost.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sepal.engines.flower.bundle import write_app
from sepal.study.run_keys import parse_sets
from tools.hosts.federation import Hosts, counted, cut_after
from tools.hosts.network import NamespaceNetwork, unavailable

MODELS = Path(__file__).parents[1] / "load" / "models"


def measure(method: str, options: argparse.Namespace, cut: float) -> dict[str, Any]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="sepal-hosts-") as text, NamespaceNetwork(options.clients) as network:
        directory = Path(text)
        environment = {"SEPAL_HOME": str(directory / "home"), "SEPAL_USER_PATH": str(MODELS), "OMP_NUM_THREADS": "1"}
        config: dict[str, Any] = {
            "name": method,
            "out": text,
            "method": method,
            "dataset": options.dataset,
            "model": options.model,
            "clients": options.clients,
            "rounds": options.rounds,
            "evaluate-every": 1,
            "timeout": 900.0,
            **parse_sets(options.set),
        }
        with Hosts(network, directory / "flower", environment) as hosts:
            hosts.start()
            begun = time.time()
            done = cut_after(hosts, 1, directory / method, 2, cut) if cut else lambda: False
            write_app(directory / "app")
            run, count = counted(hosts, directory / "app", config, timeout=3600)
        lines = [
            json.loads(line) for line in (directory / method / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        summary = json.loads((directory / method / "summary.json").read_text(encoding="utf-8"))
    means = [((line["accuracy"].get("trained") or {}).get("mean") or 0.0) for line in lines[:-1]]
    seconds = [line["seconds"]["total"] + line["seconds"]["server"] for line in lines[:-1]]
    reached = {target: first(float(target), means) for target in options.targets.split(",")}
    spent = list(itertools.accumulate(seconds))
    return {
        "dataset": options.dataset,
        "model": options.model,
        "keys": options.set,
        "method": method,
        "status": run.status,
        "cut_s": cut if done() else 0,
        "rounds": len(means),
        "clients_at_the_end": summary["clients"],
        "rounds_to_target": reached,
        "seconds_to_target": {target: spent[number - 1] if number else None for target, number in reached.items()},
        "hashes": [summary["weights_sha256"], summary["clients_sha256"]],
        "round_s": sorted(seconds)[len(seconds) // 2],
        "best": max(means),
        "messages": count.messages,
        "payload_bytes": count.payload,
        "flower_bytes": dict(count.flower),
        "interface_bytes": count.interface,
        "overhead_per_message_up": (count.interface[0] - count.payload[0]) // max(1, count.messages),
        "wall_s": time.time() - begun,
    }


def first(target: float, means: list[float]) -> int:
    """Return the first round in which the accuracy reaches ``target``; 0 if it never does."""
    return next((number for number, mean in enumerate(means, 1) if mean >= target), 0)


def say(row: dict[str, Any], out: Path | None) -> None:
    """Print a row, and append it to a file if one is given."""
    print(json.dumps(row), flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure FedAvg and FedPSE, and FedPSE with a cut if asked for; exit with 1 if the cut changed it or failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model", default="megabyte:build")
    parser.add_argument("--targets", default="0.85,0.97", help="accuracies to reach")
    parser.add_argument("--cut", type=float, default=0.0, help="also FedPSE with client 1 cut off for so many seconds")
    parser.add_argument("--methods", default="fedavg,fedpse")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a run-config key")
    parser.add_argument("--out", type=Path, help="file that gets the rows, too")
    options = parser.parse_args()
    if reason := unavailable():
        print(f"hosts: skipped: {reason}", file=sys.stderr)
        return
    rows = {}
    for method in options.methods.split(","):
        rows[method] = measure(method, options, 0.0)
        say(rows[method], options.out)
    if options.cut:
        cut = measure("fedpse", options, options.cut)
        say(cut, options.out)
        same = "fedpse" not in rows or cut["hashes"] == rows["fedpse"]["hashes"]
        print(f"hosts: cut for {cut['cut_s']:g} s: {'the same hashes' if same else 'OTHER HASHES'}")
        sys.exit(not (cut["cut_s"] and same))


if __name__ == "__main__":
    main()
