"""The ``sepal`` command. Bad input is one line on standard error and exit code 2."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click
import typer
import typer.core
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperArgument, TyperGroup
from typer.models import ArgumentInfo

from sepal import user_modules
from sepal.cli import deployment, joining, serving
from sepal.cli.export import export, predict
from sepal.cli.plans.compare import compare
from sepal.cli.plans.tune import tune
from sepal.config import Flat, RunConfig
from sepal.errors import ConfigError, SepalError

BAD_INPUT, INTERRUPTED = 2, 130
typer.core.HAS_RICH = False  # plain help texts: with it, Typer 0.20 prints "\\[required]" even without markup


class OneLine(TyperGroup):
    """Prints Sepal's errors as one line and exits with code 2."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.commands.values():
            restore_help(command)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (SepalError, click.ClickException) as error:
            words = error.format_message() if isinstance(error, click.ClickException) else str(error)
            typer.echo(f"sepal: {' '.join(words.split())}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("sepal: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


def restore_help(command: click.Command) -> None:
    """Restore the help texts of a command's arguments, which Typer 0.20 loses with click 8.5."""
    for inner in getattr(command, "commands", {}).values():
        restore_help(inner)
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    for argument in command.params:
        if isinstance(argument, TyperArgument) and not argument.help:
            known = getattr(hints.get(argument.name or ""), "__metadata__", ())
            argument.help = next((info.help for info in known if isinstance(info, ArgumentInfo)), None)
    command.format_arguments = lambda ctx, formatter: None  # type: ignore[method-assign]  # Typer lists them itself


app = typer.Typer(
    cls=OneLine,
    help="Personalized, sparse federated learning on Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def run(
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys, flat or in tables.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One run-config key; wins over the file. See `sepal keys`."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Run name; the name of an unfinished run continues it.")] = None,
    out: Annotated[str | None, typer.Option(help="Directory under which the run's directory is written.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: the engine's default.")] = 0,
    from_round: Annotated[
        int | None, typer.Option(min=0, help="Go back to the checkpoint of this round, and continue from there.")
    ] = None,
) -> None:
    """Run a federation on this machine, in process, with the same keys as Flower's run config."""
    from sepal.cli.arguments import gather
    from sepal.server_app.run_directory import IN_PROCESS, default_base

    base = default_base(IN_PROCESS)
    flat = gather(config, sets or [], {"name": name, "out": out}, base)
    path = run_flat(flat, base, workers, from_round)
    show_run(path)


def run_flat(flat: Flat, base: Path, workers: int = 0, from_round: int | None = None) -> Path:
    """Run the federation with the keys ``flat``, unless it has ended already; return the run's directory.

    Args:
        flat: Flat run-config keys.
        base: The directory that a relative ``out`` is relative to.
        workers: Number of worker processes.
        from_round: Go back to the checkpoint of this round; None to continue after the last one.

    Raises:
        SepalError: The run cannot be started or completed.
    """
    from sepal.cli.display import RoundDisplay
    from sepal.data.locations import data_directory
    from sepal.engines.in_process import check_clients, run_in_process
    from sepal.server.observer import Observer
    from sepal.server_app.run_directory import IN_PROCESS, RunDirectory, run_path
    from sepal.strategies.assembly import assemble

    logging.basicConfig(level=logging.WARNING, format="sepal: %(message)s", stream=sys.stderr)
    if flat.get("data-dir"):  # so that reports and exports find the data from anywhere
        flat = {**flat, "data-dir": str(data_directory(str(flat["data-dir"])))}
    assembly = assemble(flat)
    settings = assembly.task.config
    check_clients(settings)  # before the run's directory is created
    path = run_path(settings, base)
    label = f"{settings.method} on {settings.dataset}"
    opened = RunDirectory(path, assembly, IN_PROCESS, from_round)
    with opened as directory, RoundDisplay(Console(stderr=True), label, assembly.notes) as display:
        if directory.completed:
            typer.echo(f"run {path.name} is complete already", err=True)
            return path
        state_dir = Path(settings.state_dir).expanduser() if settings.state_dir else path / "clients"
        try:
            observers: list[Observer] = [directory, display]
            run_in_process(assembly, store=directory.store(), observers=observers, workers=workers, state_dir=state_dir)
        except KeyboardInterrupt:
            display.stop()
            where = "" if settings.out == RunConfig.model_fields["out"].default else f" --out {settings.out}"
            typer.echo(f"sepal: interrupted; `sepal run --name {path.name}{where}` continues it", err=True)
            raise typer.Exit(INTERRUPTED) from None
    return path


