"""The claims of README and the paper that a command shows, each with what is expected and where that is stored."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from referee.checkout import commit_now
from referee.leaderboard.design import BlockRun
from referee.leaderboard.pages import pages
from referee.leaderboard.runs import execute
from referee.marked_parts import README
from tools.artifact import stored
from tools.artifact.stored import ROOT

LEADERBOARD = "referee/results/leaderboard/a.ndjson"
NAMES = ("fedavg-ft", "fedavg-ft-stc", "fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl", "local")
SHOWN = {"fedavg-ft": "FedAvg + fine-tuning", "fedavg-ft-stc": "compressed FedAvg + fine-tuning"}
DENSITIES = (0.5, 0.382, 0.3, 0.214, 0.1, 0.058, 0.01)
ENTRIES = 10_000_000
DEPLOYED = ("tests/e2e/test_deployment.py", "-k", "same_bits and dmpfl")


@dataclass(frozen=True)
class Claim:
    """A claim.

    Attributes:
        name: By which ``make -C tools artifact ONLY=NAME`` runs it.
        words: What is claimed.
        quote: Its text in README, with the numbers that it covers; empty if only the paper has it.
        expected: The figure, and its interval, within which another machine's is expected.
        stored: Where that comes from.
        minutes: About how long it takes on two idle cores. What takes more than an hour is not run.
        measure: Returns the figure.
        unit: Of the figure.
        data: The data set that it needs in ``SEPAL_DATA``; empty if none.
    """

    name: str
    words: str
    quote: str
    expected: Callable[[], tuple[float, float, float]]
    stored: str
    minutes: float
    measure: Callable[[], float]
    unit: str = "%"
    data: str = ""

    @property
    def command(self) -> str:
        """The command that shows it."""
        return f"make -C tools artifact ONLY={self.name}"


def index_overhead(densities: tuple[float, ...]) -> float:
    """Return how far the bytes of indices are above the entropy bound, in per cent, at the worst of some densities."""
    from sepal.wire.index import encode_index

    worst = 0.0
    for density in densities:
        index = np.flatnonzero(np.random.default_rng(3).random(ENTRIES, np.float32) < density)
        count = index.size
        bits = math.lgamma(ENTRIES + 1) - math.lgamma(count + 1) - math.lgamma(ENTRIES - count + 1)
        worst = max(worst, len(encode_index(index, (ENTRIES,)).data) / (bits / math.log(2) / 8))
    return 100 * (worst - 1)


def har_accuracy(name: str) -> float:
    """Run the stored row of a contender's first seed on HAR again, and return what its clients hold, in per cent."""
    row = stored.har_row(name)
    record = execute(BlockRun(**row.labels, config=dict(row.config)), commit_now())
    values = record.of_clients("trained")
    return 100 * sum(values.values()) / len(values)


def har_expected(name: str) -> tuple[float, float, float]:
    """Return what the stored row of the first seed has, and the lowest and highest of all seeds."""
    values = stored.har_row(name).of_clients("trained")
    return 100 * sum(values.values()) / len(values), *stored.har_interval(name)


def pytest(*arguments: str) -> float:
    """Return 1 if some tests pass, 0 if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *arguments]
    return float(subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0)


def killed_run() -> float:
    """Return 1 if a run that is killed in its third round and started again has the weights of one that is not."""
    from tools.side_by_side.__main__ import difference, run

    with tempfile.TemporaryDirectory() as scratch:
        first, killed = Path(scratch) / "first", Path(scratch) / "killed"
        run("sepal", sys.executable, first)
        run("sepal", sys.executable, killed, stop=2)
        run("sepal", sys.executable, killed)
        return float(difference(first, killed) == 0)


def number_of_tests() -> float:
    """Return how many tests `make test` has."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-m", "not e2e and not long"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False).stdout
    return float(lines.strip().splitlines()[-1].split("/")[0].split()[0])


def tables() -> float:
    """Return 1 if README's tables are what the stored rows give."""
    return float(pages()[README] == README.read_text(encoding="utf-8"))


def _exactly(value: float) -> Callable[[], tuple[float, float, float]]:
    return lambda: (value, value, value)


def _quoted(name: str) -> str:
    return stored.findings().held_figure(name)


CLAIMS = (
    Claim(
        "wire",
        "indices at a density of 10 % are within 1.5 % of the entropy bound",
        "(1.5 % at the 10 %",
        lambda: (stored.index_overhead(), 0.0, 1.5),
        "tools/results/bench.json",
        0.1,
        partial(index_overhead, (0.1,)),
    ),
    Claim(
        "wire-densities",
        "indices are within 4.3 % of it at every density",
        "within 4.3 % of the entropy bound",
        lambda: (4.25, 0.0, 4.3),
        "tests/sepal/wire/test_wire_size.py",
        0.5,
        partial(index_overhead, DENSITIES),
    ),
    Claim(
        "killed",
        "a run that is killed and started again gives the same weights",
        "A run that is killed and started again gives the same result",
        _exactly(1.0),
        "tools/results/side-by-side.ndjson",
        0.5,
        killed_run,
        "",
    ),
    Claim(
        "deployment",
        "a deployment over gRPC has the weights of a run in process",
        "in a deployment over gRPC",
        _exactly(1.0),
        "tests/e2e/test_deployment.py",
        2,
        partial(pytest, *DEPLOYED),
        "",
    ),
    Claim(
        "tests",
        "`make test` runs more than 10,000 tests",
        "more than 10,000",
        lambda: (10000, 10000, 12000),
        "README.md",
        0.5,
        number_of_tests,
        "tests",
    ),
    Claim(
        "tables",
        "README's tables, the sentence below them and *Which method?* follow from the stored rows",
        "",
        _exactly(1.0),
        "referee/results/leaderboard",
        0.5,
        tables,
        "",
    ),
    *(
        Claim(
            f"har-{name}",
            f"HAR, {SHOWN.get(name, name)}: what a client holds; the first of five seeds, run again",
            "",
            partial(har_expected, name),
            LEADERBOARD,
            4,
            partial(har_accuracy, name),
            "%",
            "HAR",
        )
        for name in NAMES
    ),
)
# What takes longer than an hour is said and not run.
LONG = (
    ("all HAR rows of README, five seeds and the search", "make -C referee leaderboard BLOCKS=a", LEADERBOARD),
    (
        "the other three federations of *Which method?*",
        'make -C referee leaderboard BLOCKS="b c d"',
        "referee/results/leaderboard",
    ),
)
