"""From options to flat keys."""

import pytest
import tomli_w

from sepal.config import RunConfig, former_values
from sepal.errors import ConfigError
from sepal.study.run_keys import gather, gather_to_serve, parse_sets, read_file, scalar

FORMER = former_values(RunConfig)  # of the keys that a stored run of before lacks


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.1", 0.1),
        (".1", 0.1),
        ("-.5", -0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("false", False),
        ("digits", "digits"),
        ('"3"', "3"),
        ("'a b'", "a b"),
        ("", ""),
        ("../runs/.5", "../runs/.5"),
        ("package.module:build", "package.module:build"),
        ("[1, 2]", "[1, 2]"),
        ("{a = 1}", "{a = 1}"),
        ("2026-11-20", "2026-11-20"),
        ("1\nother = 2", "1\nother = 2"),
        ("True", "True"),
    ],
)
def test_a_value_is_a_toml_scalar_or_a_text(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_a_key_of_text_takes_what_was_typed():
    typed = {"name": "5", "own.shape": "8", "capacity.profile": "0.50", "own.data": "1e3", "rounds": 5}
    assert parse_sets([f"{key}={value}" for key, value in typed.items()]) == typed
    assert parse_sets(["name='5'"]) == {"name": "5"}


def test_sets_are_keys_and_values_and_the_last_wins():
    assert parse_sets(["lr=0.1", "name=a=b", " rounds = 3 ", "lr=0.2"]) == {"lr": 0.2, "name": "a=b", "rounds": 3}


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_what_is_not_key_and_value_is_refused(text):
    with pytest.raises(ConfigError, match="--set: expected KEY=VALUE"):
        parse_sets([text])


def test_a_files_tables_become_dotted_keys(tmp_path):
    (tmp_path / "c.toml").write_text('rounds = 3\n"split.seed" = 4\n[partition]\nname = "iid"\n[fedpse]\nkeep = 0.2\n')
    assert read_file(tmp_path / "c.toml") == {
        "rounds": 3,
        "split.seed": 4,
        "partition.name": "iid",
        "fedpse.keep": 0.2,
    }


def test_a_list_in_a_file_is_refused_by_its_key(tmp_path):
    (tmp_path / "c.toml").write_text("[partition]\nname = [1]\n")
    with pytest.raises(ConfigError, match=r"partition\.name: expected a number, a text or true or false"):
        read_file(tmp_path / "c.toml")


@pytest.mark.parametrize("content", [None, b"rounds = = 3", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"--config: expected a TOML file, got .*c\.toml"):
        read_file(path)


def test_set_wins_over_the_file_and_the_options_over_both(tmp_path):
    (tmp_path / "c.toml").write_text('rounds = 3\nseed = 1\nname = "file"\n')
    flat = gather(tmp_path / "c.toml", ["seed=2", "out=there"], {"name": "option", "out": None}, tmp_path)
    assert flat == {"rounds": 3, "seed": 2, "name": "option", "out": "there"}


def test_a_stored_run_of_the_name_gives_what_is_not_said(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").write_text(tomli_w.dumps({"name": "mine", "seed": 5, "rounds": 9}))
    (tmp_path / "runs" / "mine" / "metrics.jsonl").touch()
    options = {"name": "mine", "out": None}
    assert gather(None, ["rounds=4"], options, tmp_path) == {**FORMER, "name": "mine", "seed": 5, "rounds": 4}
    assert gather(None, [], {**options, "out": "elsewhere"}, tmp_path) == {"name": "mine", "out": "elsewhere"}


def test_a_run_that_never_began_gives_its_keys_only_to_a_command_without_others(tmp_path):
    """FedAvg's defaults are not pFedMe's: an interrupted start must not leave them behind."""
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    stored = {"name": "mine", "method": "fedavg", "lr": 0.05}
    (tmp_path / "runs" / "mine" / "config.toml").write_text(tomli_w.dumps(stored))
    options = {"name": "mine", "out": None}
    assert gather(None, ["method=pfedme"], options, tmp_path) == {"name": "mine", "method": "pfedme"}
    assert gather(None, ["timeout=5.0"], options, tmp_path) == {**FORMER, **stored, "timeout": 5.0}


def test_a_served_run_has_an_absolute_directory_by_option_by_key_or_by_default(tmp_path, monkeypatch):
    """Flower's processes have another working directory."""
    monkeypatch.chdir(tmp_path)
    assert gather_to_serve(None, [], None, None)["out"] == str(tmp_path / "runs")
    assert gather_to_serve(None, ["out=there"], None, None)["out"] == str(tmp_path / "there")
    assert gather_to_serve(None, ["out=there"], None, "option")["out"] == str(tmp_path / "option")
    flat = gather_to_serve(None, ["out=/data/x", "clients=3"], "n", None)
    assert flat == {"out": "/data/x", "clients": 3, "name": "n"}


def test_a_served_runs_directory_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gather_to_serve(None, ["out=5"], None, None)["out"] == str(tmp_path / "5"), "a text, as typed"
    for settings in (["out=~nobody-here/x"], []):
        with pytest.raises(ConfigError, match="out: expected a directory, got ~nobody-here/x"):
            gather_to_serve(None, settings, None, None if settings else "~nobody-here/x")


def test_a_served_run_that_was_moved_is_continued_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    stored = {"name": "mine", "seed": 5, "out": "/before/the/move"}
    (tmp_path / "runs" / "mine" / "config.toml").write_text(tomli_w.dumps(stored))
    (tmp_path / "runs" / "mine" / "metrics.jsonl").touch()
    flat = gather_to_serve(None, [], "mine", None)
    assert flat == {**FORMER, "name": "mine", "seed": 5, "out": str(tmp_path / "runs"), "clients": 2}
