"""A run's figures by round as one flat table: for CSV files and TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from sepal.cli.runs import StoredRun
from sepal.errors import ConfigError
from sepal.storage.files import write_atomically

KINDS = ("accuracy", "validation")
FIGURES = ("mean", "weighted", "std", "bottom_decile")


def table(run: StoredRun) -> Iterator[dict[str, float]]:
    """Yield a row per round: accuracies as fractions, ``accuracy/trained/mean``; bytes so far; seconds; own figures."""
    for line in run.lines:
        row: dict[str, float] = {"round": line["round"]}
        for kind in KINDS:
            for view, found in line[kind].items():
                row |= {f"{kind}/{view}/{name}": found[name] for name in FIGURES} if found else {}
        row |= {f"bytes/{key}": size for key, size in line["bytes"].items() if not isinstance(size, dict)}
        row |= {f"seconds/{key}": value for key, value in line["seconds"].items()}
        row |= {f"method/{key}": value for key, value in line["method"].items() if value is not None}
        yield row


def write_csv(run: StoredRun, path: Path) -> Path:
    """Write the table, with a line for each round; a cell is empty if the round has no such figure."""
    rows = list(table(run))
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())
    return path


def write_tensorboard(run: StoredRun, directory: Path) -> Path:
    """Write the table as TensorBoard event files, with rounds as steps.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        expected = "TensorBoard: pip install tensorboard"
        raise ConfigError("--tensorboard", expected, str(missing)) from None
    with SummaryWriter(str(directory)) as writer:
        for row in table(run):
            for name, value in row.items():
                writer.add_scalar(name, value, int(row["round"]))
    return directory
