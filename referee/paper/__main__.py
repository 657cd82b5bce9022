"""``python -m referee.paper NAME``: reproduce a paper's tables; without a name, list the papers.

The missing and unfinished runs of the paper's plan are run; then ``tables.md`` and ``results.ndjson`` are written next
to them. Each published figure is shown next to the measured one, with their difference. The tables also state the wall
time and the commit. With ``--table``, they are printed, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from referee.paper.pages import PLANS, pages
from referee.paper.plan import SCALES, read_plan
from referee.paper.report import write_report
from sepal import user_modules
from sepal.cli.trackers import log_runs, trackers_of
from sepal.errors import ConfigError, SepalError, one_line
from sepal.report.progress import PlanDisplay
from sepal.storage.files import write_atomically
from sepal.study.clusters.place import place_of
from sepal.study.comparison import write_index
from sepal.study.plans.trials import Executor, chosen, failures, in_stages

BAD_INPUT, INTERRUPTED = 2, 130  # exit codes, as those of `sepal`


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; bad input is one line on standard error and exit code 2."""
    user_modules.enable(Path.cwd())
    try:
        reproduce(parser().parse_args(arguments))
    except SepalError as problem:
        print(f"paper: {one_line(str(problem))}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        print("paper: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    command = argparse.ArgumentParser("python -m referee.paper", description=(__doc__ or "").partition("\n")[0])
    command.add_argument("plan", nargs="?", default="", help="a paper's name, or the path of a plan")
    command.add_argument("--table", default="", help="only what this table or figure of the paper needs, for example 1")
    command.add_argument(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="quick: minutes, on digits; cpu (the default): the plan as written; full: the paper's budget",
    )
    command.add_argument("--out", type=Path, help="directory of the runs; by default runs/PLAN or runs/PLAN-SCALE")
    command.add_argument("--only", default="", help="one block of the plan")
    command.add_argument("--jobs", type=_count, default=1, help="runs at a time; 0: one for each core")
    command.add_argument("--on", default="local", metavar="PLACE", help="where runs are executed: local, slurm or ray")
    command.add_argument("--workers", type=_count, default=0, help="worker processes of each run; 0: by the cores")
    command.add_argument("--hours", type=float, help="start no run after so many hours; by default the plan's")
    command.add_argument("--mlflow", default="", metavar="URI", help="log the runs to MLflow: a server or directory")
    command.add_argument("--report", action="store_true", help="start no run; write tables of the existing ones")
    command.add_argument("--pages", action="store_true", help="start no run; make the pages of referee/results")
    return command


def reproduce(args: argparse.Namespace) -> None:
    """Do what the arguments ask for.

    Raises:
        SepalError: The plan is bad, or a run failed.
    """
    if args.pages:
        for path, text in pages().items():
            write_atomically(path, text.encode())
            print(f"written to {path}")
        return
    trackers = trackers_of((), args.mlflow)
    file = find_plan(args.plan)
    plan = read_plan(file)
    plan = plan.at(args.scale)
    plan = plan.of_table(args.table) if args.table else plan
    suffix = "" if args.scale == "cpu" else f"-{args.scale}"
    folder = (args.out or Path("runs") / f"{file.stem}{suffix}").absolute()
    failed: list[str] = []
    if not args.report:
        limit = plan.hours if args.hours is None else args.hours
        place, jobs = place_of(args.on, args.jobs, plan, file.name)
        display = partial(PlanDisplay, Console(stderr=True))
        executor = Executor(folder, display, jobs, args.workers, limit, place)
        failed = in_stages(plan, args.only, folder, executor)
        write_index(plan, list(plan.runs()), folder)
    written = write_report(plan, list(plan.runs(chosen=chosen(plan, folder, failures(folder)))), folder)
    if args.table:
        print(written[0].read_text(encoding="utf-8"))
    for path in written:
        print(f"written to {path}")
    for line in log_runs(trackers, folder.name, [folder / run.name for run in plan.runs()]):
        print(line)
    if failed:
        count = len(list(plan.runs(args.only)))
        raise SepalError(args.plan, f"{count} runs that end", f"{len(failed)} that failed, the first: {failed[0]}")


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
    names = ", ".join(sorted(file.stem for file in PLANS.glob("*.toml")))
    raise ConfigError("plan", f"a path, or one of {names}", text or "none")


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return number


if __name__ == "__main__":
    main()
