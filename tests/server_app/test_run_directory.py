"""The directory of a run: its name, its settings, the lines of its rounds, and every refusal."""

import subprocess
import sys
import tomllib
from datetime import datetime
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from sepal.config import RunConfig
from sepal.data.schema import Column, TableSchema, written
from sepal.errors import ConfigError, StateError
from sepal.runs import run_directory
from sepal.runs.places import default_base, run_path
from sepal.runs.run_directory import RunDirectory, plain
from sepal.runs.stored_run import FREE, stored_config
from sepal.server.ledger import LedgerEntry
from sepal.server.run_state import RoundRecord, RunState
from sepal.strategies.assembly import assemble
from tests.server_app.json_lines import lines

AGE = Column(name="age", kind="number")
SMOKER = Column(name="smoker", kind="category", values=("no", "yes"))


def record(round):
    entries = tuple(LedgerEntry(round, "a", "training", direction, 10, 20, 40) for direction in ("down", "up"))
    return RoundRecord(round, ("a",), (), {}, {}, entries, False, {"total": 1.0})


def line(round):
    return {"round": round, "accuracy": {}}


def at(round, server=None):
    return RunState("uuid", round, server)


def write(directory, *rounds):
    for round in rounds:
        directory.round(at(round), record(round), line(round))


def begin(path, keys):
    """A run that has written its first round."""
    with RunDirectory(path, assemble(keys), "in-process") as directory:
        write(directory, 1)


# Names and places


def test_the_path_is_out_and_name(tmp_path):
    config = RunConfig(name="a", out="somewhere")
    assert run_path(config, tmp_path) == tmp_path / "somewhere" / "a"
    assert run_path(RunConfig(name="a", out="/else"), tmp_path) == Path("/else/a")


def test_a_name_is_made_up_and_never_one_that_exists(tmp_path):
    config, now = RunConfig(method="fedpse", dataset="digits"), datetime(2026, 11, 20, 23, 5, 7)
    path = run_path(config, tmp_path, now)
    assert path == tmp_path / "runs" / "fedpse-digits-20261120-230507"
    path.mkdir(parents=True)
    assert run_path(config, tmp_path, now).name == "fedpse-digits-20261120-230507-2"


def test_in_process_a_relative_out_is_here_and_under_flower_in_sepals_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    assert default_base("in-process") == tmp_path
    assert default_base("simulation") == tmp_path / "home"
    monkeypatch.delenv("SEPAL_HOME")
    assert default_base("deployment") == Path.home() / ".sepal"


# config.toml


def test_the_config_holds_every_value_under_its_flat_key(tmp_path):
    assembly = assemble({"dataset": "digits", "method": "fedpse", "fedpse.keep": 0.25})
    with RunDirectory(tmp_path / "mine", assembly, "in-process"):
        stored = tomllib.loads((tmp_path / "mine" / "config.toml").read_text())
    assert set(stored) > set(RunConfig().flat())
    assert (stored["fedpse.keep"], stored["partition.alpha"], stored["name"]) == (0.25, 0.3, "mine")
    assert stored["rounds"] == 30  # the data set's default, not 0


def test_the_config_of_a_run_starts_the_same_run(tmp_path, assembly):
    with RunDirectory(tmp_path / "one", assembly, "in-process"):
        stored = stored_config(tmp_path / "one")
    again = assemble(stored)
    assert again.setup.config.model_copy(update={"name": ""}) == assembly.setup.config


@pytest.mark.parametrize(
    ("key", "value", "was"), [("seed", 7, "0"), ("partition.alpha", 0.5, "0.3"), ("rounds", 4, "3")]
)
def test_a_changed_key_is_refused_by_name(tmp_path, keys, key, value, was):
    begin(tmp_path / "one", {**keys, "method": "fedavg"})
    before = (tmp_path / "one" / "config.toml").read_bytes()
    changed = assemble({**keys, "method": "fedavg", key: value})
    with pytest.raises(ConfigError) as refusal:
        RunDirectory(tmp_path / "one", changed, "in-process")
    way = f"give another --name (in Python name=), or delete {tmp_path / 'one'}"
    assert str(refusal.value) == f"{key}: expected {was}, with which the run one was started, got {value}; {way}"
    assert (tmp_path / "one" / "config.toml").read_bytes() == before


def test_a_changed_method_and_a_changed_key_of_it_are_refused(tmp_path, keys):
    begin(tmp_path / "one", {**keys, "method": "fedpse"})
    with pytest.raises(ConfigError, match=r"^method: expected .fedpse."):
        RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedavg"}), "in-process")
    with pytest.raises(ConfigError, match=r"^fedpse\.keep: expected 0\.1"):
        RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedpse", "fedpse.keep": 0.2}), "in-process")


