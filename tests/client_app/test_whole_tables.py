"""A node with a table of its own is one client with all of it, and its server needs the schema alone."""

from __future__ import annotations

import pytest
from flwr.app import Context, Message, RecordDict

from sepal.client_app.app import handle
from sepal.client_app.build import Node, data_of
from sepal.config.agreement import disagreement
from sepal.data.schema import Column, TableSchema, written
from sepal.errors import SepalError
from sepal.flower.replies import enter_run
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.strategies.assembly import assemble

SCHEMA = TableSchema(
    label="ill",
    client="site",
    classes=("no", "yes"),
    column=(Column(name="age", kind="number"), Column(name="sex", kind="category", values=("f", "m"))),
)
RUN = {"dataset": "folder", "clients": 3, "rounds": 1, "method": "fedavg"}


def table(directory, rows=60, site="berlin", schema=SCHEMA):
    directory.mkdir(exist_ok=True)
    lines = [f"{20 + n},{'fm'[n % 2]},{site},{('no', 'yes')[n // 2 % 2]}" for n in range(rows)]
    (directory / "own.csv").write_text("\n".join(["age,sex,site,ill", *lines, ""]))
    if schema:
        (directory / "schema.toml").write_text(written(schema))
    return directory


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """A function that asks a deployed node how many training examples it has."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    enter_run()

    def ask(node, **run):
        records = write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content())
        message = Message(records, dst_node_id=1, message_type="query")
        reply = handle(message, Context(1, 1, node, RecordDict(), {**RUN, **run}))
        return read_reply(reply.content)[0].client.examples

    return ask


def test_a_node_with_files_of_its_own_and_no_number_trains_with_all_of_them(examples, tmp_path, caplog):
    """Of 60 rows, a quarter are tests, and a tenth of the others validation."""
    caplog.set_level("INFO", "sepal")
    node = {"name": "berlin", "data-dir": str(table(tmp_path / "own"))}
    assert examples(node) == 41
    assert "berlin: 41 training examples, all of the data set folder on this machine" in caplog.text
    assert examples(node, **{"partition.name": "iid"}) == 41
    assert examples({**node, "partition-id": 1, "num-partitions": 3}, **{"partition.name": "iid"}) < 20
    assert examples({"name": "berlin"}, dataset="digits", **{"partition.subsample": 300}) < 200, "a shared data set"


def test_a_whole_table_tells_nothing_of_others(tmp_path):
    assembly = assemble({**RUN, "clients": 1, "data-dir": str(table(tmp_path / "own"))})
    data = data_of(assembly, Node.of({"data-dir": str(tmp_path / "own")}))
    part = data.client(0, 1, "berlin")
    assert len(part.train) + len(part.validation) + len(part.test) == 60
    assert data.private, "test examples of this client are not those of all clients"
    assert not data_of(assembly, Node.of({"data-dir": str(tmp_path / "own"), "partition-id": 0})).private


def test_a_server_needs_the_schema_alone_and_agrees_with_clients_that_have_tables(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "schema.toml").write_text(written(SCHEMA))
    server = assemble({**RUN, "data-dir": str(tmp_path / "server")})
    beside = assemble({**RUN, "folder.schema": str(tmp_path / "server" / "schema.toml")})
    client = assemble({**RUN, "clients": 1, "data-dir": str(table(tmp_path / "own"))})
    for server_side in (server, beside):
        assert server_side.info == client.info.__class__(**{**vars(client.info), "notes": server_side.info.notes})
        same = client.agreed.replace("clients\t1", "clients\t3")
        assert disagreement("berlin", server_side.agreed, same) is None
        assert [part.shape for part in server_side.setup.layout] == [part.shape for part in client.setup.layout]
        assert server_side.data.private


@pytest.mark.parametrize(
    ("schema", "keys", "words"),
    [
        (SCHEMA.model_copy(update={"classes": ()}), {}, "folder.classes: expected the names of the classes"),
        (SCHEMA.model_copy(update={"column": ()}), {}, "data-dir: expected files to read, or a schema with columns"),
        (SCHEMA, {"task": "segmentation"}, "task: expected classification"),
    ],
)
def test_what_a_schema_does_not_say_is_refused_by_name(tmp_path, schema, keys, words):
    (tmp_path / "schema.toml").write_text(written(schema))
    with pytest.raises(SepalError, match=words):
        assemble({**RUN, "data-dir": str(tmp_path), **keys})


def test_a_run_on_one_machine_is_refused_without_a_table(tmp_path):
    from typer.testing import CliRunner

    from sepal.cli.main import app

    (tmp_path / "schema.toml").write_text(written(SCHEMA))
    keys = [f"--set={key}={value}" for key, value in {**RUN, "data-dir": tmp_path, "out": tmp_path / "runs"}.items()]
    result = CliRunner().invoke(app, ["run", *keys])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert (
        "data-dir: expected a table beside schema.toml: only a server that others join can do without" in result.stderr
    )
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_targets_of_a_regression_need_no_classes(tmp_path):
    schema = TableSchema(label="a,b", column=(Column(name="age", kind="number"),))
    (tmp_path / "schema.toml").write_text(written(schema))
    server = assemble({**RUN, "data-dir": str(tmp_path), "task": "regression"})
    assert (server.info.classes, server.info.input_shape, server.info.labelled) == (2, (1,), False)
