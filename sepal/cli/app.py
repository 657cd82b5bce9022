"""The ``sepal`` command. Bad input is one line on standard error and exit code 2.

Commands are functions with ``@app.command()`` in the modules that :mod:`sepal.cli.main` lists. They import what they
need inside, so that ``sepal --help`` imports neither PyTorch nor Flower.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_type_hints

import click
import typer
import typer.core
from typer.core import TyperArgument, TyperGroup
from typer.models import ArgumentInfo

from sepal import __version__
from sepal.cli.completing import files_by_shell
from sepal.cli.notices import tell
from sepal.errors import SepalError, SupersededError
from sepal.report.printing import say
from sepal.user_modules import described, in_own_code, left_by_own_code

BAD_INPUT, INTERRUPTED, SUPERSEDED = 2, 130, 75
# Flower requires Typer < 0.21, which prints "\\[required]" if Rich is installed, even without markup.
typer.core.HAS_RICH = False


GROUPS = {  # command → what `sepal --help` says of it, in the order of a reader's first day
    "Run": {
        "init": "Write a project: data, model, method, keys and a test.",
        "run": "Run a federation on this machine.",
        "evict": "Remove a client from a run.",
        "export": "Write a client's model, as safetensors and ONNX.",
        "predict": "Run an exported model.",
        "check-method": "Check your method as Sepal checks its own.",
    },
    "Look": {
        "show": "Show a run or a comparison.",
        "watch": "Show the rounds of a run as they come.",
        "ls": "List runs, the newest first.",
        "report": "Write a page of runs that opens offline.",
        "methods": "List the methods.",
        "keys": "List the keys of a run, or of a method.",
        "data": "List the data sets, or show how one's own are read.",
        "models": "List the models.",
        "doctor": "Say what this machine lacks for a run.",
    },
    "Compare": {
        "compare": "Run a plan of methods, and show them side by side.",
        "tune": "Try a small grid of settings for each method.",
    },
    "Deploy": {
        "serve": "Start a server, and run a federation on it.",
        "join": "Join a server as a client.",
        "submit": "Run a federation on a SuperLink that runs already.",
        "backup": "Copy a run while it goes on.",
        "certs": "Make certificates and node keys.",
        "revoke": "Take a client's key away for good.",
        "deploy": "Check a deployment.",
        "clean": "List what past runs have left, and remove it.",
    },
}
EXAMPLES = (
    "sepal run --method METHOD --rounds 15 --name first",
    "sepal compare examples/compare.toml",
)


class OneLineErrors(TyperGroup):
    """Prints Sepal's errors as one line and exits with code 2."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.commands.values():
            restore_help(command)
            files_by_shell(command)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each with one line, and two examples; of a group of commands as click does."""
        if ctx.parent:
            super().format_commands(ctx, formatter)
            return
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))
        with formatter.section("Examples"):
            for line in EXAMPLES:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (SepalError, click.ClickException) as error:
            words = error.format_message() if isinstance(error, click.ClickException) else str(error)
            tell(f"sepal: {' '.join(words.split())}", fault=True)
            raise typer.Exit(SUPERSEDED if isinstance(error, SupersededError) else BAD_INPUT) from None
        except KeyboardInterrupt:
            tell("sepal: interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except SystemExit as stop:
            if not left_by_own_code(stop):  # a signal did
                raise
            tell(f"sepal: {' '.join(described(stop).split())}", fault=True)
            raise typer.Exit(BAD_INPUT) from None
        except Exception as error:
            if not in_own_code(error):  # then it is a fault of Sepal, and its traceback is wanted
                raise
            tell(f"sepal: {' '.join(described(error).split())}", fault=True)
            raise typer.Exit(BAD_INPUT) from None


def restore_help(command: click.Command) -> None:
    """Restore the help texts of a command's arguments, which Typer 0.20 loses with click 8.5."""
    for inner in getattr(command, "commands", {}).values():
        restore_help(inner)
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    for argument in command.params:
        if isinstance(argument, TyperArgument) and not argument.help:
            annotations = getattr(hints.get(argument.name or ""), "__metadata__", ())
            argument.help = next((info.help for info in annotations if isinstance(info, ArgumentInfo)), None)
    command.format_arguments = lambda ctx, formatter: None  # type: ignore[method-assign]  # Typer lists them itself


app = typer.Typer(
    cls=OneLineErrors,
    help="Personalized, sparse federated learning on Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(version_asked_for: bool) -> None:
    if version_asked_for:
        say(f"sepal {__version__}")
        raise typer.Exit


@app.callback(help=app.info.help)
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of the command itself."""
