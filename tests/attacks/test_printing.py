"""Whatever the files of a run or a comparison say, a terminal, a page, a table and a picture stay what they are."""

from __future__ import annotations

import ast
import csv
import json
import shlex
import shutil
import tempfile
import tomllib
from functools import cache
from pathlib import Path

import pytest
import tomli_w

from sepal.api.results import Compared
from sepal.cli.export import write_predictions
from sepal.errors import SepalError, printable
from sepal.report.console import console
from sepal.report.files import csv_text, write_csv
from sepal.report.printing import say
from sepal.runs.central_secret import SECRET, central_secret
from sepal.storage.files import check_owner
from tests.attacks.looking import LOOKS, QUICK, compared
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).resolve().parents[2]
CONTROLS = [*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0))]
TURNS = [*map(chr, (0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x061C))]
BAD = "".join([*CONTROLS, *TURNS]).replace("\r\n", "\r") + "\x1b]0;taken\x07[/x][bold]\x9b31m"


def texts(value, path=()):
    """Paths of all texts in JSON or TOML."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from texts(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:1]):
            yield from texts(item, (*path, number))
    elif isinstance(value, str):
        yield path


def poisoned(value, path):
    """Return a copy with a bad end of the text at ``path``."""
    if not path:
        return value + BAD
    copy = value.copy()
    copy[path[0]] = poisoned(value[path[0]], path[1:])
    return copy


class Toml:
    load, dump = staticmethod(tomllib.loads), staticmethod(tomli_w.dumps)


class Whole:
    load, dump = staticmethod(json.loads), staticmethod(json.dumps)


class Lines:
    @staticmethod
    def load(text):
        return {"lines": [json.loads(line) for line in text.splitlines()]}

    @staticmethod
    def dump(value):
        return "".join(f"{json.dumps(line)}\n" for line in value["lines"])


FILES = {
    "a/config.toml": Toml,
    "a/summary.json": Whole,
    "a/about.json": Whole,
    "a/metrics.jsonl": Lines,
    "a/ledger.jsonl": Lines,
    "comparison.json": Whole,
}
TUNED = {
    "cell": "c",
    "label": "l",
    "view": "kept",
    "seeds": [0],
    "values": [["lr=1", 0.5]],
    "chosen": "lr=1",
    "edge": True,
}


@cache
def template():
    return make(Path(tempfile.mkdtemp()))


def folder(tmp_path):
    """A comparison of one run, whose files have as many texts as there are."""
    return Path(shutil.copytree(template(), tmp_path / "c"))


def make(tmp_path):
    directory = tmp_path / "c"
    about = {"privacy": {"clip": 1.0, "noise": 1.0, "reason": "why", "delta": 1e-5}, "engine": "x"}
    run = write_run(directory / "a", kept=True, capacities=[0.2, 0.5, 1.0])
    summary = json.loads((run / "summary.json").read_text())
    summary |= {
        **about,
        "stopped": {"by": "x", "reason": "y"},
        "by_capacity": {"0-0.25": {"kept": summary["accuracy"]["kept"]}},
    }
    (run / "summary.json").write_text(json.dumps(summary))
    lines = Lines.load((run / "metrics.jsonl").read_text())
    for line in lines["lines"]:
        line |= {"method": {"figure": 1.0 * line["round"]}, "metric": {"name": "rmse", "unit": "mg", "higher": False}}
        line["headline"] = line.pop("accuracy")
    (run / "metrics.jsonl").write_text(Lines.dump(lines))
    return compared(directory, names=("a",), title="t", notes=["n"], tuning=[TUNED])


def fields():
    for name, form in FILES.items():
        for path in texts(form.load((template() / name).read_text())):
            yield pytest.param(name, path, id=f"{name}:{'.'.join(map(str, path))}")


def spoil(directory, name, *paths):
    form, file = FILES[name], directory / name
    value = form.load(file.read_text())
    for path in paths:
        value = poisoned(value, path)
    file.write_text(form.dump(value))


def check(shown):
    assert [c for c in shown if not (c.isprintable() or c == "\n")] == []


@pytest.mark.parametrize(("name", "path"), list(fields()))
def test_no_text_of_a_file_reaches_the_terminal_as_more_than_text(name, path, tmp_path):
    directory = folder(tmp_path)
    spoil(directory, name, path)
    for label in ("show", "show of the folder", "ls", "watch"):
        check(QUICK[label](directory / "a"))


@pytest.mark.parametrize("name", FILES)
def test_no_text_of_a_file_breaks_a_page_or_a_picture(name, tmp_path):
    directory = folder(tmp_path)
    write_run(directory / "b", method="local")
    spoil(directory, name, *texts(FILES[name].load((directory / name).read_text())))
    for label, look in LOOKS.items():
        shown = look(directory / "a")
        assert not set(shown) & set("\x1b\x07\x9b\u202e"), label
        if label in QUICK:
            check(shown)
    check((directory / "out.csv").read_text())
    for page in directory.rglob("*.html"):
        page_data = page.read_text().partition('id="data"')[2]
        assert not set(page_data) & set("\x1b\x07\x9b\u202e"), page


def test_no_name_of_a_directory_reaches_the_terminal_as_more_than_text(tmp_path):
    bad = BAD.replace("/", "").replace("\0", "")
    directory = tmp_path / f"folder{bad}"
    write_run(directory / f"a{bad}")
    write_run(directory / "b", method="local")
    for label, look in LOOKS.items():
        shown = look(directory / f"a{bad}")
        if label not in ("watch --web", "python", "plot"):
            check(shown)


def test_an_escape_in_a_label_does_not_end_a_notebook(tmp_path):
    """vl-convert, which draws the picture, panics at it, and takes Python with it."""
    directory = tmp_path / "c"
    for name in ("a", "b"):
        write_run(directory / name, method="local" if name == "a" else "fedavg", kept=True)
    rows = [{"name": name, "label": f"{name}\x1b\x00", "cell": "\x1b"} for name in ("a", "b")]
    compared(directory, runs=rows, title="\x1b")
    picture = Compared(directory).frontier()._repr_html_()
    assert picture.startswith("<img")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\r=1", "=cmd|' /C calc'!A0"])
def test_no_text_in_a_table_is_a_formula(text, tmp_path):
    file = write_csv([{"name": text, text: 1.5, "number": -1.5, "none": None}], tmp_path / "t.csv")
    for cell in (cell for row in csv.reader(file.open()) for cell in row if cell and cell != "-1.5"):
        assert not cell.lstrip().startswith(("=", "+", "-", "@")), cell
    assert csv_text(["a"], [[-0.25]], ".1f") == "a\n-0.2\n", "a number stays one"


def test_every_table_is_written_by_the_one_function_that_knows_formulas():
    """By the standard library and by pandas."""
    files = [
        str(path.relative_to(ROOT))
        for folder in ("server_app", "client_app", "sepal")
        for path in (ROOT / folder).rglob("*.py")
        if any(word in path.read_text() for word in ("csv.writer", "csv.DictWriter", ".to_csv("))
    ]
    assert files == ["sepal/report/files.py"]
    assert write_predictions.__module__ == "sepal.cli.export"


PRINTING = ("print", "typer.echo", "click.echo", "Console", "rich.print", "sys.stdout.write", "sys.stderr.write")


def printing(path):
    """Calls that print, by the name of what they call."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call | ast.Attribute):
            name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
            if name in (
                "print",
                "typer.echo",
                "click.echo",
                "Console",
                "rich.print",
                "sys.stdout.write",
                "sys.stderr.write",
            ):
                yield name


