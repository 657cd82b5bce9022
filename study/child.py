"""Executes one run of a plan in its own process: ``python -m sepal.study.child CONFIG OUT WORKERS``.

Its standard input is a pipe from the process that started it. When that process ends, for whatever reason, the pipe is
closed and the run ends at once. It can be continued from its last checkpoint, as after any kill.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from sepal import user_modules
from sepal.errors import SepalError

BAD_INPUT = 2


def main() -> None:
    """Execute the run that the command line names."""
    config, out, workers = sys.argv[1:]
    Thread(target=_end_with_parent, daemon=True).start()
    user_modules.enable(Path.cwd())
    from sepal.study.plans.execute import FUNCTIONS
    from sepal.study.run import execute, prepare
    from sepal.study.run_keys import read_file

    user_modules.receive_text((Path(config).parent / FUNCTIONS).read_text(encoding="utf-8"))
    try:
        execute(prepare({**read_file(Path(config)), "out": out}, Path.cwd()), int(workers))
    except SepalError as error:
        print(f"sepal: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written: the read returns when the other end is closed
    os._exit(1)


if __name__ == "__main__":
    main()
