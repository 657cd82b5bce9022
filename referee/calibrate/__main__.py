"""``python -m referee.calibrate``: find the default rates, and write their table and its page.

Every finished trial is stored at once in ``referee/results/calibration.ndjson``; a killed calibration continues where
it was. ``strategies/calibrated.toml`` (which a run reads) and ``referee/results/calibration.md`` are made from that
file, for the methods whose trials have all ended. A trial is one run in a worker process that lives on: `sepal
tune` starts a process for each run, which would take as long again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from referee.calibrate.pages import pages
from referee.calibrate.search import FILE, Evidence, run_trial
from referee.calibrate.settings import SETTINGS
from referee.checkout import commit_now, options
from sepal.storage.files import write_atomically
from sepal.study.record import alone, append
from sepal.study.runner import records


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing trials, then write the table and the page."""
    parser = options("python -m referee.calibrate", __doc__, hours=24.0)
    parser.add_argument("--datasets", nargs="*", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--methods", nargs="*", default=[], help="by default all that the data set lists")
    parser.add_argument("--pages", action="store_true", help="run nothing; write the table and the page")
    args = parser.parse_args(arguments)
    evidence = Evidence.read()
    if not args.pages:
        searches = [
            evidence.trials(dataset, method, SETTINGS[dataset], SETTINGS[dataset].clip(method))
            for dataset in args.datasets
            for method in args.methods or SETTINGS[dataset].all_methods
        ]
        make = partial(run_trial, commit=commit_now())
        with alone(FILE):
            for record in records(
                lambda: (trial for search in searches for trial in search.needed()), make, args.jobs, args.hours
            ):
                append(FILE, record)
                evidence.add(record)
                words = f"{record.dataset} {record.method} lr {record.config['lr']:g} seed {record.seed}"
                print(f"{words}: {100 * record.held_out:.1f}, {record.diverged} diverged", flush=True)
    for path, text in pages(evidence).items():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
