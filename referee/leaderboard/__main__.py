"""``python -m referee.leaderboard``: run what a block of the leaderboard lacks, and write the page.

``--block d --hours 1`` runs missing runs in their order and stores each at once, so that a kill costs one run at most.
``--pages`` writes ``referee/results/leaderboard.md`` and its tables from the rows that are there. ``--plan`` says what
is missing and what it takes. ``--rerun`` runs a random stored row again and compares the digests of all weights.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from referee.calibrate.trial import quiet
from referee.leaderboard import rows
from referee.leaderboard.blocks import NAMES, read_block, text
from referee.leaderboard.design import Design, Run
from referee.leaderboard.estimate import hours_left
from referee.leaderboard.pages import write_pages
from referee.leaderboard.runs import again, run
from sepal.errors import SepalError, one_line

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments ask for; bad input is one line on standard error and exit code 2."""
    given = parser().parse_args(arguments)
    try:
        if given.pages:
            for path in write_pages():
                print(f"written to {path}")
        elif given.plan:
            for name in given.block:
                print(plan(name))
        elif given.rerun:
            sys.exit(0 if rerun(given.block, given.draw) else 1)
        else:
            for name in given.block:
                with rows.alone(name):
                    work(name, given.jobs, given.hours, given.runs)
    except SepalError as problem:
        print(f"leaderboard: {one_line(str(problem))}", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    found = argparse.ArgumentParser("python -m referee.leaderboard", description=(__doc__ or "").partition("\n")[0])
    found.add_argument("--block", nargs="*", default=list(NAMES), choices=NAMES, help="by default all")
    found.add_argument("--hours", type=float, default=1.0, help="start no run of a block after so many hours")
    found.add_argument("--jobs", type=int, default=1, help="runs at a time")
    found.add_argument("--runs", type=int, default=0, help="end after so many runs of a block; 0: no limit")
    found.add_argument("--pages", action="store_true", help="run nothing; write the page and its tables")
    found.add_argument("--plan", action="store_true", help="run nothing; say what is missing")
    found.add_argument("--rerun", action="store_true", help="run one random stored row again, and compare digests")
    found.add_argument("--draw", type=int, help="draw that row with this seed; by default another each time")
    return found


def work(name: str, jobs: int, hours: float, most: int = 0) -> None:
    """Run what a block lacks, ``jobs`` runs at a time, until there is nothing, or no time, or ``most`` have ended.

    A run that ends with an error that is not one of Sepal's has no row; the next command tries it again. So it is with
    all that were going when a worker was killed: which one took too much memory, nobody knows.
    """
    block, stored, begun, here = read_block(name), rows.read(name), time.monotonic(), rows.commit_now()
    done, started, pool = 0, 0, _pool(jobs)
    going: dict[Future[dict[str, Any]], Run] = {}
    bad: set[str] = set()
    try:
        while True:
            busy = bad | {text(each.config) for each in going.values()}
            for planned in Design(block, stored).needed():
                late = time.monotonic() - begun > hours * 3600 or (most and started >= most)
                if late or len(going) >= jobs:
                    break
                if text(planned.config) not in busy:
                    if not _started(pool, planned, here, going):
                        break
                    busy.add(text(planned.config))
                    started += 1
            if not going:
                return
            ended = wait(going, return_when=FIRST_COMPLETED).done
            if any(isinstance(future.exception(), BrokenProcessPool) for future in ended):
                ended = wait(going).done  # a pool that lost a worker ends them all
                pool.shutdown()
                pool = _pool(jobs)
            for future in ended:
                planned = going.pop(future)
                row = _row(future, planned)
                if row is None:
                    bad.add(text(planned.config))
                    continue
                rows.add(name, row)
                stored.append(row)
                done += 1
                print(said(done, row), flush=True)
    finally:
        pool.shutdown()


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=quiet)


def _started(pool: ProcessPoolExecutor, planned: Run, here: str, going: dict[Future[dict[str, Any]], Run]) -> bool:
    """Start a run; return False if one of those that are going has lost its worker."""
    try:
        going[pool.submit(run, planned, here)] = planned
    except BrokenProcessPool:
        if not going:
            raise
        return False
    return True


def _row(future: Future[dict[str, Any]], planned: Run) -> dict[str, Any] | None:
    """Return the row of a run that has ended; None, and say why, if there is none."""
    config, kind = planned.config, f"{planned.block} {planned.contender} {planned.kind}"
    try:
        return future.result()
    except BrokenProcessPool:
        words = f"{kind} seed {config['seed']} lr {config['lr']:g}, {config['rounds']} rounds"
        print(f"a worker was killed, for memory perhaps; set aside: {words}", flush=True)
    except Exception:  # a bug, or a machine without room
        log.exception("no row of %s", planned)
    return None


def said(number: int, row: dict[str, Any]) -> str:
    """Return a line about a run that has ended."""
    config, found = row["config"], row["validation"].get("trained")
    words = f"{number}: {row['block']} {row['contender']} {row['kind']} seed {config['seed']} lr {config['lr']:g}"
    result = row.get("error") or (f"validation {100 * found:.1f} %" if found is not None else "no validation")
    return f"{words}, {config['rounds']} rounds, {row['cpu_seconds']:.0f} s: {result}"


def plan(name: str) -> str:
    """Return how many runs of a block are known to be missing, by kind, and the estimated core-hours to its end."""
    design = Design(read_block(name), rows.read(name))
    missing = Counter(planned.kind for planned in design.needed())
    words = ", ".join(f"{count} {kind}" for kind, count in missing.items()) or "nothing"
    left = hours_left(design)
    return f"{name}: {len(design.rows)} rows; missing now: {words}; to the end about {left:.1f} core-hours"


def rerun(names: Sequence[str], draw: int | None) -> bool:
    """Run a random stored row again and store what was found; return whether the weights are the same."""
    found = list(_rows(names))
    if not found:
        print("no rows yet")
        return False
    row = random.Random(draw).choice(found)
    line = again(row, rows.commit_now())
    rows.add(rows.RERUNS, line)
    same = "the same weights" if line["same"] else "OTHER WEIGHTS"
    kind = f"{row['block']} {row['contender']} {row['kind']} seed {row['config']['seed']}"
    print(f"{kind}: first {row['written']} at {row['commit']}, now at {line['commit']}: {same}")
    return bool(line["same"])


def _rows(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        yield from rows.read(name)


if __name__ == "__main__":
    main()