def test_commands_print_through_one_function():
    """``starting`` takes a line of its own back, with a control character."""
    folders = [ROOT / "sepal" / room for room in ("cli", "api", "report")]
    calls_by_file = {path.name: set(printing(path)) for folder in folders for path in folder.rglob("*.py")}
    assert {name: calls for name, calls in calls_by_file.items() if calls} == {
        "printing.py": {"typer.echo"},
        "notices.py": {"typer.echo"},
    }


def test_what_prints_is_printable(capsys):
    say(f"a{BAD}b", nl=False)
    console(width=400).print(f"a{BAD}b", markup=False)
    printed = capsys.readouterr().out
    check(printed)
    assert printed.startswith("a")
    assert all(printable(c) in (" ", "?") for c in [*CONTROLS, *TURNS])
    assert printable("ä – é 中 ✓") == "ä – é 中 ✓"
    console(force_terminal=True, color_system="standard").print("a", style="bold")
    assert "\x1b[1m" in capsys.readouterr().out, "its own colours are left"


def open_to_others(path):
    path.chmod(0o777)
    check_owner(path)


def secret_of_others(path):
    (path / SECRET).write_bytes(bytes(32))
    (path / SECRET).chmod(0o644)
    central_secret(path, True)


@pytest.mark.parametrize("fails", [open_to_others, secret_of_others])
def test_a_command_line_in_an_error_says_a_path_as_the_shell_takes_it(fails, tmp_path):
    """A directory from elsewhere may be called like a command."""
    path = tmp_path / "a;touch pwned;$(id)"
    path.mkdir(mode=0o700)
    with pytest.raises(SepalError) as raised:
        fails(path)
    words = raised.value.expected
    command = words[words.index("(chmod ") + 1 : -1]
    assert shlex.split(command)[2:] in ([str(path)], [str(path / SECRET)])
