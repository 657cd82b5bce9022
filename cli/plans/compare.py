"""``sepal compare``: run a plan, then show the results of its runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sepal.cli.plans.model import Plan, PlannedRun
from sepal.errors import ConfigError, SepalError


def compare(
    plan: Annotated[Path, typer.Argument(help="TOML plan: methods, seeds, [settings].")],
    out: Annotated[
        Path | None, typer.Option(help="Directory of the runs; by default runs/PLAN, or runs/PLAN-tuned.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core.")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run; 0: by the cores.")] = 0,
    hours: Annotated[float | None, typer.Option(help="Start no run after so many hours.")] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    tune: Annotated[
        bool, typer.Option("--tune", help="First search each method's rate on validation data (tune = true).")
    ] = False,
) -> None:
    """Run the missing runs of methods × settings × seeds, and show all side by side.

    If it is killed, start it again to continue.
    """
    from sepal.cli.comparison import read_comparison, write_index
    from sepal.cli.comparison_markdown import write_markdown
    from sepal.cli.comparison_tables import print_comparison, write_csv
    from sepal.cli.plans.plan import check_keys, read_plan
    from sepal.cli.plans.rates import rate_notes
    from sepal.cli.plans.trials import Executor, chosen, failures, in_stages, tried

    found = read_plan(plan, tune)
    runs = list(found.runs())
    check_keys(plan.name, runs)
    place = (out or Path("runs") / f"{plan.stem}{'-tuned' * found.tune}").absolute()
    limit = found.hours if hours is None else hours
    execute = Executor(place, jobs, workers, limit, rate_notes(found, runs))
    failed = in_stages(found, "", place, execute)
    runs = list(found.runs(chosen=chosen(found, place, failures(place))))
    write_index(found, runs, place, rate_notes(found, runs), tried(found, place, failures(place)))
    written = []
    if len(failed) < len(runs):
        comparison = read_comparison([str(place)])
        print_comparison(Console(), comparison)
        write_csv(comparison, place / "comparison.csv")
        write_markdown(comparison, place / "tables.md")
        written += [place / "comparison.csv", place / "tables.md"]
        if report:
            written += _report(place)
    for path in written:
        typer.echo(f"written to {path}")
    if bad := without_result(found, runs, failed):
        raise SepalError(str(plan), f"{len(runs)} runs that end", f"{len(bad)} that failed, the first: {bad[0]}")


def without_result(plan: Plan, runs: Sequence[PlannedRun], failed: Sequence[str]) -> list[str]:
    """Return the failed runs that leave a variant without a result.

    Trials of ``tune = true`` may fail, as training diverges at a large rate, but not all of a variant's.
    """
    searched: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if plan.tune and run.block in plan.trial_blocks:
            searched.setdefault((run.block, run.variant), []).append(run.name)
    kept = {name for names in searched.values() for name in names if not set(names) <= set(failed)}
    return [name for name in failed if name not in kept]


def _report(place: Path) -> list[Path]:
    from sepal.cli.report import write_html

    try:
        return [write_html([str(place)], place / "report.html")]
    except ConfigError as error:
        if error.key != "report":
            raise
        typer.echo(f"sepal: no report.html: {error}", err=True)
        return []