@app.command()
def evict(
    run: Annotated[str, typer.Argument(help="A run directory, or a run's name.")],
    client: Annotated[str, typer.Argument(help="The client's name.")],
) -> None:
    """Remove a client from a run, for example one that has left for good or an unknown one."""
    from sepal.cli.runs import find_run
    from sepal.server.run_store import evict as evict_client

    path = find_run(run)
    odd = evict_client(path / "checkpoints", client)
    typer.echo(f"{client} takes no further part in {path.name}{f'; {odd}' * bool(odd)}")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run or a comparison: its directory or its name.")],
    beside: Annotated[str | None, typer.Option(help="Another run, whose accuracy is shown beside it.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the figures by round to this CSV file.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Write them to this directory for TensorBoard.")] = None,
) -> None:
    """Show a run, or the directory of a comparison: accuracy, cost, and bytes next to their dense equivalent."""
    from sepal.cli.comparison import check_comparable
    from sepal.cli.results import read_result
    from sepal.cli.runs import INDEX, find_place, find_run, naming, read_run
    from sepal.cli.series import write_csv, write_tensorboard

    path = find_place(run)
    if (path / INDEX).is_file():
        for option, given in {"--beside": beside, "--tensorboard": tensorboard}.items():
            if given:
                raise ConfigError(option, "one run, not a comparison", str(path))
        with naming(path):
            show_comparison(str(path), csv)
        return
    with naming(path):
        if beside:
            check_comparable([read_result(path), read_result(find_run(beside))])
        show_run(path, find_run(beside) if beside else None)
        if csv:
            typer.echo(f"written to {write_csv(read_run(path), csv)}")
        if tensorboard:
            typer.echo(f"written to {write_tensorboard(read_run(path), tensorboard)}")


def show_comparison(place: str, csv: Path | None) -> None:
    """Print the comparison in the directory ``place``, and write its figures to ``csv``."""
    from sepal.cli.comparison import read_comparison
    from sepal.cli.comparison_tables import print_comparison, write_csv

    comparison = read_comparison([place])
    print_comparison(Console(), comparison)
    if csv:
        write_csv(comparison, csv)
        typer.echo(f"written to {csv}")


def show_run(path: Path, beside: Path | None = None) -> None:
    """Print the run at ``path``."""
    from sepal.cli.runs import read_run
    from sepal.cli.tables import print_run

    print_run(Console(), read_run(path), read_run(beside) if beside else None)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Run directories, runs' names, or directories of `sepal compare`.")],
    out: Annotated[Path | None, typer.Option(help="The file; by default report.html beside the runs.")] = None,
) -> None:
    """Write report.html for a run or a comparison: one file that opens offline."""
    from sepal.cli.report import write_html
    from sepal.cli.runs import find_place, naming

    first = Path(runs[0]).expanduser()
    place = first if first.is_dir() else find_place(runs[0])
    with naming(place):
        typer.echo(f"written to {write_html(runs, out or place / 'report.html')}")


@app.command()
def methods(
    keys: Annotated[bool, typer.Option("--keys", help="With each method's own keys.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the table in docs/methods.md.")] = False,
) -> None:
    """List the methods."""
    from sepal.strategies import registry

    if markdown:
        typer.echo(markdown_table())
        return
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("name", "title", "source", "deployed"):
        table.add_column(column)
    found = [registry.get(name) for name in registry.names()]
    for method in found:
        table.add_row(*(escape(text) for text in (method.name, method.title, method.source, method.deployed)))
    console.print(table)
    for method in found if keys else []:
        print_keys(console, f"Keys of {method.name}", method.hyper, f"{method.name}.")


def markdown_table() -> str:
    """Return the table of docs/methods.md."""
    from sepal.strategies import registry

    rows = ["| name | method | source | deployed |", "|---|---|---|---|"]
    for method in map(registry.get, registry.names()):
        rows.append(f"| `{method.name}` | {method.title} | {method.source} | {method.deployed} |")
    return "\n".join(rows)


@app.command("keys")
def list_keys(
    method: Annotated[str, typer.Argument(help="A method, for its own keys; none: shared keys.")] = "",
) -> None:
    """List run-config keys: values, default, meaning."""
    from sepal.strategies import registry

    if method:
        print_keys(Console(), f"Keys of {method}", registry.get(method).hyper, f"{method}.")
    else:
        print_keys(Console(), "Keys shared by all methods", RunConfig, "")


def print_keys(console: Console, title: str, model: Any, prefix: str) -> None:
    """Print a group of keys."""
    from sepal.cli.keys import keys_of

    rows = list(keys_of(model, prefix))
    if not rows:
        console.print(f"{title}: none")
        return
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("key", "values", "default", "meaning"):
        table.add_column(column, no_wrap=column == "key")
    for key in rows:
        table.add_row(*(escape(text) for text in (key.name, key.values, key.default, key.description)))
    console.print(table)


COMMANDS: tuple[Callable[..., None], ...] = (compare, tune, export, predict, serving.serve, joining.join)
COMMANDS += (serving.watch, deployment.certs, deployment.submit)
for command in COMMANDS:
    app.command()(command)
app.add_typer(deployment.deploy, name="deploy")


def main() -> None:
    """Run the ``sepal`` command; a user's modules are found in the working directory."""
    user_modules.enable(Path.cwd())
    app()
