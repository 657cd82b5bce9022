"""``make demo``: FedPSE on handwritten digits through Flower's simulation, compared with four other methods.

Twenty clients have about 60 examples each with a skewed mix of digits (Dirichlet .5), too few to learn from alone.
FedPSE sends 10 % of the entries. FedAvg, FedAvg + fine-tuning, FedSTC and Local run in process with the same keys, each
at its calibrated rate. The conclusion is computed from the results. All of Flower's processes are stopped at the end.
``python -m tools.demo --seeds 0 1 2`` runs all five methods in process and prints the conclusion of each seed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sepal.cli.running import run_flat
from sepal.engines.flower.engine import COMPLETED, Flower
from sepal.engines.flower.processes import FlowerError
from sepal.errors import ConfigError, SepalError
from sepal.protocol.types import Scalar
from sepal.report.progress import RoundDisplay
from sepal.report.tables import megabytes, new_table, print_run
from sepal.runs.stored_run import StoredRun, read_run
from sepal.strategies import registry
from sepal.study.run import execute, prepare

CLIENTS, ROUNDS = 20, 30
KEYS: Mapping[str, Scalar] = {
    "dataset": "digits",
    "clients": CLIENTS,
    "partition.name": "dirichlet",
    "partition.alpha": 0.5,
    "partition.min-examples": 20,
    "rounds": ROUNDS,
    "evaluate-every": 5,
}
FEDPSE: Mapping[str, Scalar] = {"method": "fedpse", "fedpse.keep": 0.1}
BESIDE = ("fedavg", "fedavg-ft", "fedstc", "local")
FEDERATION = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="no simulation: a conclusion for each seed")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="fewer are sooner over, and say less")
    chosen = parser.parse_args()
    keys = {**KEYS, "rounds": chosen.rounds}
    if chosen.seeds:
        return conclude(chosen.seeds, keys)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run the clean-up code
    app, out = Path(__file__).resolve().parents[1], Path.cwd() / "runs"
    name, console = f"demo-{time.strftime('%Y%m%d-%H%M%S')}", Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="sepal-demo-") as cache:
        os.environ["SEPAL_CACHE"] = cache  # do not use data cached by an earlier version
        try:
            path = simulate(app, out, name, keys, console)
            others = [run_flat({**keys, "method": m, "out": str(out), "name": f"{name}-{m}"}, out) for m in BESIDE]
        except SepalError as error:
            console.print(f"demo: {error}", markup=False, highlight=False, soft_wrap=True)
            return 1
        except KeyboardInterrupt:
            console.print("demo: interrupted")
            return 130
    runs = [read_run(folder) for folder in (path, *others)]
    screen = Console()
    print_run(screen, runs[0], runs[-1])
    screen.print()
    screen.print(comparison(runs))
    for line in conclusion(runs):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    if file := report((path, *others), out):
        screen.print(f"Pictures of it: {file}", markup=False, highlight=False, soft_wrap=True)
    return 0


def conclude(seeds: Sequence[int], keys: Mapping[str, Scalar]) -> int:
    """Print the conclusion for each of ``seeds``, from runs in process; return the exit code."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="sepal-demo-") as out:
            flats = [FEDPSE, *({"method": method} for method in BESIDE)]
            runs = [prepare({**keys, **flat, "seed": seed, "out": out}, Path(out)) for flat in flats]
            for run in runs:
                execute(run)
            print(f"seed {seed}", *list(conclusion([read_run(run.path) for run in runs]))[:2], sep="\n", flush=True)
    return 0


def mean(run: StoredRun, view: str, figure: str = "mean") -> float | None:
    """Return a view's mean accuracy, or another figure of it, at the end, in per cent."""
    figures = (run.summary or {})["accuracy"][view]
    return 100 * figures[figure] if figures else None


def comparison(runs: Sequence[StoredRun]) -> Table:
    """Return a table that compares the runs, first by the deployed models, as the conclusion does."""
    table = new_table("Side by side, at the end: accuracy in %, MB of training")
    for name in ("method", "deployed", "worst 10 %", "received", "trained", "pooled", "MB up", "MB down"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for run in runs:
        view = registry.deployed(run.config["method"])
        values = [mean(run, view), mean(run, view, "bottom_decile")]
        values += [mean(run, name) for name in ("received", "trained", "pooled")]
        cells = ["-" if value is None else f"{value:.1f}" for value in values]
        table.add_row(run.config["method"], *cells, *(megabytes(run.bytes[way]) for way in ("up", "down")))
    return table


def conclusion(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield three lines that describe the results: of the model that a user of each method gets."""
    accuracies = {
        str(run.config["method"]): mean(run, registry.deployed(str(run.config["method"]))) or 0.0 for run in runs
    }
    figures = ", ".join(f"{method} {value:.1f} %" for method, value in accuracies.items())
    yield f"Accuracy of the deployed model, the one that a user gets: {figures}."
    fedpse = accuracies["fedpse"]
    sent = [run.bytes["up"] + run.bytes["down"] for run in runs]
    share = sent[0] / sent[1]
    dense, alone = (compared(fedpse - accuracies[method]) for method in ("fedavg", "local"))
    yield f"With {100 * share:.0f} % of FedAvg's bytes, FedPSE is {dense} FedAvg and {alone} training alone."
    yield "This is one seed on one small data set; `sepal compare` and referee/results have more."


def compared(gap: float) -> str:
    """Return the words for a difference in points."""
    return f"{abs(gap):.1f} points {'ahead of' if gap > 0 else 'behind'}"


def report(paths: Sequence[Path], out: Path) -> Path | None:
    """Write the report of the runs; None where its extra is not installed."""
    from sepal.report.page import write_html

    (out / "demo").mkdir(exist_ok=True)
    try:
        return write_html([str(path) for path in paths], out / "demo" / "report.html")
    except ConfigError as error:
        if error.key != "report":
            raise
        return None


def simulate(app: Path, out: Path, name: str, keys: Mapping[str, Scalar], console: Console) -> Path:
    """Run FedPSE through Flower's simulation engine and return the run's directory.

    Raises:
        FlowerError: The run did not complete; the end of its log was printed.
    """
    path = out / name
    flat = {**keys, **FEDPSE, "out": str(out), "name": name, "state-dir": str(path / "clients")}
    with Flower() as flower, RoundDisplay(console, "fedpse on digits") as display:
        console.print("starting Flower's simulation engine", highlight=False)
        flower.start_simulation()
        follow = Follow(path, int(keys["rounds"]), display)
        ended = flower.run_app(app, flat, FEDERATION, tick=follow)
        follow()
    if ended.status != COMPLETED:
        console.print("\n".join(ended.log[-40:]), markup=False, highlight=False, soft_wrap=True)
        ended.check()
    if read_run(path).summary is None:
        raise FlowerError(str(path), "a summary", "none")
    return path


class Follow:
    """Shows the lines of a run that another process writes."""

    def __init__(self, path: Path, rounds: int, display: RoundDisplay) -> None:
        self._path, self._rounds, self._display, self._shown = path, rounds, display, -1

    def __call__(self) -> None:
        """Show new lines."""
        if not (self._path / "config.toml").is_file():
            return
        if self._shown < 0:
            self._display.start(0, self._rounds)
            self._shown = 0
        lines = read_run(self._path).lines
        for line in lines[self._shown :]:
            self._display.show(line)
        self._shown = len(lines)


if __name__ == "__main__":
    sys.exit(main())
