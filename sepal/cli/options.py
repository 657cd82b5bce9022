"""Options that several commands have."""

from typing import Annotated, TypeAlias

import typer

from sepal.cli import completing

Devices: TypeAlias = Annotated[
    str,
    typer.Option(metavar="PROFILE", help="Simulated hours on devices of a profile, such as phones, or a TOML file."),
]
Metrics: TypeAlias = Annotated[
    str,
    typer.Option(metavar="[HOST:]PORT", help="Serve /metrics for Prometheus and /healthz; by default on 127.0.0.1."),
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show the lines of Flower's processes, which are in the log file.")
]
Log: TypeAlias = Annotated[
    str, typer.Option(metavar="json|text", help="Write the log as JSON lines, or as text with the time of each line.")
]
Name: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Run name; the name of an unfinished run continues it.", autocompletion=completing.runs),
]
Run: TypeAlias = Annotated[
    str, typer.Argument(help="A run directory, or a run's name.", autocompletion=completing.runs)
]
Sets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A run-config key.", autocompletion=completing.keys),
]
Trackers: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker",
        metavar="KIND[=PLACE]",
        help="Log complete runs: wandb (offline), mlflow or tensorboard, to a directory, or MLflow's server.",
    ),
]
