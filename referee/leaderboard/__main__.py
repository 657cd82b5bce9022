"""``python -m referee.leaderboard``: run what a block of the leaderboard lacks, and write the page.

``--block d --hours 1`` runs missing runs in their order and stores each at once, so that a kill costs one run at most.
``--pages`` writes ``referee/results/leaderboard.md`` and its tables from the rows that are there. ``--plan`` says what
is missing and what it takes. ``--rerun`` runs a random stored row again and compares the digests of all weights.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from referee.checkout import commit_now, options
from referee.leaderboard.blocks import NAMES, read_block, text
from referee.leaderboard.design import Design
from referee.leaderboard.estimate import hours_left
from referee.leaderboard.pages import write_pages
from referee.leaderboard.runs import RERUNS, again, execute, path_of, read
from sepal.errors import SepalError, one_line
from sepal.study.record import RunRecord, alone, append
from sepal.study.runner import records


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the arguments ask for; bad input is one line on standard error and exit code 2."""
    parser = options("python -m referee.leaderboard", __doc__, hours=1.0)
    parser.add_argument("--block", nargs="*", default=list(NAMES), choices=NAMES, help="by default all")
    parser.add_argument("--runs", type=int, default=0, help="end after so many runs of a block; 0: no limit")
    parser.add_argument("--pages", action="store_true", help="run nothing; write the page and its tables")
    parser.add_argument("--plan", action="store_true", help="run nothing; say what is missing")
    parser.add_argument("--rerun", action="store_true", help="run one random stored row again, and compare digests")
    parser.add_argument("--draw", type=int, help="draw that row with this seed; by default another each time")
    args = parser.parse_args(arguments)
    try:
        if args.pages:
            for path in write_pages():
                print(f"written to {path}")
        elif args.plan:
            print(*map(plan, args.block), sep="\n")
        elif args.rerun:
            sys.exit(0 if rerun(args.block, args.draw) else 1)
        else:
            for name in args.block:
                with alone(path_of(name)):
                    work(name, args.jobs, args.hours, args.runs)
    except SepalError as problem:
        print(f"leaderboard: {one_line(str(problem))}", file=sys.stderr)
        sys.exit(2)


def work(name: str, jobs: int, hours: float, most: int = 0) -> None:
    """Run what a block lacks, ``jobs`` runs at a time, until there is nothing, or no time, or ``most`` have begun."""
    block, stored = read_block(name), read(name)
    make = partial(execute, commit=commit_now())
    ended = records(
        lambda: Design(block, stored).needed(), make, jobs, hours, most, lambda planned: text(planned.config)
    )
    for number, record in enumerate(ended, 1):
        append(path_of(name), record)
        stored.append(record)
        print(line_of(number, record), flush=True)


def line_of(number: int, row: RunRecord) -> str:
    """Return a line about a run that has ended."""
    accuracy = row.validation.get("trained")
    words = f"{number}: {_words(row)} lr {row.config['lr']:g}"
    result = row.error or (f"validation {100 * accuracy:.1f} %" if accuracy is not None else "no validation")
    return f"{words}, {row.rounds} rounds, {row.cpu_seconds:.0f} s: {result}"


def _words(row: RunRecord) -> str:
    return f"{' '.join(row.labels[key] for key in ('block', 'contender', 'kind'))} seed {row.seed}"


def plan(name: str) -> str:
    """Return how many runs of a block are known to be missing, by kind, and the estimated core-hours to its end."""
    design = Design(read_block(name), read(name))
    missing = Counter(planned.kind for planned in design.needed())
    words = ", ".join(f"{count} {kind}" for kind, count in missing.items()) or "nothing"
    core_hours = hours_left(design)
    return f"{name}: {len(design.rows)} rows; missing now: {words}; to the end about {core_hours:.1f} core-hours"


def rerun(names: Sequence[str], draw: int | None) -> bool:
    """Run a random stored row again and store what was found; return whether the weights are the same."""
    rows = [row for name in names for row in read(name)]
    if not rows:
        print("no rows yet")
        return False
    row = random.Random(draw).choice(rows)
    line = again(row, commit_now())
    append(path_of(RERUNS), line)
    same = "the same weights" if line.figures["same"] else "OTHER WEIGHTS"
    print(f"{_words(row)}: first {row.written} at {row.commit}, now at {line.commit}: {same}")
    return bool(line.figures["same"])


if __name__ == "__main__":
    main()
