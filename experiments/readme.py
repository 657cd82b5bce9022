"""README's picture, table and advice from stored results: ``python -m experiments.readme`` writes them.

The results are those of the leaderboard on HAR: ten methods on the same 30 people, three seeds, each method at the
rate that validation data chose. A lead is called one only where its 95 % interval over the seeds excludes 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

from experiments.leaderboard.readme import PAPERS
from experiments.parts import DOCS, README, rewritten
from sepal.errors import ConfigError
from sepal.storage.files import write_atomically
from sepal.strategies import registry

ROWS = DOCS / "results" / "leaderboard.ndjson"
BLOCK = "har"
NAMES = {
    **{"fedavg": "FedAvg", "fedavg-ft": "FedAvg + fine-tuning", "local": "Local", "ditto": "Ditto", "fedper": "FedPer"},
    **{"fedstc": "FedSTC", "fedpse": "FedPSE", "dmpfl": "DM-PFL", "subfedavg": "Sub-FedAvg", "pa3dfl": "Pa3dFL"},
}
OLD = ("pfedgate",)  # whose runs have another start of the gate than today's default: no figure of them is shown


@dataclass(frozen=True)
class Figures:
    """A method's runs on the same clients.

    Attributes:
        method: Its name.
        accuracy: The deployed model's mean accuracy over clients, in %, by seed.
        shifted: The same under full test-time shift: all test data drawn from all clients'.
        megabytes: MB per client in the whole run, both ways, by seed.
    """

    method: str
    accuracy: Mapping[int, float]
    shifted: Mapping[int, float]
    megabytes: Mapping[int, float]

    @property
    def shown(self) -> str:
        """Accuracy, mean ± standard deviation over seeds."""
        return _spread(self.accuracy)

    @property
    def sent(self) -> float:
        """MB per client, mean over seeds."""
        return mean(self.megabytes.values())


def _spread(by_seed: Mapping[int, float]) -> str:
    return f"{mean(by_seed.values()):.1f} ± {stdev(by_seed.values()):.1f}"


def read(file: Path = ROWS) -> dict[str, Figures]:
    """Return the figures of each method, from a results file.

    Raises:
        ConfigError: The file has no run of the block.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        if row["block"] == BLOCK:
            rows.setdefault(row["variant"], []).append(row)
    if not rows:
        raise ConfigError(file.name, f"runs of the block {BLOCK}", "none")
    return {method: _figures(method, found) for method, found in rows.items() if method not in OLD}


def _figures(method: str, rows: Sequence[Mapping[str, Any]]) -> Figures:
    view = registry.deployed(method)
    by_seed = {row["seed"]: row for row in rows}
    return Figures(
        method,
        {seed: 100 * row["accuracy"][view]["mean"] for seed, row in by_seed.items()},
        {seed: 100 * mean(row["clients"][f"{view}-shift-100"]) for seed, row in by_seed.items()},
        {
            seed: (row["megabytes"]["up"] + row["megabytes"]["down"]) / len(row["clients"]["name"])
            for seed, row in by_seed.items()
        },
    )


def compared(one: Mapping[int, float], other: Mapping[int, float], name: str) -> str:
    """Return the words for a difference of accuracies by seed: a lead only where a 95 % interval excludes 0."""
    gaps = [one[seed] - other[seed] for seed in one]
    gap, half = mean(gaps), stats.t.ppf(0.975, len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    figures = f"{abs(gap):.1f} ± {half:.1f} points"
    if abs(gap) <= half:
        return f"within the noise of {name} ({gap:+.1f} ± {half:.1f})"
    return f"{figures} {'ahead of' if gap > 0 else 'behind'} {name}"


def table(found: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the table of papers."""
    yield "| method | paper | what it does | measured on HAR: deployed model, MB per client |"
    yield "|---|---|---|---|"
    for method, what in PAPERS.items():
        own = found.get(method)
        measured = f"{own.shown} %, {own.sent:.1f} MB" if own else "no run with today's default yet"
        source = registry.get(method).source
        yield f"| `{method}` | {source} | {what} | [{measured}](docs/results/{method}.md) |"
    others = [found[method] for method in ("fedavg", "fedavg-ft", "local")]
    beside = "; ".join(f"{NAMES[other.method]} {other.shown} %, {other.sent:.1f} MB" for other in others)
    yield ""
    yield f"On the same clients: {beside}."


def advice(found: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the lines that say when to use which method."""
    own = {method: each.accuracy for method, each in found.items()}
    shifted = {method: each.shifted for method, each in found.items()}
    share = {method: f"{100 * each.sent / found['fedavg'].sent:.0f} %" for method, each in found.items()}

    def versus(figures: Mapping[str, Mapping[int, float]], one: str, other: str) -> str:
        return compared(figures[one], figures[other], NAMES[other])

    yield "- **Local**: each client has enough data of its own. It sends nothing: what it beats wastes bytes."
    tuned = versus(own, "fedavg-ft", "local")
    yield f"- **FedAvg + fine-tuning**: bytes do not matter. It is the baseline to beat: {tuned}."
    behind = versus(shifted, "fedavg-ft", "fedavg")
    yield f"- **FedAvg**: clients will meet data like that of other clients. There, FedAvg + fine-tuning is {behind}."
    stc = versus(own, "fedstc", "fedavg")
    yield f"- **FedSTC**: one model for all is enough, and bytes count: {share['fedstc']} of FedAvg's, {stc}."
    pse = f"{versus(own, 'fedpse', 'fedavg-ft')} and {versus(own, 'fedpse', 'local')}"
    yield f"- **FedPSE**: personal models for {share['fedpse']} of FedAvg's bytes: {pse}."
    sub, mask = versus(own, "subfedavg", "fedavg-ft"), versus(own, "dmpfl", "local")
    yield f"- **Sub-FedAvg, DM-PFL**: the models themselves must be sparse. Sub-FedAvg is {sub}; DM-PFL is {mask}."
    yield "- **Pa3dFL, pFedGate**: clients differ in capacity or budget. Such runs have one seed so far: compare first."


def written() -> Iterator[tuple[Path, str]]:
    """Yield each file that this module makes, with its content."""
    from experiments.readme_picture import PALETTES, svg

    found = read()
    yield README, rewritten(README.read_text(), {"table": table(found), "advice": advice(found)})
    for name, palette in PALETTES.items():
        yield DOCS / f"accuracy-{name}.svg", svg(found, palette)


def main() -> None:
    """Write the files."""
    for file, text in written():
        write_atomically(file, text.encode())
        print(f"written to {file}")


if __name__ == "__main__":
    main()
