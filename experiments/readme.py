"""README's tables of results, from the result files in docs/results: ``python -m experiments.readme`` writes them.

The first table has each paper's headline: the variant that a block of its plan names (``headline``), next to FedAvg,
FedAvg with fine-tuning and Local on the same clients. The second has the leaderboard's mean ranks, once it has been
run. A plan without a result file next to its page is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.paper.ranks import SETTINGS, mean_ranks
from experiments.paper.report import accuracy, read_results
from sepal.cli.markdown import table
from sepal.cli.plans.model import Block, Plan
from sepal.cli.plans.plan import read_plan
from sepal.errors import ConfigError
from sepal.storage.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
README, PLANS, RESULTS = ROOT / "README.md", ROOT / "experiments" / "papers", ROOT / "docs" / "results"
PART = re.compile(r"(<!-- results: .*? -->)\n.*?(<!-- /results -->)", re.DOTALL)
OURS, OTHERS = ("kept", "received", "trained"), ("FedAvg, received", "FedAvg + fine-tuning", "Local")
HEADER = ("data", "method", *OURS, *OTHERS, "MB", "MB of FedAvg")
YARDSTICKS = (("fedavg", "received"), ("fedavg-ft", "trained"), ("local", "kept"))

Found = Mapping[str, Any]


def rewritten(text: str, results: Path = RESULTS) -> str:
    """Return README's ``text`` with the part between its markers regenerated.

    Args:
        text: The text, with ``<!-- results: … -->`` and ``<!-- /results -->``.
        results: Directory of the ``.ndjson`` files.

    Raises:
        ConfigError: There are no markers.
    """
    body = "\n".join(lines(results))
    new, count = PART.subn(lambda match: f"{match[1]}\n{body}{match[2]}", text)
    if not count:
        raise ConfigError("README.md", "<!-- results: … --> and <!-- /results -->", "neither")
    return new


def lines(results: Path) -> Iterator[str]:
    """Yield the lines of both tables."""
    rows: list[list[str]] = []
    for file in sorted(PLANS.glob("*.toml")):
        stored = results / f"{file.stem}.ndjson"
        if stored.is_file():
            plan, found = read_plan(file), read_results(stored)
            rows += _headlines(plan, found, f"docs/results/{file.stem}.md")
    yield from table(HEADER, rows)
    for file in sorted(PLANS.glob("*.toml")):
        stored, plan = results / f"{file.stem}.ndjson", read_plan(file)
        if plan.ranks and stored.is_file():
            yield from _ranks(plan, read_results(stored), f"docs/results/{file.stem}.md")


def _headlines(plan: Plan, results: Mapping[str, Found], page: str) -> Iterator[list[str]]:
    """Yield a row for each cell of the blocks that have a headline."""
    for block in plan.block:
        if block.headline is None:
            continue
        for cell in dict.fromkeys(run.cell for run in plan.runs(block.name)):
            groups: dict[str, list[Found]] = {}
            for run in plan.runs(block.name):
                if run.cell == cell and run.name in results:
                    groups.setdefault(run.variant, []).append(results[run.name])
            if block.headline in groups:
                yield _row(plan, block, cell, groups, page)


def _row(plan: Plan, block: Block, cell: str, groups: Mapping[str, Sequence[Found]], page: str) -> list[str]:
    """Return a row. The yardsticks are the block's first variants of their methods: a plan may give them a width."""
    assert block.headline is not None  # noqa: S101  (for mypy; the caller has checked)
    ours = groups[block.headline]
    place = ", ".join(filter(None, (block.title, cell.replace("lambda=", "λ=").replace("=", " = "))))
    method = str(plan.variants.get(block.headline, {}).get("method", block.headline))
    name = f"`{method}`" + f" ({block.headline})" * (method != block.headline)
    row = [f"[{place}]({page})", name, *(accuracy(ours, view) for view in OURS)]
    of = {}
    for name in reversed(list(groups)):
        of[str(plan.variants.get(name, {}).get("method", name))] = groups[name]
    row += [accuracy(of.get(method, ()), view) for method, view in YARDSTICKS]
    return [*row, _megabytes(ours), _megabytes(of.get("fedavg", ()))]


def _megabytes(group: Sequence[Found]) -> str:
    """Return the MB of all clients and rounds, both ways, mean over seeds."""
    sizes = [one["megabytes"]["up"] + one["megabytes"]["down"] for one in group]
    mean = sum(sizes) / len(sizes) if sizes else math.nan
    return f"{mean:,.0f}" if mean >= 1000 else f"{mean:.3g}" if sizes else "–"


def _ranks(plan: Plan, results: Mapping[str, Found], page: str) -> Iterator[str]:
    found = {setting.title: mean_ranks(plan, results, setting) for setting in SETTINGS}
    there = {title: means for title, means in found.items() if means}
    names = next(iter(there.values()), {})
    rows = [[f"`{name}`", *(f"{m[name]:.1f}" if name in m else "–" for m in there.values())] for name in names]
    yield from table([f"mean rank, 1 is best ([leaderboard]({page}))", *there], rows)


def main() -> None:
    """Rewrite README.md."""
    write_atomically(README, rewritten(README.read_text()).encode())
    print(f"written to {README}")


if __name__ == "__main__":
    main()
