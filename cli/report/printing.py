"""The command line of the modules here that print an analysis of one run: ``python -m sepal.cli.report.masks RUN``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sepal.errors import SepalError, one_line

BAD_INPUT = 2  # exit code, as that of `sepal`


def print_analysis(analyse: Callable[[Path], Mapping[str, Any]], words: str) -> None:
    """Print the analysis of the run that the command line names, as JSON; a problem is one line and exit code 2.

    Args:
        analyse: Takes a run directory.
        words: What is printed, for ``--help``.
    """
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("run", type=Path, help="run directory")
    try:
        found = analyse(parser.parse_args().run)
    except SepalError as problem:
        print(one_line(str(problem)), file=sys.stderr)
        sys.exit(BAD_INPUT)
    print(json.dumps(found))