def test_a_run_that_never_began_takes_other_keys(tmp_path, keys):
    """For example one whose clients were refused: the corrected keys are used under the same name."""
    RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedavg"}), "in-process").close()
    RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedpse", "seed": 7}), "in-process").close()
    assert (stored_config(tmp_path / "one")["method"], stored_config(tmp_path / "one")["seed"]) == ("fedpse", 7)
    assert "fedpse.keep" in stored_config(tmp_path / "one")


@pytest.mark.parametrize("left", ["checkpoint", "metrics.jsonl", "ledger.jsonl", "summary.json"])
def test_what_a_run_has_written_binds_it_to_its_keys(tmp_path, keys, left):
    assembly = assemble({**keys, "method": "fedavg"})
    with RunDirectory(tmp_path / "one", assembly, "in-process") as directory:
        if left == "checkpoint":
            directory.store().checkpoint(at(0, assembly.method.make_server(assembly.setup).init()))
        else:
            (tmp_path / "one" / left).write_text("{}\n")
    with pytest.raises(ConfigError, match=r"^seed: expected 0, with which the run one was started, got 7"):
        RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedavg", "seed": 7}), "in-process")
    (tmp_path / "one" / "config.toml").unlink()
    with pytest.raises(StateError, match=r"config\.toml: expected the keys with which the run was started"):
        RunDirectory(tmp_path / "one", assembly, "in-process")


def test_a_run_that_never_began_cannot_go_back_and_is_left_alone(tmp_path, assembly):
    with pytest.raises(ConfigError, match=r"^--from-round: expected a run that was started, got one"):
        RunDirectory(tmp_path / "one", assembly, "in-process", from_round=1)
    assert not (tmp_path / "one").exists()
    RunDirectory(tmp_path / "two", assembly, "in-process").close()
    before = (tmp_path / "two" / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"^--from-round: expected a run that was started, got two"):
        RunDirectory(tmp_path / "two", assembly, "in-process", from_round=1)
    assert (tmp_path / "two" / "config.toml").read_bytes() == before


def test_what_a_method_cannot_run_is_refused_before_there_is_a_directory(tmp_path, keys):
    with pytest.raises(ConfigError, match=r"^split.validation: expected more than 0"):
        RunDirectory(tmp_path / "one", assemble({**keys, "method": "subfedavg", "split.validation": 0.0}), "in-process")
    assert not (tmp_path / "one").exists()


def test_places_and_patience_may_change_and_are_written_anew(tmp_path, keys):
    values = {"data-dir": "/d", "state-dir": "/s", "timeout": 5.0, "checkpoint-every": 3, "max-message-bytes": 10**9}
    values |= {"data-growth": 3.0, "keep-versions": 5, "lost-states": "restart"}
    assert set(values) | {"name", "out"} == FREE
    RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedavg"}), "in-process").close()
    RunDirectory(tmp_path / "one", assemble({**keys, "method": "fedavg", **values}), "in-process").close()
    assert {key: stored_config(tmp_path / "one")[key] for key in values} == values


def test_a_damaged_config_is_named(tmp_path, assembly):
    (tmp_path / "config.toml").write_text("rounds = = 3")
    with pytest.raises(StateError, match=r"config\.toml: expected a readable TOML file"):
        RunDirectory(tmp_path, assembly, "in-process")


def test_a_place_that_cannot_be_written_is_named(tmp_path, assembly):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="expected a directory that can be made, got Not a directory"):
        RunDirectory(tmp_path / "file" / "run", assembly, "in-process")


