"""A table of mixed columns: kinds, the schema, and what two machines agree on."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from sepal.client_app.build import Node
from sepal.client_app.guard import check_columns, local_config
from sepal.config.agreement import disagreement
from sepal.data import federated_data
from sepal.data.schema import Column, TableSchema, parsed, read_schema, written
from sepal.data.sources.table import Roles, read_table
from sepal.errors import ConfigError, DataError, ProtocolError, SepalError
from sepal.strategies.assembly import assemble

MIXED = """site,age,smoker,visit,note,diagnosis
berlin,20,yes,2026-01-31,a text of its own,ill
berlin,30,no,2026-02-01,another one,well
rome,40,,2026-02-02,a third,ill
rome,50,no,,a fourth,well
"""


def mixed(directory, text=MIXED, **keys):
    directory.mkdir(exist_ok=True)
    (directory / "all.csv").write_text(text)
    flat = {
        "dataset": "folder",
        "data-dir": str(directory),
        "method": "fedavg",
        "partition.min-examples": 2,
        "rounds": 1,
    }
    named = {"folder.label": "diagnosis", "folder.person": "site", "folder.leave-out": "note", "folder.missing": "mean"}
    return {**flat, **named, **{key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}}


def schema(*columns, **facts):
    return TableSchema(column=columns, label="diagnosis", client="site", classes=("ill", "well"), **facts)


NUMBER = Column(name="zip", kind="number")
AGE = Column(name="age", kind="number", unit="years")
SMOKER = Column(name="smoker", kind="category", values=("no", "yes"))


def test_columns_are_numbers_categories_and_times_and_the_missing_stay_missing(tmp_path):
    mixed(tmp_path)
    table = read_table(tmp_path / "all.csv", Roles(("diagnosis",), "site", ("note",)), labelled=True, fill=True)
    assert table.inputs == ("age", "smoker=no", "smoker=yes", "visit")
    nan = np.nan
    np.testing.assert_equal(
        table.x,
        [
            [20, 0, 1, 1769817600],
            [30, 1, 0, 1769904000],
            [40, nan, nan, 1769990400],
            [50, 1, 0, nan],
        ],
    )
    assert table.names == ("ill", "well")
    assert table.people.tolist() == ["berlin", "berlin", "rome", "rome"]
    assert table.notes == (
        "columns read as other than numbers: smoker (2 categories), visit (times); `sepal data inspect` shows all",
    )


def test_categories_stay_0_and_1_and_a_missing_one_is_none(tmp_path):
    data = federated_data(assemble(mixed(tmp_path)).setup.config)
    part = data.client(1, 2, "rome")
    rows = np.concatenate([part.train.x, part.validation.x, part.test.x])
    assert set(map(tuple, rows[:, 1:3].tolist())) == {(0, 0), (1, 0)}
    assert np.isfinite(rows).all()
    assert part.scale.factor[1:3].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", " 2", "NA"], "number"),
        (["yes", "no", "yes"], "category"),
        (["2026-01-31", "", "2026-02-01 10:00:00"], "time"),
        (["1", "x", "2"], "number"),  # and a cell is refused
        (["1,5", "2,5", "1,5"], "number"),
        (["12 kg", "13 kg", "12 kg"], "number"),
        (["Infinity", "x", "x"], "number"),
        ([f"text {n}" for n in range(30)], "text"),
        ([f"t{n % 15}" for n in range(40)], "category"),
        ([f"t{n % 51}" for n in range(300)], "text"),
        (["", "NA", ""], "number"),
    ],
)
def test_what_a_column_is_by_its_cells(cells, kind):
    import pyarrow as pa

    from sepal.data.sources.kinds import kind_of

    assert kind_of("a", pa.array(cells)).kind == kind


CODES = [f"0{1200 + n % 5}" for n in range(60)]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (CODES, "category", sorted(set(CODES))),
        ([*["91234"] * 200, *CODES], "category", ["01200", "01201", "01202", "01203", "01204", "91234"]),
        (["", "NA", *[f" {code} " for code in CODES]], "category", sorted(set(CODES))),
        (["00", "01"] * 30, "category", ["00", "01"]),
        (["1", "01"] * 30, "number", []),  # of no fixed width
        (["0", "1"] * 30, "number", []),
        (["10", "20"] * 30, "number", []),
        (["0.5", "0.7"] * 30, "number", []),
        (["-01", "-02"] * 30, "number", []),
    ],
)
def test_digits_of_one_width_with_leading_zeros_are_codes(tmp_path, cells, kind, values):
    (tmp_path / "a.csv").write_text("zip,label\n" + "".join(f"{cell},{n % 2}\n" for n, cell in enumerate(cells)))
    for codes, column in ((True, Column(name="zip", kind=kind, values=tuple(values))), (False, NUMBER)):
        table = read_table(tmp_path / "a.csv", Roles(codes=codes), fill=True)
        assert table.columns == (column,)


def test_more_codes_than_categories_are_refused_with_the_keys_that_say_what_they_are(tmp_path):
    rows = "".join(f"0{1000 + n},{n % 2}\n" for n in range(60))
    (tmp_path / "a.csv").write_text(f"zip,label\n{rows}")
    words = (
        r"column zip: expected .*folder.leave-out = zip.*folder.leading-zeros = number.*, got 60 codes such as '01000'"
    )
    with pytest.raises(DataError, match=words):
        assemble({"dataset": "folder", "data-dir": str(tmp_path), "clients": 2})


def test_leading_zeros_are_those_of_codes_unless_a_key_or_a_schema_says_numbers(tmp_path):
    rows = "".join(f"{code},{n % 2}\n" for n, code in enumerate(CODES))
    (tmp_path / "a.csv").write_text(f"zip,label\n{rows}")
    keys = {"dataset": "folder", "data-dir": str(tmp_path), "clients": 2}

    def inputs(**more):
        return federated_data(assemble({**keys, **more}).setup.config).info.columns

    assert inputs() == tuple(f"zip={code}" for code in sorted(set(CODES)))
    assert inputs(**{"folder.leading-zeros": "number"}) == ("zip",)
    (tmp_path / "schema.toml").write_text(
        written(TableSchema(label="label", column=(Column(name="zip", kind="number"),)))
    )
    assert inputs() == ("zip",)


@pytest.mark.parametrize(
    ("cells", "got"),
    [
        (["2026-01-31", "2026-02-30"], "2026-02-30"),
        (["2026-01-31 10:00", "2026-02-01 10:00Z"], "2026-01-31 10:00"),
        (["2026-01-31 25:00", "2026-02-01 10:00"], "2026-01-31 25:00"),
    ],
)
def test_times_that_are_none_or_lack_the_zone_of_the_others_are_refused(tmp_path, cells, got):
    (tmp_path / "a.csv").write_text("t,label\n" + "".join(f"{cell},{n % 2}\n" for n, cell in enumerate(cells)))
    with pytest.raises(DataError, match=f"column t: expected a time .*, got '{got}'"):
        read_table(tmp_path / "a.csv")


def test_texts_are_refused_with_the_key_that_leaves_them_out(tmp_path):
    rows = "".join(f"some text {n},{n % 2}\n" for n in range(30))
    (tmp_path / "a.csv").write_text(f"note,label\n{rows}")
    with pytest.raises(DataError, match=r"column note: expected .* \(folder.leave-out leaves a column out\)"):
        read_table(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("folder__label", "nothing", "folder.label: expected one of age, smoker, visit, diagnosis, got nothing"),
        ("folder__person", "nobody", "folder.person: expected columns among site, age"),
        ("folder__leave_out", "note,nothing", "folder.leave-out: expected columns among"),
    ],
)
def test_a_column_that_a_key_names_and_the_file_lacks_is_refused_by_name(tmp_path, key, value, words):
    with pytest.raises(SepalError, match=words):
        assemble(mixed(tmp_path, **{key: value}))


def test_the_keys_are_refused_where_they_have_no_effect(tmp_path):
    for key in ("label", "person", "leave-out", "schema"):
        with pytest.raises(ConfigError, match=f"folder.{key}: expected nothing with dataset = digits"):
            assemble({"dataset": "digits", "method": "fedavg", f"folder.{key}": "x"})
    with pytest.raises(ConfigError, match=r"hf.label names it there"):
        assemble({"dataset": "hf", "method": "fedavg", "folder.label": "x"})


def test_arrays_of_labels_and_owners_are_named_by_the_same_keys(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(40, 3)), "kind": np.arange(40) % 2, "site": np.repeat(["rome", "oslo"], 20)}
    np.savez(tmp_path / "a.npz", **arrays)
    flat = {"dataset": "folder", "data-dir": str(tmp_path), "method": "fedavg", "folder.label": "kind"}
    assert assemble({**flat, "folder.person": "site"}).names == ("oslo", "rome")
    assert assemble({**flat, "data-dir": str(tmp_path / "a.npz")}).names == (), "data-dir may be the file"
    with pytest.raises(DataError, match=r"folder.person: expected one of kind, site, x, got person"):
        assemble({**flat, "folder.person": "person"})
    with pytest.raises(DataError, match=r"expected x and label, and x_test"):
        assemble({**flat, "folder.label": "label"})


def test_a_schema_says_how_a_table_is_read_also_in_another_order_and_with_other_columns(tmp_path):
    flat = mixed(tmp_path)
    (tmp_path / "schema.toml").write_text(written(schema(SMOKER, AGE)))
    plain = {key: value for key, value in flat.items() if not key.startswith("folder.")} | {"folder.missing": "mean"}
    assembly = assemble(plain)
    assert assembly.info.columns == ("smoker=no", "smoker=yes", "age")
    assert assembly.names == ("berlin", "rome")
    assert any("does not read are left out: visit, note" in note for note in assembly.notes)
    assert assemble(plain).info.class_names == ("ill", "well")
    (tmp_path / "schema.toml").write_text(written(schema(AGE)))
    assert assemble(plain).info.columns == ("age",), "what is cached of another schema is not taken"


def test_a_schema_is_what_was_written(tmp_path):
    odd = Column(name='a "b"\n#', kind="category", values=("ja", "nein; ü", '"'))
    original = schema(AGE, odd, Column(name="note", kind="left-out"))
    (tmp_path / "schema.toml").write_text(written(original), encoding="utf-8")
    assert read_schema(tmp_path / "schema.toml") == original
    assert parsed(original.text()) == original
    assert tomllib.loads(written(original))["column"][0] == {"name": "age", "kind": "number", "unit": "years"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format = 2\n", "format"),
        ("format = 1\nlabels = 'a'\n", "labels"),
        ("[[column]]\nname = 'a'\nkind = 'colour'\n", "column.0.kind"),
        ("[[column]]\nname = 'a'\nkind = 'category'\n", "values for a category"),
        ("[[column]]\nname = 'a'\nkind = 'category'\nvalues = ['x', 'x']\n", "different values"),
        ("[[column]]\nname = 'a'\nkind = 'number'\n[[column]]\nname = 'a'\nkind = 'number'\n", "each column once"),
        ("label = 1\n", "label"),
        ("label = ", "schema.toml"),
    ],
)
def test_a_schema_that_is_none_is_refused_in_one_line(tmp_path, text, words):
    mixed(tmp_path)
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(DataError, match="expected a file that `sepal data inspect --write` made") as refused:
        assemble({"dataset": "folder", "data-dir": str(tmp_path), "method": "fedavg"})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("smoker,", "smokes,"), "expected all columns of the schema, also smoker"),
        (("20,yes", "20,perhaps"), "column smoker: expected one of no, yes, got 'perhaps'"),
        (("20,yes", "old,yes"), "column age: expected a finite number, got 'old'"),
        ((",ill", ",dead"), "column diagnosis: expected one of ill, well, got 'dead'"),
    ],
)
def test_a_table_that_the_schema_does_not_fit_is_refused_by_name(tmp_path, change, words):
    flat = mixed(tmp_path, MIXED.replace(*change))
    (tmp_path / "schema.toml").write_text(written(schema(SMOKER, AGE)))
    with pytest.raises(DataError, match=words):
        assemble({**flat, "folder.leave-out": ""})


@pytest.mark.parametrize(("key", "value"), [("label", "age"), ("person", "age"), ("classes", "well,ill")])
def test_a_key_that_says_something_else_than_the_schema_is_refused(tmp_path, key, value):
    flat = mixed(tmp_path)
    (tmp_path / "schema.toml").write_text(written(schema(SMOKER, AGE)))
    with pytest.raises(ConfigError, match=f"folder.{key}: expected .*, as .*schema.toml says"):
        assemble({**flat, f"folder.{key}": value})


@pytest.mark.parametrize(
    "other_text",
    [
        MIXED.replace("yes", "often"),
        MIXED.replace("age,smoker", "smoker,age").replace("20,yes", "yes,20"),
        MIXED.replace("age", "height"),
    ],
    ids=["categories", "order", "names"],
)
def test_machines_whose_tables_are_read_otherwise_are_refused_and_a_schema_mends_it(tmp_path, other_text):
    rows = [line.split(",") for line in MIXED.splitlines()]
    if other_text.startswith("site,smoker,age"):
        other_text = "\n".join(",".join([row[0], row[2], row[1], *row[3:]]) for row in rows) + "\n"
    first, second = (assemble(mixed(tmp_path / name, text)) for name, text in (("ours", MIXED), ("theirs", other_text)))
    difference = disagreement("rome", first.agreed, second.agreed)
    assert difference.key.startswith(
        "rome: columns, kinds, categories and units of a table, as schema.toml can give them"
    )
    for name in ("berlin", "yes", "smoker", "diagnosis=", "years"):
        assert name not in second.agreed.replace('folder.label\t"diagnosis"', ""), "only a digest is sent"


def test_one_schema_on_two_machines_agrees_and_another_unit_does_not(tmp_path):
    texts = {"ours": MIXED, "theirs": MIXED.replace("yes", "no").replace("age", "AGE").replace("AGE", "age")}
    agreements = {}
    for name, text in texts.items():
        flat = mixed(tmp_path / name, text)
        (tmp_path / name / "schema.toml").write_text(written(schema(SMOKER, AGE)))
        agreements[name] = assemble(flat).agreed
    assert disagreement("rome", agreements["ours"], agreements["theirs"]) is None
    months = AGE.model_copy(update={"unit": "months"})
    (tmp_path / "theirs" / "schema.toml").write_text(written(schema(SMOKER, months)))
    assert disagreement("rome", agreements["ours"], assemble(mixed(tmp_path / "theirs")).agreed) is not None


def test_a_node_takes_the_schema_beside_its_own_data_and_no_path_of_the_server(tmp_path):
    flat = {"dataset": "folder", "folder.schema": "/somewhere/schema.toml"}
    assert local_config(flat, Node(data_dir=str(tmp_path)))["folder.schema"] == ""
    with pytest.raises(ProtocolError, match=r"folder.schema"):
        local_config(flat, Node())


@pytest.mark.parametrize("key", ["label", "person", "leave-out"])
def test_a_node_without_accuracies_lets_only_its_own_schema_name_columns(tmp_path, key):
    flat = mixed(tmp_path)
    names = {"label": "diagnosis", "person": "site", "leave-out": "note"}
    node = Node(accuracies=False)
    with pytest.raises(ProtocolError, match=r"folder.label: expected a schema.toml"):
        check_columns(node, assemble(flat).data)
    check_columns(Node(), assemble(flat).data)
    (tmp_path / "schema.toml").write_text(written(schema(SMOKER, AGE)))
    bare = {k: v for k, v in flat.items() if k not in {f"folder.{name}" for name in names}}
    check_columns(node, assemble(bare).data)
    if key == "leave-out":
        with pytest.raises(ProtocolError, match=r"folder.leave-out"):
            check_columns(node, assemble({**bare, "folder.leave-out": "note"}).data)
    else:
        check_columns(node, assemble({**bare, f"folder.{key}": names[key]}).data)
        (tmp_path / "schema.toml").write_text(written(TableSchema(column=(AGE, SMOKER))))
        with pytest.raises(ProtocolError, match=r"folder.label"):
            check_columns(node, assemble({**bare, "folder.label": "diagnosis"}).data)


def test_a_node_without_accuracies_sends_no_digest_of_categories_that_are_in_its_data(tmp_path):
    text = MIXED.replace("diagnosis", "label").replace("site", "person")
    flat = mixed(tmp_path, "\n".join(",".join(line.split(",")[n] for n in (0, 1, 2, 5)) for line in text.splitlines()))
    flat = {key: value for key, value in flat.items() if not key.startswith("folder.")} | {"folder.missing": "mean"}
    with pytest.raises(ProtocolError, match=r"folder.schema: expected .*: a digest of the categories is sent"):
        check_columns(Node(accuracies=False), assemble(flat).data)
