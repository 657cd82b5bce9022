"""Kill and stop the processes of deployed runs at random and compare the results: ``python -m tools.chaos``.

The seed and a run's number determine its method, the kinds and times of its events, and their victims. After each kill
something else happens: a client is stopped, its disk is full, or the clocks jump. The run's hashes must equal those of
the uninterrupted run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sepal.engines.flower.bundle import write_app
from sepal.engines.in_process import run_in_process
from sepal.rng import derive
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import names
from tools.chaos.events import KILLS, TROUBLES
from tools.chaos.federation import BY_ERROR, Federation, small_disk

# Each kind of state once, with the keys that produce it; then all other methods, with their defaults
FIRST: list[dict[str, Any]] = [
    {"method": "fedpse", "clients-per-round": 2},
    {"method": "dmpfl", "dmpfl.iterations": 1},
    {"method": "fedavg"},
    {"method": "fedavg", "secure": "sum", "clients": 3},
    {"method": "fedstc", "clients-per-round": 2},
    {"method": "ditto"},
    {"method": "subfedavg", "clients-per-round": 2, "subfedavg.accuracy": 0.1},  # at .5 nobody prunes in four rounds
    {"method": "pa3dfl", "capacity.profile": "0.25,1"},
    {"method": "pfedgate", "pfedgate.gating": "batch", "pfedgate.keep": 0.5, "pfedgate.keep-optimizer": True},
]
METHODS = FIRST + [{"method": name} for name in names() if name not in {keys["method"] for keys in FIRST}]
FLAT: dict[str, Any] = {
    "dataset": "digits",
    "clients": 2,
    "rounds": 4,
    "evaluate-every": 3,
    "partition.name": "lambda-mix",
    "partition.subsample": 200,
    "timeout": 60.0,  # Flower may lose a message: then the round ends the run, and it is submitted again
    "checkpoint-every": 2,
    "on-missing": "retry",
}
HASHES = ("weights_sha256", "clients_sha256")
TRIES = 3  # a run that ends before anything was killed shows nothing, and is repeated


def hashes(run: Path) -> tuple[str, ...]:
    """Return the hashes of a finished run."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return tuple(summary[key] for key in HASHES)


def uninterrupted(config: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Return the hashes of the same run in one process."""
    assembly = assemble({**config, "name": "whole"})
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    return hashes(path)


def current_round(run: Path) -> int:
    """Return the round that a run is in; 0 before its directory is there, 1 also while clients are waited for."""
    if not (run / "config.toml").exists():
        return 0
    lines = run / "metrics.jsonl"
    return 1 + (len(lines.read_text(encoding="utf-8").splitlines()) if lines.exists() else 0)


def when(rng: np.random.Generator, events: int) -> list[int]:
    """Return the earliest round of each event, in order; only the first is never left to the closing round."""
    closing = int(FLAT["rounds"]) + 1
    first = int(rng.integers(1, closing))
    return [first, *sorted(int(n) for n in rng.integers(first, closing + 1, events - 1))]


def disturb(
    federation: Federation,
    run: Path,
    rng: np.random.Generator,
    kinds: list[str],
    options: argparse.Namespace,
    done: list[str],
) -> None:
    """Do ``options.kills`` kills, each followed by a trouble, until the run ends; add the events to ``done``."""
    deadline, events, absent = time.monotonic() + options.limit, 0, 0.0
    rounds = when(rng, 2 * options.kills)
    following = time.monotonic() + float(rng.uniform(0.5, options.spread))
    while not (run / "summary.json").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected an end within {options.limit:g} s, got none after {', '.join(done)}")
        round = current_round(run)
        if events < len(rounds) and round >= rounds[events] and time.monotonic() > following:
            if events % 2 == 0:
                kind = kinds[events // 2 % len(kinds)]
                event = KILLS[kind]
            else:
                kind = str(rng.choice(list(TROUBLES)))
                event = TROUBLES[kind]
            if event(federation, rng, options.stop):
                events += 1
                done.append(f"{kind} (round {round})")
                following = time.monotonic() + float(rng.uniform(0.2, options.spread))
        done.extend(federation.revive())
        absent = 0.0 if federation.server() else absent or time.monotonic()
        if absent and time.monotonic() - absent > 5 and not (run / "summary.json").exists():
            federation.submit()  # the run failed: a restarted server continues it
            done.append("submitted again")
            absent = 0.0
        time.sleep(0.1)


def disturbed_run(number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Disturb a run; return what was done to it, and whether its result is that of the uninterrupted run."""
    rng = derive(options.seed, "chaos", number)
    chosen_kinds = [kind.strip() for kind in options.kinds.split(",")]
    order = [str(kind) for kind in derive(options.seed, "chaos kinds").permutation(chosen_kinds)]
    kinds = order[number % len(order) :] + order[: number % len(order)]
    keys = METHODS[number % len(METHODS)]
    with tempfile.TemporaryDirectory(prefix="sepal-chaos-") as text, small_disk(48) as disk:
        directory = Path(text)
        config = {**FLAT, **keys, "seed": int(rng.integers(1000)), "name": "chaos", "out": str(directory / "runs")}
        expected = uninterrupted(config, directory / "whole")
        begun = time.monotonic()
        write_app(directory / "app")
        with Federation(directory / "federation", directory / "app", int(config["clients"]), config) as federation:
            if disk:
                federation.environment["SEPAL_HOME"] = str(disk)
            run, done = directory / "runs" / "chaos", list[str]()
            try:
                federation.start()
                disturb(federation, run, rng, kinds, options, done)
                digests: tuple[str, ...] = hashes(run)
                failure = ""
            except Exception as reason:
                digests, failure = (), f"{type(reason).__name__}: {reason}"
            if digests != expected and options.keep:
                shutil.copytree(directory, options.keep / f"run-{number}", ignore_dangling_symlinks=True)
        seconds = time.monotonic() - begun
    return {
        "run": number,
        "method": keys["method"] + (" with secure sums" if "secure" in keys else ""),
        "seed": config["seed"],
        "events": done,
        "kills": sum(event.partition(" (")[0] in KILLS for event in done),
        "equal": digests == expected,
        "seconds": round(seconds, 1),
        "own_disk": disk is not None,
        **({"failure": failure} if failure else {}),
    }


def main() -> None:
    """Run the chosen number of disturbed runs; exit with 1 if one differs, or if nothing could be killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to repeat one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KILLS), help="what is killed")
    parser.add_argument("--kills", type=int, default=3, help="kills a run")
    parser.add_argument("--stop", type=float, default=5.0, help="seconds for which a client is stopped")
    parser.add_argument("--spread", type=float, default=4.0, help="most seconds between two events")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds in which a run must end")
    parser.add_argument("--keep", type=Path, help="directory for what runs that differ leave")
    parser.add_argument("--out", type=Path, help="file that gets a row of JSON for each run")
    options = parser.parse_args()
    equal = kills = errors = 0
    for number in range(options.first, options.first + options.runs):
        for _ in range(TRIES):
            row = disturbed_run(number, options)
            print(json.dumps(row), flush=True)
            errors += sum(event.startswith(BY_ERROR) for event in row["events"])
            if options.out:
                with contextlib.suppress(OSError), options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            if row["kills"] or not row["equal"]:
                break
        equal += bool(row["equal"] and row["kills"])
        kills += row["kills"]
    print(
        f"chaos: {equal} of {options.runs} as the uninterrupted run, after {kills} kills; "
        f"clients that ended by an error and were restarted: {errors}"
    )
    sys.exit(equal != options.runs)


if __name__ == "__main__":
    main()
