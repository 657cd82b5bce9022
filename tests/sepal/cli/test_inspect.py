"""`sepal data inspect`: how data would be read, every problem at once, and the schema."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from sepal.cli import inspecting as commands
from sepal.cli.main import app
from sepal.config import RunConfig
from sepal.data import inspecting
from sepal.data import schema as schema_module
from sepal.data.schema import Column, TableSchema, read_schema, written
from sepal.errors import ConfigError, SepalError
from sepal.strategies.assembly import assemble


def sepal(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def patients(directory, sites=("berlin", "paris", "rome"), rows=40, seed=0):
    """Write a table of mixed columns, of which age and smoking tell the diagnosis."""
    rng = np.random.default_rng(seed)
    lines = ["site,age,bmi,smoker,sex,visit,diagnosis"]
    for site in sites:
        for _ in range(rows):
            age, smoker = int(rng.integers(20, 90)), rng.choice(["yes", "no"])
            ill = (age - 55) / 15 + 2 * (smoker == "yes") - 1 + rng.normal() / 2 > 0
            day = f"2026-0{rng.integers(1, 10)}-1{rng.integers(10)}"
            cells = (site, age, f"{rng.normal(26, 4):.1f}", smoker, rng.choice(["f", "m"]), day)
            lines.append(",".join(map(str, (*cells, "ill" if ill else "well"))))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "patients.csv").write_text("\n".join(lines) + "\n")
    return directory


BAD = """id,age,age,,bmi,visit,note,grade
1,40,3,x,22.5,2026-01-31,one,0.5
2,NA,3,y,23.5 kg,2026-02-31,two,1.5
3,42,3,x,25,2026-03-01,three,2
"""


def test_all_problems_are_said_at_once_each_with_the_key_that_mends_it(tmp_path):
    note = "".join(f"{n},4,3,x,2,2026-01-01,words {n},1\n" for n in range(4, 40))
    (tmp_path / "bad.csv").write_text(BAD + note)
    output = sepal("data", "inspect", tmp_path, "--label", "grade", "--person", "nobody", code=1)
    for words in (
        "got 'age' for the columns 2, 3",
        "a name for every column, got none for column 4",
        "row 3, column bmi: expected a finite number, got '23.5 kg' → folder.leave-out = bmi, or its kind in schema",
        "row 3, column visit: expected a time",
        "column note: expected",
        "1 without one: 1 in column 2",
        'folder.missing = "mean"',
        "folder.person: expected columns among",
        "row 2, column grade: expected a whole number or a text (task = regression predicts numbers), got '0.5'",
        "8 problems: a run would be refused",
    ):
        assert words in output


def test_what_a_run_says_one_after_the_other_is_mended_by_the_keys_that_are_said(tmp_path):
    note = "".join(f"{n},4,3,x,2,2026-01-01,words {n},1\n" for n in range(4, 40))
    (tmp_path / "bad.csv").write_text((BAD + note).replace("age,age,,", "age,years,kind,").replace("02-31", "02-01"))
    keys = ("folder.leave-out=bmi,note", "folder.missing=mean", "task=regression", "folder.label=grade", "clients=3")
    assert "no problem" in sepal("data", "inspect", tmp_path, *(f"--set={key}" for key in keys))


def test_columns_classes_and_clients_are_shown_as_a_run_reads_them(tmp_path):
    output = sepal("data", "inspect", patients(tmp_path), "--label", "diagnosis", "--person", "site")
    lines = [line.split() for line in output.splitlines()]
    for start in (["site", "client"], ["smoker", "category", "0"], ["visit", "time", "0"], ["diagnosis", "label"]):
        assert any(line[: len(start)] == start for line in lines), start
    assert "clients = 3: one for each owner" in output
    (berlin,) = (line for line in output.splitlines() if line.startswith("berlin"))
    assert set(berlin.split()[2]) == {"a", "b"}
    assert berlin.split()[1] == "40"
    assert output.splitlines()[-1] == "no problem: a run can read this"


ROWS = [f"{20 + n},{('yes', 'no')[n % 2]},{('ill', 'well')[n // 2 % 2]}" for n in range(600)]


def table_of(directory, rows=None, header="age,smoker,label", encoding="utf-8"):
    directory.mkdir(exist_ok=True)
    (directory / "a.csv").write_bytes("\n".join([header, *(rows or ROWS), ""]).encode(encoding))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"rows": [*ROWS, "20,no,"]},
            "row 602, column label: expected a label (delete the rows without one), got an empty",
        ),
        (
            {"rows": [*ROWS, "20,no,NA"]},
            "expected a label (delete the rows without one, or name 'NA' in folder.classes)",
        ),
        (
            {"rows": [*ROWS, "20,,well"]},
            'row 602, column smoker: expected a value in every cell (a run with folder.missing = "mean" takes a '
            "missing category for none of its values), got 1 without one: 1 in smoker",
        ),
        (
            {"rows": [*ROWS, ",,well"]},
            'row 602, column age: expected a value in every cell (a run with folder.missing = "mean" fills in the '
            "client's mean and takes a missing category for none of its values), got 2 without one: 1 in age, "
            "1 in smoker",
        ),
        (
            {"rows": [*ROWS, ",no,well"]},
            'row 602, column age: expected a number in every cell (a run with folder.missing = "mean" fills in the '
            "client's mean), got 1 without one: 1 in age",
        ),
        (
            {"rows": [*ROWS, "20,größer,ill"], "encoding": "latin-1"},
            "line 602: expected text in UTF-8 (in Excel: save as",
        ),
        ({"header": "größe,smoker,label", "encoding": "latin-1"}, "line 1: expected text in UTF-8 (in Excel: save as"),
        ({"encoding": "utf-16"}, "line 1: expected text in UTF-8 (in Excel: save as"),
        (
            {"header": "age,person,label", "rows": [*ROWS, "20,,ill"]},
            "row 602, column person: expected an owner (delete the rows without one), got an empty cell",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_one_line_that_says_what_to_do_also_of_a_run(tmp_path, changed, words):
    table_of(tmp_path / "data", **changed)
    output = sepal("data", "inspect", tmp_path / "data", "--set", "clients=2", code=1).splitlines()
    (problem,) = [line for line in output if line.startswith("problem: ")]
    assert words in problem
    assert " → " not in problem, "the line says it itself"
    assert not [line for line in output if line.startswith("folder.missing")], "what no key says is no fact"
    keys = {"dataset": "folder", "data-dir": str(tmp_path / "data"), "clients": 2}
    with pytest.raises(SepalError) as caught:
        assemble(keys)
    assert f"problem: {caught.value}" == problem


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (
            "--label",
            "smoker",
            "folder.label: expected grade, as {path} says (leave the key out, or change the file), got",
        ),
        ("--label", "grade", ""),
        ("--person", "smoker", "folder.person: expected a column that {path} does not read as an input (leave the key"),
        ("--set", "folder.label=age", "folder.label: expected grade, as {path} says (leave the key out, or change the"),
        ("--set", "folder.classes=no,yes", "folder.classes: expected ill,well, as {path} says (leave the key out, or"),
    ],
)
def test_a_key_beside_a_schema_is_one_line_that_says_what_to_do(tmp_path, option, value, words):
    table_of(tmp_path, header="age,smoker,grade")
    sepal("data", "inspect", tmp_path, "--label", "grade", "--write", "--set", "clients=2")
    before = (tmp_path / "schema.toml").read_bytes()
    code = 1 if words else 0
    output = sepal("data", "inspect", tmp_path, "--set", "clients=2", option, value, "--write", code=code)
    problems = [line for line in output.splitlines() if line.startswith(("problem: ", "sepal: "))]
    assert len(problems) == code
    assert words.format(path=tmp_path / "schema.toml") in output
    assert (tmp_path / "schema.toml").read_bytes() == before


def test_a_label_that_a_schema_reads_as_an_input_is_refused(tmp_path):
    table_of(tmp_path, header="age,smoker,grade")
    columns = (Column(name="age", kind="number"), Column(name="grade", kind="category", values=("ill", "well")))
    (tmp_path / "schema.toml").write_text(written(TableSchema(column=columns)))
    words = "folder.label: expected a column that .* does not read as an input .*, got grade"
    with pytest.raises(ConfigError, match=words):
        assemble({"dataset": "folder", "data-dir": str(tmp_path), "clients": 2, "folder.label": "grade"})
    (tmp_path / "schema.toml").write_text(written(TableSchema(label="grade", column=columns)))
    with pytest.raises(ConfigError, match=r"label in .*schema.toml: expected a column"):
        assemble({"dataset": "folder", "data-dir": str(tmp_path), "clients": 2})


def operations(directory, columns):
    """How many operations of ``sepal.data.inspecting`` Python runs for a table of so many columns."""
    directory.mkdir()
    names, cells = (",".join(f"{mark}{number}" for number in range(columns)) for mark in ("c", ""))
    (directory / "wide.csv").write_text(f"{names},label\n" + f"{cells},0\n{cells},1\n" * 20)
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename != inspecting.__file__:
            return None
        frame.f_trace_opcodes = True
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        inspecting.inspect(RunConfig(dataset="folder", data_dir=str(directory), clients=2))
    finally:
        sys.settrace(before)
    return count


@pytest.mark.long
def test_a_table_of_very_many_columns_is_looked_at_in_time_with_their_number(tmp_path, monkeypatch):
    """One of 20,000 took minutes, with the square of the number; then the table on the terminal took most of it."""
    of_100, of_200, of_400 = (operations(tmp_path / str(columns), columns) for columns in (100, 200, 400))
    assert of_400 - of_200 < 2.5 * (of_200 - of_100)
    monkeypatch.setattr(commands, "COLUMNS", 10)
    output = sepal("data", "inspect", tmp_path / "100", code=1)
    assert "and 91 more columns" in output
    assert "c10" not in output


def test_of_a_table_without_a_label_the_key_is_said_and_owners_are_guessed(tmp_path):
    output = sepal("data", "inspect", patients(tmp_path) / "patients.csv", code=1)
    assert "called `label`; folder.label (inspect: --label) names another, got site, age" in output
    assert "perhaps: folder.person = site would make a client of each of its values" in output


def test_owners_that_a_key_names_and_a_cell_lacks_are_not_guessed_again(tmp_path):
    rows = "".join(f"{'pq'[n % 2]},{n},{n % 3 > 0:d}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"site,a,label\n{rows},61,0\n")
    output = sepal("data", "inspect", tmp_path, "--person", "site", code=1)
    assert "row 62, column site: expected an owner (delete the rows without one), got an empty cell" in output
    assert "perhaps: folder.person" not in output


def test_a_column_that_is_different_in_each_row_is_no_guess_of_owners(tmp_path):
    rows = "".join(f"P{n},{'ab'[n % 2]},{n},{n % 3 > 0:d}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"patient_id,site,age,label\n{rows}")
    output = sepal("data", "inspect", tmp_path, code=1)
    assert "perhaps: folder.person = site would" in output
    assert "folder.person = patient_id" not in output


def test_whole_numbers_that_may_be_quantities_are_said(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n" + "".join(f"{n},{n % 30}\n" for n in range(300)))
    assert "perhaps: the labels are 30 whole numbers up to 29: task = regression?" in sepal("data", "inspect", tmp_path)


@pytest.mark.parametrize(
    ("cells", "keys", "hint"),
    [
        (("01", "1"), (), True),
        (("01234", "01235"), ("--set", "folder.leading-zeros=number"), True),
        (("01234", "01235"), (), False),
        (("1234", "1235"), (), False),
        (("0.5", "0"), (), False),
    ],
)
def test_leading_zeros_that_a_number_loses_are_said_with_what_keeps_them(tmp_path, cells, keys, hint):
    (tmp_path / "a.csv").write_text("code,label\n" + "".join(f"{cells[n // 2 % 2]},{n % 2}\n" for n in range(60)))
    output = sepal("data", "inspect", tmp_path, "--set", "clients=2", *keys)
    values = f'["{cells[0]}", "{cells[1]}"]'
    words = (
        f'perhaps: code has leading zeros, which a number loses: kind = "category", values = {values} in schema.toml'
    )
    assert (words in " ".join(output.split())) == hint


def test_targets_of_a_regression_are_drawn_on_one_axis(tmp_path):
    rows = "".join(f"{n},{n / 7},{'ab'[n % 2]}\n" for n in range(80))
    (tmp_path / "a.csv").write_text(f"a,label,person\n{rows}")
    output = sepal("data", "inspect", tmp_path, "--task", "regression")
    assert "targets by client, from 0 to 11.2857:" in output
    assert all(mark in line for line in output.splitlines() if line[:2] in ("a ", "b ") for mark in ("..", "==", "o"))


def test_photographs_are_looked_at_and_all_that_keys_mend_is_said(tmp_path):
    for n in range(24):
        label_directory = tmp_path / "ab"[n % 2]
        label_directory.mkdir(exist_ok=True)
        Image.new("L" if n % 3 else "RGB", (20 + n % 4, 16), n).save(label_directory / f"{n}.png")
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    output = sepal("data", "inspect", tmp_path, code=1)
    problems = [line for line in output.splitlines() if line.startswith("problem: ")]
    for words in ("folder.on-bad-file", "folder.channels"):
        assert any(words in line for line in problems), words
    assert not any("folder.resize" in line for line in problems), "images of several sizes are brought to one"
    output = sepal("data", "inspect", tmp_path, "--set=folder.resize=", code=1)
    assert any("folder.resize = 64" in line for line in output.splitlines() if line.startswith("problem: "))
    keys = ("folder.on-bad-file=skip", "folder.resize=16", "folder.channels=3", "clients=2", "partition.name=iid")
    output = sepal("data", "inspect", tmp_path, *(f"--set={key}" for key in keys))
    assert "classes: a 12, b 12" in output


@pytest.mark.parametrize("dataset", ["digits", "own"])
def test_data_sets_are_looked_at_by_their_names(dataset, tmp_path, monkeypatch):
    if dataset == "digits":
        assert "10 classes" in sepal("data", "inspect", "digits")
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import numpy as np\ndef load():\n    x = np.zeros((8, 3), np.float32)\n    y = np.arange(8) % 2\n"
    (tmp_path / "mine_looked_at.py").write_text(code + "    return x, y, x, y\n")
    keys = ("own.data=mine_looked_at:load", "own.shape=3", "own.classes=2", "clients=2")
    assert "classes: 0 16, 1 16" in sepal("data", "inspect", "own", *(f"--set={key}" for key in keys))


def test_a_local_copy_of_a_hub_data_set_is_looked_at(tmp_path):
    for part, rows in (("train", 40), ("validation", 8)):
        frame = pd.DataFrame({"a": range(rows), "label": [n % 2 for n in range(rows)]})
        frame.to_parquet(tmp_path / f"{part}.parquet")
    output = sepal("data", "inspect", tmp_path, "--set=clients=2", "--set=partition.name=iid")
    assert "the part validation is the validation part" in output
    assert "classes: 0 24, 1 24" in output


@pytest.mark.parametrize("argument", ["a" * 300, "~nobody-of-that-name/x", "a\0b"])
def test_a_name_that_no_file_can_have_is_refused_in_one_line(argument):
    assert len(sepal("data", "inspect", argument, code=2).splitlines()) == 1


@pytest.mark.parametrize("name", ["\ud800/x", "a/\udcff"])
def test_a_name_that_the_hub_cannot_have_is_a_problem_in_one_line(name):
    assert "problem: hf.name: expected OWNER/NAME of the Hugging Face hub" in sepal("data", "inspect", name, code=1)


def test_times_at_the_ends_of_what_a_table_may_hold_are_shown(tmp_path):
    rows = [f"9999-12-31 23:59:59-1{n % 3}:00,0001-01-01 00:00:00+1{n % 3}:00,{n % 2}" for n in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["late,early,label", *rows]))
    output = " ".join(sepal("data", "inspect", tmp_path, "--set=clients=2").split())  # a cell may be wrapped
    assert "10000-01-01 09:59 to 10000-01-01 11:59" in output
    assert "0000-12-31 12:00 to 0000-12-31 14:00" in output


def test_a_file_that_goes_while_a_directory_is_looked_through_is_one_line(tmp_path, monkeypatch):
    def gone(path, pattern):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    (tmp_path / "a").mkdir()
    monkeypatch.setattr("pathlib.Path.rglob", gone)
    assert "expected " in sepal("data", "inspect", tmp_path, code=2)


def test_a_name_of_nothing_is_refused_in_one_line():
    assert "OWNER/NAME of the hub, or one of ag-news" in sepal("data", "inspect", "nothing-of-this-name", code=2)


def test_the_schema_that_is_written_is_what_a_run_reads_by(tmp_path):
    directory = patients(tmp_path)
    options = ("--label", "diagnosis", "--person", "site", "--write")
    assert "written to" in sepal("data", "inspect", directory, *options)
    schema = read_schema(directory / "schema.toml")
    assert (schema.label, schema.client, schema.classes) == ("diagnosis", "site", ("ill", "well"))
    assert [(column.name, column.kind) for column in schema.column] == [
        ("age", "number"),
        ("bmi", "number"),
        ("smoker", "category"),
        ("sex", "category"),
        ("visit", "time"),
    ]
    assert "no problem" in sepal("data", "inspect", directory, *options), "and writing the same again is no fault"
    text = (directory / "schema.toml").read_text()
    (directory / "schema.toml").write_text(text.replace('kind = "time"', 'kind = "left-out"'))
    assert "left out" in sepal("data", "inspect", directory)
    other_patients = patients(tmp_path / "other", ("oslo",))
    sepal("data", "inspect", other_patients, "--label", "bmi", "--task", "regression", "--out", tmp_path / "b.toml")
    output = sepal(
        "data", "inspect", directory, f"--set=folder.schema={tmp_path / 'b.toml'}", "--set=clients=2", code=1
    )
    assert "row 2, column bmi" in output


def test_a_schema_that_says_something_else_is_not_written_over(tmp_path):
    directory = patients(tmp_path)
    (directory / "schema.toml").write_text('label = "diagnosis"\nclasses = ["well", "ill"]\n')
    output = sepal("data", "inspect", directory, "--write", code=2)
    assert "no other schema" in output
    assert (directory / "schema.toml").read_text().startswith("label")


def test_a_schema_that_no_run_would_read_is_not_written(tmp_path, monkeypatch):
    """One of 90,000 columns was, and then every run was refused."""
    directory = patients(tmp_path)
    monkeypatch.setattr(schema_module, "MOST_BYTES", 300)
    output = sepal("data", "inspect", directory, "--label=diagnosis", "--write", code=2)
    assert "--write: expected a schema of at most 300 bytes" in output
    assert not (directory / "schema.toml").exists()


def test_labels_of_very_many_classes_are_counted_for_few_clients(tmp_path, monkeypatch):
    """A label of 999,999 makes a million classes, and 200 clients' counts of them take 1.6 GB."""
    monkeypatch.setattr(inspecting, "MOST_COUNTS", 250)
    (tmp_path / "a.csv").write_text("a,label\n" + "".join(f"{n},{n % 100}\n" for n in range(2000)))
    output = sepal("data", "inspect", tmp_path, "--set=clients=5")
    assert "labels are counted for the first 2 of 5 clients" in output


def test_a_column_of_text_is_left_out_by_the_schema_that_is_written(tmp_path):
    rows = "".join(f"{n},words of row {n},{n % 2}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"a,note,label\n{rows}")
    assert "column note: expected" in sepal("data", "inspect", tmp_path, "--write", code=1)
    assert "no problem" in sepal("data", "inspect", tmp_path, "--set=clients=2", "--set=partition.name=iid")
