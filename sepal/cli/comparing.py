"""``sepal compare`` and ``sepal tune``: run a plan, then show the results of its runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sepal.cli.app import INTERRUPTED, app
from sepal.cli.notices import starting, tell
from sepal.cli.options import Devices, Trackers
from sepal.errors import ConfigError
from sepal.report.printing import say

if TYPE_CHECKING:
    from sepal.study.comparison import Comparison
    from sepal.study.plans.model import PlanFile, PlannedRun

On = Annotated[str, typer.Option("--on", metavar="PLACE", help="Where runs are executed: local, slurm, ray or ssh.")]
Jobs = Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core, or 100 jobs of a cluster.")]


@app.command()
def compare(
    plan: Annotated[Path, typer.Argument(help="TOML plan: methods, seeds, [settings].")],
    out: Annotated[
        Path | None, typer.Option(help="Directory of the runs; by default runs/PLAN, or runs/PLAN-tuned.")
    ] = None,
    jobs: Jobs = 0,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run; 0: by the cores.")] = 0,
    hours: Annotated[float | None, typer.Option(help="Start no run after so many hours.")] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    tune: Annotated[
        bool, typer.Option("--tune", help="First search each method's rate on validation data (tune = true).")
    ] = False,
    on: On = "local",
    status: Annotated[bool, typer.Option("--status", help="Say how far the runs are, and start none.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Print every view, the costs and all differences.")] = False,
    devices: Devices = "",
    mlflow: Annotated[str, typer.Option(metavar="URI", help="Log the runs to MLflow: a server or directory.")] = "",
    tracker: Trackers = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="With --status: code that the plan may name, package.module:NAME, or all of a module."),
    ] = None,
    data: Annotated[
        bool, typer.Option("--data", help="With --status: read the data that the plan names, if its rates need it.")
    ] = False,
) -> None:
    """Run the missing runs of methods × settings × seeds, and show all side by side.

    If it is killed, start it again to continue.
    """
    with starting():
        from sepal.cli.trackers import log_runs, trackers_of
        from sepal.report.console import console
        from sepal.report.files import by_variant, write_csv
        from sepal.report.markdown import write_markdown
        from sepal.report.progress import PlanDisplay
        from sepal.report.tables import print_comparison
        from sepal.simulated_time import read_profile
        from sepal.study.clusters.place import SLURM, place_of
        from sepal.study.comparison import read_comparison
        from sepal.study.plans.looking import looking
        from sepal.study.plans.plan import read_plan
        from sepal.study.plans.trials import failure, run_plan

    if status:
        with looking(allow or (), data):
            plan_file: PlanFile = read_plan(plan, tune)
            _print_status(plan_file, _directory(plan, plan_file, out))
        return
    if allow or data:
        raise ConfigError("--allow" if allow else "--data", "--status beside it: a run does what its plan says", "none")
    if devices:
        read_profile(devices)  # refused before any run
    trackers = trackers_of(tracker or (), mlflow)
    plan_file = read_plan(plan, tune)
    directory = _directory(plan, plan_file, out)
    place, jobs = place_of(on, jobs, plan_file, plan.name)
    displays = partial(PlanDisplay, console(stderr=True))
    try:
        done = run_plan(
            plan_file, directory, displays, jobs=jobs, workers=workers, hours=hours, file=plan.name, place=place
        )
    except KeyboardInterrupt:
        _tell_interrupted(directory, list(plan_file.runs()) if on == SLURM else [])
        raise typer.Exit(INTERRUPTED) from None
    written = []
    if len(done.failed) < len(done.runs):
        comparison = read_comparison([str(directory)], devices=devices)
        print_comparison(console(), comparison, everything)
        written.append(write_csv(list(by_variant(comparison)), directory / "comparison.csv"))
        pages = _write_pages(comparison, directory, devices) if report else []
        written += [write_markdown(comparison, directory / "tables.md", pages), *pages]
    for path in written:
        say(f"written to {path}")
    for line in log_runs(trackers, directory.name, [directory / run.name for run in done.runs]):
        say(line)
    if bad := done.lost:
        raise failure(str(plan), len(done.runs), bad)


def _directory(plan: Path, plan_file: PlanFile, out: Path | None) -> Path:
    """Return the directory of a plan's runs."""
    return (out or Path("runs") / f"{plan.stem}{'-tuned' * plan_file.tune}").absolute()


