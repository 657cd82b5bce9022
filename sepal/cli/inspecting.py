"""``sepal data``: lists the data sets; ``sepal data inspect``: how data would be read, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sepal.cli.app import app
from sepal.cli.notices import starting
from sepal.errors import ConfigError, one_line
from sepal.report.printing import say

if TYPE_CHECKING:
    from sepal.data.inspecting import Inspection

data = typer.Typer(
    help="List the data sets, or show how data would be read.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(data, name="data")
PROBLEMS = 1  # the exit code where a run would be refused
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COLUMNS = 1000  # of a table, at most, that are shown
WIDTH, SHOWN = 50, 20  # of the picture of labels: characters of the largest client, and clients


@data.callback()
def list_data(context: typer.Context) -> None:
    """List the data sets: values of the key dataset, what they hold, and whether their files are here."""
    if context.invoked_subcommand:
        return
    with starting():
        from sepal.cli.showing import print_table
        from sepal.data.catalogue import CATALOGUE
        from sepal.data.sources import is_here

    rows = []
    for name, info in sorted(CATALOGUE.items()):
        shape = "x".join(map(str, info.input_shape))
        rows.append((name, info.kind, shape, str(info.classes), info.partition, "yes" if is_here(name) else "no"))
    print_table("", ("dataset", "kind", "shape", "classes", "partition", "here"), rows)
    say("Your own files: dataset=folder data-dir=DIRECTORY, or dataset=hf hf.name=OWNER/NAME of Hugging Face.")
    say("How they would be read: `sepal data inspect PATH`. Your own code: dataset=own own.data=MODULE:FUNCTION.")


@data.command()
def inspect(
    source: Annotated[
        str, typer.Argument(help="A file or directory, a data set's name, or OWNER/NAME of the hub.")
    ] = "",
    label: Annotated[str | None, typer.Option(help="The column of labels: the key folder.label.")] = None,
    person: Annotated[str | None, typer.Option(help="The column of owners: the key folder.person.")] = None,
    task: Annotated[str | None, typer.Option(help="The key task, such as regression.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with run-config keys, flat or in tables.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any run-config key; see `sepal keys`.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write schema.toml beside the data, where runs use it.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the schema to this file, for the key folder.schema.")] = None,
) -> None:
    """Show how a run would read data: columns, classes, clients, and every problem with the key that mends it.

    Exit code 1: a run would be refused.
    """
    with starting():
        from sepal.config import parse
        from sepal.data.inspecting import as_flat
        from sepal.data.inspecting import inspect as look
        from sepal.runs.places import IN_PROCESS, default_base
        from sepal.strategies import registry
        from sepal.study.run_keys import gather

    source_keys = dict(as_flat(source)) if source else {}
    options = {"folder.label": label, "folder.person": person, "task": task}
    flat = {**source_keys, **gather(config, sets or [], options, default_base(IN_PROCESS))}
    inspection = look(parse(flat, registry.Hypers())[0], "clients" in flat)
    show(inspection)
    if (write or out) and (inspection.schema or not inspection.problems):
        path = out or _beside(flat)
        write_schema(inspection, path)
    if inspection.problems:
        raise typer.Exit(PROBLEMS)


def _beside(flat: Mapping[str, Any]) -> Path:
    """Return where a run looks for the schema of its data."""
    from sepal.data.locations import data_directory, home_of
    from sepal.data.schema import FILE

    if flat.get("dataset") != "folder":
        raise ConfigError("--write", "a file or directory of your own", flat.get("dataset"))
    return home_of(data_directory(str(flat["data-dir"]))) / FILE


def write_schema(inspection: Inspection, path: Path) -> None:
    """Write the schema, unless nothing is known of it.

    Raises:
        ConfigError: There is none, it is larger than what a run reads, or the file exists and says something else.
    """
    from sepal.data.schema import MOST_BYTES, read_schema, written
    from sepal.storage.files import write_atomically

    if inspection.schema is None:
        raise ConfigError("--write", "data that can be read at least in part", "none")
    if path.exists() and read_schema(path) != inspection.schema:
        raise ConfigError("--write", f"no other schema in {path} (remove it first)", "one that says something else")
    content = written(inspection.schema).encode()
    if len(content) > MOST_BYTES:
        expected = f"a schema of at most {MOST_BYTES:,} bytes, which a run reads"
        raise ConfigError("--write", expected, f"{len(content):,}")
    write_atomically(path, content)
    say(f"written to {path}: it names columns, categories and classes; look at it before you give it away")


def show(inspection: Inspection) -> None:
    """Print what was found."""
    from sepal.cli.showing import print_table

    for line in inspection.lines:
        say(line)
    if inspection.columns:
        rows = [
            (one_line(column.name, 60), column.kind, f"{column.missing:,}", one_line(column.shows, 60))
            for column in inspection.columns[:COLUMNS]
        ]
        print_table("", ("column", "kind", "missing", "values"), rows)
        if len(inspection.columns) > COLUMNS:
            say(f"and {len(inspection.columns) - COLUMNS:,} more columns, which --write lists")
    if inspection.classes:
        names = ", ".join(f"{one_line(name, 40)} {count:,}" for name, count in list(inspection.classes.items())[:SHOWN])
        more = f" and {len(inspection.classes) - SHOWN} more" if len(inspection.classes) > SHOWN else ""
        say(f"classes: {names}{more}")
    if inspection.labels:
        for line in picture(inspection):
            say(line)
    for hint in inspection.hints:
        say(f"perhaps: {hint}")
    for problem in inspection.problems:
        say(f"problem: {problem}")
    count = len(inspection.problems)
    say(f"{count} problem{'s' * (count != 1)}: a run would be refused" if count else "no problem: a run can read this")


def picture(inspection: Inspection) -> list[str]:
    """Return lines that draw the labels of each client in plain characters.

    Of classes, a bar of letters, as long as the client has examples. Of numbers, where its targets lie on the axis of
    all: from the least to the largest ``.``, the middle half ``=``, the median ``o``.
    """
    import numpy as np

    clients = dict(list(inspection.labels.items())[:SHOWN])
    widest = max(map(len, clients))
    rest = [f"and {len(inspection.labels) - SHOWN} more clients"] if len(inspection.labels) > SHOWN else []
    if inspection.classes:
        most = max(int(counts.sum()) for counts in clients.values())
        marks = [LETTERS[n] if n < len(LETTERS) else "#" for n in range(len(inspection.classes))]
        lines = [
            f"{name:<{widest}} {int(counts.sum()):>7,} {_bar(counts, marks, WIDTH * int(counts.sum()) / max(most, 1))}"
            for name, counts in clients.items()
        ]
        named = zip(marks, inspection.classes, strict=True)
        legend = ", ".join(f"{mark} {one_line(name, 40)}" for mark, name in list(named)[:SHOWN])
        return ["labels by client (examples of all parts):", *lines, *rest, f"  {legend}"]
    everything = np.concatenate(list(inspection.labels.values()))
    low, high = float(everything.min()), float(everything.max())
    lines = [f"{name:<{widest}} {len(y):>7,} {_range(y, low, high)}" for name, y in clients.items()]
    return [f"targets by client, from {low:g} to {high:g}:", *lines, *rest, "  . all, = the middle half, o the median"]


def _bar(counts: Any, marks: list[str], length: float) -> str:
    """Return a bar of letters; each class that is there has one at least."""
    total = max(int(counts.sum()), 1)
    return "".join(
        mark * max(1, round(length * int(count) / total)) for mark, count in zip(marks, counts, strict=True) if count
    )


def _range(y: Any, low: float, high: float) -> str:
    import numpy as np

    if not len(y):
        return ""
    spread = (high - low) or 1.0
    points = [round((WIDTH - 1) * (float(q) - low) / spread) for q in np.percentile(y, (0, 25, 50, 75, 100))]
    line = [" "] * WIDTH
    for mark, start, end in ((".", 0, 4), ("=", 1, 3), ("o", 2, 2)):
        for column in range(points[start], points[end] + 1):
            line[column] = mark
    return "".join(line).rstrip()
