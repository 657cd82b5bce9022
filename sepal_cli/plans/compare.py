"""``sepal compare``: run a plan, then show the results of its runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sepal.errors import ConfigError, SepalError


def compare(
    plan: Annotated[Path, typer.Argument(help="TOML plan: methods, seeds, [settings].")],
    out: Annotated[Path | None, typer.Option(help="Directory of the runs; by default runs/PLAN.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core.")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run; 0: by the cores.")] = 0,
    hours: Annotated[float | None, typer.Option(help="Start no run after so many hours.")] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
) -> None:
    """Run the missing runs of methods × settings × seeds, and show all side by side.

    If it is killed, start it again to continue.
    """
    from sepal_cli.comparison import read_comparison, write_index
    from sepal_cli.comparison_tables import print_comparison, write_csv
    from sepal_cli.paper.report import write_report
    from sepal_cli.plans.plan import check_keys, read_plan
    from sepal_cli.plans.trials import Executor, chosen, failures, in_stages

    found = read_plan(plan)
    runs = list(found.runs())
    check_keys(plan.name, runs)
    place = (out or Path("runs") / plan.stem).absolute()
    execute = Executor(place, jobs, workers, found.hours if hours is None else hours)
    failed = in_stages(found, "", place, execute)
    runs = list(found.runs(chosen=chosen(found, place, failures(place))))
    write_index(found, runs, place)
    written = write_report(found, runs, place)
    if len(failed) < len(runs):
        comparison = read_comparison([str(place)])
        print_comparison(Console(), comparison)
        write_csv(comparison, place / "comparison.csv")
        written.append(place / "comparison.csv")
        if report:
            written += _report(place)
    for path in written:
        typer.echo(f"written to {path}")
    if failed:
        raise SepalError(str(plan), f"{len(runs)} runs that end", f"{len(failed)} that failed, the first: {failed[0]}")


def _report(place: Path) -> list[Path]:
    from sepal_cli.report import write_html

    try:
        return [write_html([str(place)], place / "report.html")]
    except ConfigError as error:
        if error.key != "report":
            raise
        typer.echo(f"sepal: no report.html: {error}", err=True)
        return []