def _tell_interrupted(directory: Path, runs: Sequence[PlannedRun]) -> None:
    """Say how an interrupted study goes on; ``runs`` are those that may be jobs of a cluster."""
    from sepal.study.clusters.slurm import cancelling

    if command := cancelling(directory, [run.name for run in runs]):
        words = f"their jobs go on, and the same command takes them up again; `{command}` ends them"
        tell(f"sepal: interrupted; {words}")
    else:
        tell("sepal: interrupted; the same command runs what is missing")


def _print_status(plan: PlanFile, directory: Path) -> None:
    from sepal.report.console import console
    from sepal.report.tables import print_text_table
    from sepal.report.text_tables import TextTable
    from sepal.study.clusters.status import counts, statuses
    from sepal.study.plans.trials import chosen, failures

    causes = failures(directory)
    shown = list(statuses(directory, list(plan.runs(chosen=chosen(plan, directory, causes))), causes))
    rows = []
    for run in shown:
        since = f"{datetime.fromtimestamp(run.since):%Y-%m-%d %H:%M:%S}" if run.since else ""
        rows.append([run.name, run.state, run.rounds, run.where, str(run.starts or ""), since, run.words])
    heads = ("run", "state", "rounds", "where", "starts", "noted", "why")
    print_text_table(console(), TextTable(heads, rows), counts(shown), left=True)


def _write_pages(comparison: Comparison, directory: Path, devices: str) -> list[Path]:
    from sepal.report.page import write_html, write_picture

    try:
        pages = [
            write_html([str(directory)], directory / "report.html", devices=devices),
            write_picture(comparison, directory / "frontier.svg"),
        ]
        return [page for page in pages if page]
    except ConfigError as error:
        if error.key != "report":
            raise
        tell(f"sepal: no report.html: {error}")
        return []


@app.command()
def tune(
    plan: Annotated[Path, typer.Argument(help="TOML plan with methods, [settings] and [grid].")],
    out: Annotated[Path | None, typer.Option(help="Directory of the runs; by default runs/PLAN.")] = None,
    jobs: Jobs = 0,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of each run; 0: by the cores.")] = 0,
    hours: Annotated[float | None, typer.Option(help="Start no run after so many hours.")] = None,
    on: On = "local",
) -> None:
    """Try a small grid of settings for each method, with the same number of trials; choose by validation data alone."""
    with starting():
        from sepal.report.console import console
        from sepal.report.progress import PlanDisplay
        from sepal.report.tables import print_text_table
        from sepal.report.text_tables import NONE, TextTable
        from sepal.study.clusters.place import SLURM, place_of
        from sepal.study.plans.execute import execute
        from sepal.study.plans.plan import check_keys
        from sepal.study.plans.trials import failure
        from sepal.study.plans.tune import choose, read_search

    search = read_search(plan)
    runs = list(search.plan.runs())
    check_keys(plan.name, runs)
    search.check_validation(runs)
    directory = (out or Path("runs") / plan.stem).absolute()
    budget = search.plan.hours if hours is None else hours
    place, jobs = place_of(on, jobs, search.plan, plan.name)
    display = PlanDisplay(console(stderr=True))
    try:
        failed = execute(runs, directory, display, jobs=jobs, workers=workers, hours=budget, place=place)
    except KeyboardInterrupt:
        _tell_interrupted(directory, runs if on == SLURM else [])
        raise typer.Exit(INTERRUPTED) from None
    trials = search.judged(directory, runs)
    measure = search.measure(directory, runs)
    best, rows = choose(trials, measure), []
    for trial in trials:
        words = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
        figure = NONE if trial.validation is None else measure.number(trial.validation)
        mark = "chosen" if trial is best.get(trial.method) else ""
        rows.append([trial.method, words, search.views[trial.method], figure, mark])
    text_table = TextTable(("method", "settings", "view", "validation", ""), rows)
    print_text_table(
        console(),
        text_table,
        f"{measure.name.capitalize()} on validation data{measure.in_unit}, and what is chosen",
        left=True,
    )
    for path in search.write(directory, runs, trials):
        say(f"written to {path}")
    if failed:
        raise failure(str(plan), len(runs), failed)
