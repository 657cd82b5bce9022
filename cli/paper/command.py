"""``sepal paper``: reproduce a paper's tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sepal.errors import ConfigError, SepalError

PLANS = Path(__file__).resolve().parents[2] / "experiments" / "papers"  # in a checkout; the wheel has no plans


class AtScale(StrEnum):
    """How much of a paper is run."""

    QUICK = "quick"
    CPU = "cpu"
    FULL = "full"


def paper(
    plan: Annotated[str, typer.Argument(help="A paper's name (a plan in experiments/papers), or the path of a plan.")],
    table: Annotated[str, typer.Option(help="Only what this table or figure of the paper needs, for example 1.")] = "",
    scale: Annotated[
        AtScale, typer.Option(help="quick: minutes, on digits; cpu: the plan as written; full: the paper's budget.")
    ] = AtScale.CPU,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the runs; by default runs/PLAN or runs/PLAN-SCALE.")
    ] = None,
    only: Annotated[str, typer.Option(help="One block of the plan.")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one for each core.")] = 1,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run; 0: by the cores.")] = 0,
    hours: Annotated[
        float | None, typer.Option(help="Start no run after so many hours; by default the plan's.")
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Start no run; write tables of the existing ones.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Start no run; recompute the tables of this page from its .ndjson.")
    ] = None,
) -> None:
    """Run the missing and unfinished runs of a paper's tables; then write tables.md and results.ndjson.

    Each published figure is shown next to the measured one, with their difference. The tables also state the wall time
    and the commit. With --table, they are printed, too.
    """
    from sepal.cli.comparison import write_index
    from sepal.cli.paper.report import rewrite_page, write_report
    from sepal.cli.plans.plan import read_plan
    from sepal.cli.plans.trials import Executor, chosen, failures, in_stages

    file = find_plan(plan)
    found = read_plan(file)
    if page is not None:
        typer.echo(f"written to {rewrite_page(page, found)}")
        return
    found = found.at(scale.value)
    found = found.of_table(table) if table else found
    suffix = "" if scale is AtScale.CPU else f"-{scale}"
    place = (out or Path("runs") / f"{file.stem}{suffix}").absolute()
    failed: list[str] = []
    if not report:
        limit = found.hours if hours is None else hours
        failed = in_stages(found, only, place, Executor(place, jobs, workers, limit))
        write_index(found, list(found.runs()), place)
    written = write_report(found, list(found.runs(chosen=chosen(found, place, failures(place)))), place)
    if table:
        typer.echo(written[0].read_text())
    for path in written:
        typer.echo(f"written to {path}")
    if failed:
        count = len(list(found.runs(only)))
        raise SepalError(plan, f"{count} runs that end", f"{len(failed)} that failed, the first: {failed[0]}")


def find_plan(text: str) -> Path:
    """Return the plan that ``text`` names: a path, or a paper's name.

    Raises:
        ConfigError: There is no such file, and no paper of that name.
    """
    path = Path(text).expanduser()
    if path.suffix or path.is_file():
        return path
    if (named := PLANS / f"{text}.toml").is_file():
        return named
    known = ", ".join(sorted(file.stem for file in PLANS.glob("*.toml")))
    expected = f"a path, or one of {known}" if known else "a path: the papers' plans come with a checkout of Sepal"
    raise ConfigError("plan", expected, text)