HOLD = """
import sys
from pathlib import Path
from sepal.runs.run_directory import _lock
lock = _lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_cannot_have_one_directory_open(tmp_path, assembly, monkeypatch):
    monkeypatch.setattr(run_directory, "LOCK_PATIENCE", 0.1)
    root = Path(__file__).resolve().parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateError, match="expected no other process that runs it"):
            RunDirectory(tmp_path, assembly, "in-process")
        monkeypatch.setattr(run_directory, "LOCK_PATIENCE", 30)  # the other may need a moment to end
        Timer(0.3, holder.kill).start()
        RunDirectory(tmp_path, assembly, "in-process").close()
    finally:
        holder.kill()
        holder.communicate()


# metrics.jsonl, ledger.jsonl


def test_a_round_appends_its_line_and_one_line_per_message(tmp_path, assembly):
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(0), 9)
        write(directory, 1, 2)
    assert [row["round"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert lines(tmp_path / "ledger.jsonl")[0] == {
        "round": 1,
        "client": "a",
        "purpose": "training",
        "direction": "down",
        "payload": 10,
        "message": 20,
        "dense": 40,
        "status": "accepted",
        "reason": "",
    }
    assert len(lines(tmp_path / "ledger.jsonl")) == 4


def test_a_resumed_run_cuts_off_what_it_will_write_again(tmp_path, assembly):
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(0), 9)
        write(directory, 1, 2, 3, 4)
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(2), 9)  # the checkpoint is of round 2: rounds 3 and 4 come again
        assert [row["round"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
        write(directory, 3, 4, 5)
    assert [row["round"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert [row["round"] for row in lines(tmp_path / "ledger.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("torn", ['{"round": 3, "accu', '{"round": 3}', "\x00\x00\x00\n", "[]\n"])
def test_a_torn_last_line_is_dropped(tmp_path, assembly, torn):
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(0), 9)
        write(directory, 1, 2)
    for name in ("metrics.jsonl", "ledger.jsonl"):
        with open(tmp_path / name, "a") as file:
            file.write(torn)
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(3), 9)
    assert [row["round"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert len(lines(tmp_path / "ledger.jsonl")) == 4


def test_a_run_without_a_checkpoint_deletes_all_lines(tmp_path, assembly):
    RunDirectory(tmp_path, assembly, "in-process").close()
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        directory.opened(at(0), 9)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_numbers_that_json_cannot_hold_become_null():
    value = {"a": np.float32(0.5), "b": [float("nan"), np.inf], "c": (np.int64(3), True), "d": None}
    assert plain(value) == {"a": 0.5, "b": [None, None], "c": [3, True], "d": None}


def test_a_directory_that_cannot_be_appended_to_is_named(tmp_path, assembly):
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        (tmp_path / "ledger.jsonl").mkdir()
        with pytest.raises(StateError, match=r"ledger\.jsonl: expected room and permission to write"):
            write(directory, 1)


# How a table is read


TABLE = "age,smoker,label\n" + "".join(
    f"{20 + n},{('no', 'yes')[n % 2]},{('ill', 'well')[n // 2 % 2]}\n" for n in range(60)
)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, False),
        ({"column": (Column(name="age", kind="number", unit="years"), SMOKER)}, False),
        ({"classes": ("well", "ill")}, True),
        ({"column": (AGE, Column(name="smoker", kind="category", values=("yes", "no")))}, True),
        ({"column": (AGE, Column(name="smoker", kind="left-out"))}, True),
    ],
)
def test_a_run_whose_table_is_read_otherwise_than_at_its_start_is_refused_and_says_why(tmp_path, change, refused):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "all.csv").write_text(TABLE)
    schema = TableSchema(label="label", classes=("ill", "well"), column=(AGE, SMOKER))
    (tmp_path / "table" / "schema.toml").write_text(written(schema))
    keys = {"method": "fedavg", "dataset": "folder", "data-dir": str(tmp_path / "table"), "clients": 2}
    with RunDirectory(tmp_path / "a", assemble(keys), "in-process") as directory:
        directory.opened(at(0), 2)
        write(directory, 1)
    (tmp_path / "table" / "schema.toml").write_text(written(schema.model_copy(update=change)))
    if not refused:
        RunDirectory(tmp_path / "a", assemble(keys), "in-process").close()
        return
    with pytest.raises(ConfigError, match=r"^schema.toml: expected .*run a was started \(digest .*give another --name"):
        RunDirectory(tmp_path / "a", assemble(keys), "in-process")
    (tmp_path / "table" / "schema.toml").write_text(written(schema))
    RunDirectory(tmp_path / "a", assemble(keys), "in-process").close()


def test_a_table_without_a_schema_whose_categories_have_changed_is_refused_too(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "all.csv").write_text(TABLE)
    keys = {"method": "fedavg", "dataset": "folder", "data-dir": str(tmp_path / "table"), "clients": 2}
    with RunDirectory(tmp_path / "a", assemble(keys), "in-process") as directory:
        directory.opened(at(0), 2)
        write(directory, 1)
    (tmp_path / "table" / "all.csv").write_text(TABLE + "50,sometimes,ill\n")
    with pytest.raises(ConfigError, match=r"^schema.toml: expected"):
        RunDirectory(tmp_path / "a", assemble(keys), "in-process")
