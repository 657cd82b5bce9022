"""Options that several commands have."""

from typing import Annotated, TypeAlias

import typer

Metrics: TypeAlias = Annotated[
    str,
    typer.Option(metavar="[HOST:]PORT", help="Serve /metrics for Prometheus and /healthz; by default on 127.0.0.1."),
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show the lines of Flower's processes, which are in the log file.")
]
Log: TypeAlias = Annotated[str, typer.Option(metavar="json", help="Write the log as JSON lines.")]
