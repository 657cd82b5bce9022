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
from sepal.cli.tracking import check_mlflow, log_runs
from sepal.errors import ConfigError, SepalError, one_line
from sepal.report.progress import PlanDisplay
from sepal.storage.files import write_atomically
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
    found = argparse.ArgumentParser("python -m referee.paper", description=(__doc__ or "").partition("\n")[0])
    found.add_argument("plan", nargs="?", default="", help="a paper's name, or the path of a plan")
    found.add_argument("--table", default="", help="only what this table or figure of the paper needs, for example 1")
    found.add_argument(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="quick: minutes, on digits; cpu (the default): the plan as written; full: the paper's budget",
    )
    found.add_argument("--out", type=Path, help="directory of the runs; by default runs/PLAN or runs/PLAN-SCALE")
    found.add_argument("--only", default="", help="one block of the plan")
    found.add_argument("--jobs", type=_count, default=1, help="runs at a time; 0: one for each core")
    found.add_argument("--workers", type=_count, default=0, help="worker processes of each run; 0: by the cores")
    found.add_argument("--hours", type=float, help="start no run after so many hours; by default the plan's")
    found.add_argument("--mlflow", default="", metavar="URI", help="log the runs to MLflow: a server or directory")
    found.add_argument("--report", action="store_true", help="start no run; write tables of the existing ones")
    found.add_argument("--pages", action="store_true", help="start no run; make the pages of referee/results")
    return found


def reproduce(given: argparse.Namespace) -> None:
    """Do what the arguments ask for.

    Raises:
        SepalError: The plan is bad, or a run failed.
    """
    if given.pages:
        for path, text in pages().items():
            write_atomically(path, text.encode())
            print(f"written to {path}")
        return
    check_mlflow(given.mlflow)
    file = find_plan(given.plan)
    plan = read_plan(file)
    plan = plan.at(given.scale)
    plan = plan.of_table(given.table) if given.table else plan
    suffix = "" if given.scale == "cpu" else f"-{given.scale}"
    place = (given.out or Path("runs") / f"{file.stem}{suffix}").absolute()
    failed: list[str] = []
    if not given.report:
        limit = plan.hours if given.hours is None else given.hours
        failed = in_stages(
            plan,
            given.only,
            place,
            Executor(place, partial(PlanDisplay, Console(stderr=True)), given.jobs, given.workers, limit),
        )
        write_index(plan, list(plan.runs()), place)
    written = write_report(plan, list(plan.runs(chosen=chosen(plan, place, failures(place)))), place)
    if given.table:
        print(written[0].read_text(encoding="utf-8"))
    for path in written:
        print(f"written to {path}")
    if given.mlflow:
        print(log_runs(given.mlflow, place.name, [place / run.name for run in plan.runs()]))
    if failed:
        count = len(list(plan.runs(given.only)))
        raise SepalError(given.plan, f"{count} runs that end", f"{len(failed)} that failed, the first: {failed[0]}")


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
    raise ConfigError("plan", f"a path, or one of {known}", text or "none")


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return number


if __name__ == "__main__":
    main()
