"""All that a reader can do with a run that came from somewhere else, as functions of its directory."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import tomli_w
from typer.testing import CliRunner

import sepal
from sepal.api.results import Compared, Run
from sepal.cli.main import app
from sepal.errors import SepalError
from sepal.report.card import card
from sepal.report.data import datasets
from sepal.report.live import Handler, ReportServer
from sepal.runs.stored_run import read_run
from sepal.study.comparison import read_comparison
from sepal.study.runs import UNFIT, naming


def command(*words):
    """Run a command; it ends well, or in one line that says what is wrong."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exit_code not in (0, 2) or not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1, result.output
    return result.output


def page(directory):
    """The page of ``watch --web``, and its parts that change."""
    try:
        with ReportServer([str(directory)], 0) as server:
            handler = Handler.__new__(Handler)
            handler.server = server
            return handler._page() + handler._data()
    except SepalError as error:
        return str(error)


def in_python(directory):
    try:
        run = sepal.load(directory)
        shown = [run.deployed, run.summary, run.frame, run.rounds]
    except SepalError as error:
        return str(error)
    return "\n".join(map(str, shown))


def plot_in_python(directory):
    try:
        return sepal.load(directory).plot()._repr_html_()
    except SepalError as error:
        return str(error)


def model_in_python(directory):
    try:
        return str(Run(directory).model(0))
    except SepalError as error:
        return str(error)


def frontier(directory):
    try:
        return Compared(directory).frontier().words
    except SepalError as error:
        return str(error)


QUICK = {
    "show": lambda run: command("show", run),
    "show --csv": lambda run: command("show", run, "--csv", run.parent / "out.csv"),
    "show of the folder": lambda run: command("show", run.parent),
    "ls": lambda run: command("ls", run.parent),
    "ls of a run": lambda run: command("ls", run),
    "watch": lambda run: command("watch", run, "--no-follow"),
    "evict": lambda run: command("evict", run, "client-00000"),
}


def figures(directory):
    """The rows of a report's figures, without drawing them."""
    try:
        return str(datasets(read_comparison([str(directory)])))
    except (SepalError, *UNFIT) as error:  # of the latter, `sepal report` makes one line
        return str(error)


def model_card(directory):
    """The card of a client's model, with all that may be asked for."""
    facts = {"run": directory.name, "round": "2", "sha256": "0" * 64, "client": "client-00000"}
    try:
        with naming(directory):
            return card(read_run(directory), "m.safetensors", facts, "trained", "client-00000", labels=True)
    except SepalError as error:
        return str(error)


# What reads each file of a run, without drawing pages.
READS = {
    **QUICK,
    "card": model_card,
    "figures": figures,
    "figures of the folder": lambda run: figures(run.parent),
    "export": lambda run: command("export", run, "0", "--out", run.parent / "m.safetensors"),
    "model": model_in_python,
}
LOOKS = {
    **READS,
    "show --beside": lambda run: command("show", run.parent / "b", "--beside", run),
    "report": lambda run: command("report", run),
    "report of the folder": lambda run: command("report", run.parent),
    "watch --web": page,
    "python": in_python,
    "plot": plot_in_python,
    "frontier": lambda run: frontier(run.parent),
}


def changed(run: Path, **keys):
    """Change keys of a run's config.toml; ``__`` stands for a hyphen, and a pair of keys may come as a mapping."""
    file = run / "config.toml"
    keys = {key.replace("__", "-"): value for key, value in keys.items()}
    file.write_text(tomli_w.dumps({**tomllib.loads(file.read_text()), **keys}))
    return run


def compared(folder: Path, names=("a", "b"), **keys):
    """Write the list of a comparison's runs."""
    rows = [{"name": name, "label": name, "cell": ""} for name in names]
    index = {"title": "t", "view": "trained", "target": None, "runs": rows, "notes": ["n"], "tuning": []}
    (folder / "comparison.json").write_text(json.dumps({**index, **keys}))
    return folder
