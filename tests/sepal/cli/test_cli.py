"""The ``sepal`` command: every refusal is one line and exit code 2; what it runs, shows and lists."""

import io
import json
import re
import tomllib
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from sepal import __version__
from sepal.cli.app import EXAMPLES, GROUPS
from sepal.cli.keys import keys_of
from sepal.cli.main import app
from sepal.cli.showing import markdown_table
from sepal.config import RunConfig
from sepal.errors import ConfigError
from sepal.report.progress import RoundDisplay
from sepal.report.tables import of_one_client, of_some_clients, spaced
from sepal.runs.stored_run import StoredRun, read_run
from sepal.strategies import registry
from sepal.study.runs import find_run
from tests.sepal.cli.runs_for_tests import write_run

ROOT = Path(__file__).resolve().parents[3]
SMALL = {"partition.name": "lambda-mix", "partition.subsample": 300, "clients": 3, "rounds": 2, "method": "fedpse"}
SETS = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["bogus=1"], "bogus: expected a known key, got an unknown one"),
        (["batch_size=1"], "batch_size: expected hyphens: batch-size, got batch_size"),
        (["fedpse.kep=0.1"], "fedpse.kep: expected a known key, got an unknown one"),
        (["bogus.key=1"], "bogus.key: expected a known key, got an unknown one"),
        (["method=local", "fedpse.kep=0.1"], "fedpse.kep: expected a known key, got an unknown one"),
        (["rounds=x"], "rounds: expected a valid integer, got 'x'"),
        (["rounds=1.5"], "rounds: expected a valid integer, got 1.5"),
        (["momentum=true"], "momentum: expected a valid number, got True"),
        (["rounds=-1"], "rounds: expected greater than or equal to 0, got -1"),
        (["lr=nan"], "lr: expected a finite number, or 'search', got nan"),
        (["lr=inf"], "lr: expected a finite number, or 'search', got inf"),
        (["momentum=1.0"], "momentum: expected less than 1, got 1.0"),
        (["fedpse.keep=0"], "fedpse.keep: expected greater than 0, got 0"),
        (["partition.lambda=2"], "partition.lambda: expected less than or equal to 1, got 2"),
        (["partition.name=odd"], "partition.name: expected 'auto', 'iid', 'dirichlet', "),
        (["optimizer=lion"], "optimizer: expected 'auto', 'sgd' or 'adam', got 'lion'"),
        (["method=nope"], "method: expected one of `sepal methods`, or MODULE:NAME for "),
        (["dataset=nope"], "dataset: expected one of "),
        (["model=nope"], "model: expected one of "),
        (["model=resnet18-gn", "dataset=imdb"], "model: expected a model for text"),
        (["clients-per-round=11"], "clients-per-round: expected at most clients = 10, got 11"),
        (["name=.."], "name: expected "),
        (["name=a/b"], "name: expected "),
        (["rounds"], "--set: expected KEY=VALUE, got rounds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(here, sets, message):
    result = sepal("run", *[part for text in sets for part in ("--set", text)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"sepal: {message}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--config", "none.toml"], "--config: expected a TOML file, got none.toml: No such file or directory"),
        (["run", "--bogus"], "No such option"),
        (["run", "--workers", "-1"], "Invalid value for '--workers'"),
        (["run", "--out", "file", "--set", "dataset=digits"], "expected a directory that can be made"),
        (["show", "none"], "run: expected a directory of a run or a comparison, or a name under "),
        (["keys", "none"], "method: expected one of `sepal methods`, or MODULE:NAME for "),
        (["bogus"], "No such command 'bogus'"),
    ],
)
def test_other_bad_input_is_one_line_too(here, arguments, message):
    (here / "file").write_text("")
    result = sepal(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("sepal: ")
    assert result.stderr.count("\n") == 1


def test_missing_data_is_one_line_that_says_what_to_put_where(here, monkeypatch):
    monkeypatch.setenv("SEPAL_DOWNLOAD", "0")
    result = sepal("run", "--set", "dataset=mnist", "--set", f"data-dir={here}", "--name", "a", "--workers", 1)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "train-images-idx3-ubyte" in result.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "runs"
    result = sepal("run", *SETS, "--name", "mine", "--out", out, "--workers", 1)
    assert result.exit_code == 0, result.stderr
    return out / "mine", result


def test_a_run_shows_each_round_and_ends_with_tables_and_the_place(finished):
    path, result = finished
    note, left_out, *rounds = result.stderr.splitlines()
    assert note == "sepal: lr = 0.2: calibrated for fedpse on digits"
    assert left_out.startswith("sepal: partition: 1,")
    assert " of 1,797 examples are with no client: " in left_out
    assert [line.split()[3] for line in rounds] == ["1/2", "2/2", "closing"], "rounds as the user has set them"
    assert "3/" not in result.stderr
    for words in ("received", "trained", "MB up", "down", "s left"):
        assert words in result.stderr.splitlines()[-2]
    assert "mine: fedpse on digits, 3 clients, 2 rounds, seed 0, complete" in result.stdout
    assert "closing" in result.stdout
    assert result.stdout.splitlines()[-1] == f"Run written to {path}"


def test_a_run_that_is_complete_is_said_to_be_and_left_alone(finished):
    path, _ = finished
    before = (path / "summary.json").read_bytes()
    result = sepal("run", "--name", "mine", "--out", path.parent)
    assert result.exit_code == 0
    assert result.stderr == "sepal: run mine is complete already\n"
    assert (path / "summary.json").read_bytes() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_verbose_run_says_why_steps_are_not_captured(here, caplog, workers):
    caplog.set_level("WARNING", "sepal")  # and puts the level back
    caplog.handler.setLevel("DEBUG")
    arguments = ["run", *SETS, "--rounds", 1, "--set", "engine.capture=true", "--set", "device=cpu"]
    message = "engine.capture: steps are captured on CUDA only; on cpu they are made one by one"
    assert sepal(*arguments, "--workers", workers, "--name", "quiet").exit_code == 0
    assert message not in caplog.messages
    assert sepal(*arguments, "--workers", workers, "--name", "verbose", "--verbose").exit_code == 0
    assert message in caplog.messages


def test_a_run_of_the_name_with_another_key_is_refused(finished):
    path, _ = finished
    result = sepal("run", "--name", "mine", "--out", path.parent, "--set", "seed=1")
    assert result.exit_code == 2
    way = f"give another --name (in Python name=), or delete {path}"
    assert result.stderr == f"sepal: seed: expected 0, with which the run mine was started, got 1; {way}\n"


def test_another_data_set_under_a_runs_name_is_named_before_the_keys_that_do_not_suit_it(finished):
    """The line spoke of the model, which the run of that name had brought, and not of that run."""
    path, _ = finished
    result = sepal("run", "--name", "mine", "--out", path.parent, "--dataset=har", "--set", "split.by=time")
    assert result.exit_code == 2
    assert "sepal: dataset: expected 'digits', with which the run mine was started, got 'har'" in result.stderr


def test_a_config_file_gives_the_same_run(finished):
    path, _ = finished
    result = sepal("run", "--config", path / "config.toml", "--name", "again", "--out", path.parent, "--workers", 1)
    assert result.exit_code == 0
    first, second = (json.loads((path.parent / name / "summary.json").read_text()) for name in ("mine", "again"))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["clients_sha256"] == second["clients_sha256"]


def test_an_interrupted_run_says_how_it_goes_on_and_does(here, monkeypatch):
    from sepal.engines import in_process

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(in_process, "run_in_process", interrupted)
        result = sepal("run", *SETS, "--name", "cut")
    assert result.exit_code == 130
    again = "`sepal run --name cut` continues it with round 1, the first after its last checkpoint"
    assert result.stderr == f"sepal: interrupted; {again}\n"
    result = sepal("run", "--name", "cut", "--workers", 1)  # in this process
    assert result.exit_code == 0
    assert read_run(here / "runs" / "cut").summary["rounds"] == 2


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("dataset=cifar10", "cifar-10"),
        ("dataset=fashion_mnist", "fashion-mnist"),
        ("model=lenet-5", "lenet5"),
        ("local-epoch=1", "local-epochs"),
        ("partition.alfa=1", "partition.alpha"),
        ("partitions.alpha=1", "partition.alpha"),
        ("alpha=1", "partition.alpha"),
        ("epochs=3", "fedavg-ft.epochs"),
        ("fedpse.kep=0.1", "fedpse.keep"),
        ("fedpes.keep=0.1", "fedpse.keep"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest_known_one(here, words, near):
    result = sepal("run", "--set", words)
    assert result.exit_code == 2
    assert result.stderr.endswith(f"; did you mean {near}?\n")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "near"), [("fedprx", "fedprox"), ("fed-avg", "fedavg")])
def test_a_misspelt_method_has_the_likely_one_first(here, words, near):
    result = sepal("run", "--set", f"method={words}")
    line = f"sepal: method: expected {near}, or another one of `sepal methods`, got {words}\n"
    assert (result.exit_code, result.stderr) == (2, line)


def test_what_is_near_nothing_suggests_nothing(here):
    assert "did you mean" not in sepal("run", "--set", "zzz=1").stderr
    assert sepal("keys", "fedpze").stderr.endswith(
        "method: expected fedpse, or another one of `sepal methods`, got fedpze\n"
    )


# show


def test_show_finds_a_run_by_path_and_by_name_here_and_at_home(finished, here):
    path, _ = finished
    assert f"Run written to {path}" in sepal("show", path).stdout
    (here / "home").mkdir()
    (here / "home" / "runs").symlink_to(path.parent)
    assert find_run("mine") == here / "home" / "runs" / "mine"
    (here / "runs").symlink_to(path.parent)
    assert find_run("mine") == here / "runs" / "mine"
    with pytest.raises(ConfigError, match="run: expected a run directory"):
        find_run("other")


def test_show_takes_a_run_that_has_not_ended_and_one_beside_it(finished, here):
    path, _ = finished
    (here / "half").mkdir()
    (here / "half" / "config.toml").write_bytes((path / "config.toml").read_bytes())
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (here / "half" / "metrics.jsonl").write_text(lines[0] + lines[1][:50])
    result = sepal("show", here / "half", "--beside", path)
    assert result.exit_code == 0
    assert "half: fedpse on digits, 3 clients, 2 rounds, seed 0, at round 1" in result.stdout
    assert "complete" not in result.stdout
    (here / "half" / "metrics.jsonl").unlink()
    assert "at round 0" in sepal("show", here / "half").stdout


def test_tables_fit_80_columns(finished):
    path, _ = finished
    output = sepal("show", path, "--beside", path).stdout
    assert max(len(line.rstrip()) for line in output.splitlines()[:-1]) <= 80
    assert "…" not in output


def test_the_table_says_that_a_rounds_figures_are_of_its_own_clients():
    def run(*counts):
        lines = [{"full": count == max(counts), "clients": [{}] * count} for count in counts]
        return StoredRun(Path("a"), {}, tuple(lines), None)

    assert "of that round's clients alone, 2 of 25," in of_some_clients(run(2, 2, 25))
    assert "of that round's clients alone, 2 to 3 of 25," in of_some_clients(run(2, 3, 25))
    assert (of_some_clients(run(25, 25)), of_one_client(run(2, 25)), of_some_clients(run())) == ("", "", "")
    assert of_one_client(run(2, 19)) == "The worst 10 % of fewer than 20 clients is the worst one."


@pytest.mark.parametrize("rounds", [1, 2, 12, 13, 31, 401, 1001])
def test_long_runs_are_thinned_out_to_round_numbers(rounds):
    lines = [{"round": round} for round in range(1, rounds + 1)]
    numbers = [line["round"] for line in spaced(lines, 12)]
    assert numbers[0] == 1
    assert numbers[-1] == rounds
    assert len(numbers) <= 14
    assert numbers == sorted(set(numbers))


# methods, keys


def test_methods_lists_the_registry():
    output = sepal("methods").stdout
    assert [name for name in registry.names() if name not in output] == []


def test_methods_with_keys_lists_each_methods_own():
    output = sepal("methods", "--keys").stdout
    assert "fedpse.keep" in output
    assert "Keys of local: none" in output


def test_keys_lists_every_shared_key_with_default_and_meaning():
    keys = list(keys_of(RunConfig))
    assert [key.name for key in keys] == list(RunConfig().flat())
    assert [key.name for key in keys if not key.description or not key.values] == []
    by_name = {key.name: key for key in keys}
    assert (by_name["lr-decay"].values, by_name["lr-decay"].default) == ("float > 0, ≤ 1", "1.0")
    assert by_name["split.test-of-labels"].values == "true | false"
    assert by_name["values"].values == "fp32 | fp16 | bf16"
    (rate, _) = keys_of(registry.get("fedavgm").hyper, "fedavgm.")
    assert rate.values == "float > 0 | auto"
    assert by_name["seed"].values == "int ≥ 0, < 2^63"
    output = sepal("keys").stdout
    assert [key.name for key in keys if key.name not in output] == []


@pytest.mark.parametrize("name", registry.names())
def test_every_key_of_every_method_is_described(name):
    keys = list(keys_of(registry.get(name).hyper, f"{name}."))
    assert [key.name for key in keys if not key.description] == []


def test_the_page_of_methods_lists_them_all():
    """If this fails: python -m tools.methods."""
    assert f"\n{markdown_table()}\n<!-- /methods -->\n" in (ROOT / "docs" / "methods.md").read_text()
    assert sepal("methods", "--markdown").stdout.strip() == markdown_table()


@pytest.mark.parametrize("words", [["show"], ["join"], ["export"], ["deploy", "check"]])
def test_help_says_what_arguments_are(words):
    text = sepal(*words, "--help").stdout
    assert "Positional" not in text, "listed once"
    shown = text.partition("Arguments:")[2].partition("Options:")[0]
    lines = [line.split(None, 1) for line in shown.splitlines() if line.strip()]
    assert lines
    assert [name for name, *text in lines if "".join(text).startswith("[")] == [], shown
    assert "\\[" not in text


def test_the_version_is_an_option():
    assert sepal("--version").stdout == f"sepal {__version__}\n"


def test_runs_data_sets_and_models_are_listed(here, monkeypatch):
    monkeypatch.setenv("SEPAL_DATA", str(here / "nothing"))
    assert "no runs yet" in sepal("ls").stdout
    write_run(here / "runs" / "first", seed=1)
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "config.toml").write_text("= 3")
    rows = [line.split() for line in sepal("ls").stdout.splitlines()]
    assert ["first", "fedavg", "digits", "2/2", "complete"] in [row[:5] for row in rows]
    assert any(row[:1] == ["broken"] for row in rows), "one that cannot be read is listed, too"
    rows = [line.split() for line in sepal("data").stdout.splitlines()]
    assert ["digits", "image", "1x8x8", "10", "dirichlet", "yes"] in rows
    assert ["har", "signal", "9x128", "6", "natural", "no"] in rows
    rows = [line.split() for line in sepal("models").stdout.splitlines()]
    assert ["digits-cnn", "digits"] in rows
    assert ["cnn-cifar100-pa3dfl"] in rows


# Flower's run-config


def test_flowers_run_config_declares_every_key_with_its_default():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat = {}
    for key, value in declared.items():
        flat |= {f"{key}.{inner}": item for inner, item in value.items()} if isinstance(value, dict) else {key: value}
    expected = registry.defaults()
    assert flat == expected, "to write them: python -m tools.methods"
    assert {key: type(value) for key, value in flat.items()} == {key: type(value) for key, value in expected.items()}


def test_the_best_round_is_never_beyond_the_rounds_that_were_set(finished):
    path, _ = finished
    summary = json.loads((path / "summary.json").read_text())
    summary["accuracy"]["trained"]["best"] = {"round": 3, "mean": 0.5, "validation": 0.5}
    summary["accuracy"]["received"]["best"] = {"round": 2, "mean": 0.4, "validation": 0.5}
    shown = CliRunner()
    kept = (path / "summary.json").read_text()
    try:
        (path / "summary.json").write_text(json.dumps(summary))
        table = shown.invoke(app, ["show", str(path)]).stdout
    finally:
        (path / "summary.json").write_text(kept)
    assert "50.0 (closing)" in table
    assert "40.0 (2)" in table
    assert "(3)" not in table


def test_a_bar_counts_rounds_as_they_were_set_and_names_the_closing_evaluation():
    text = io.StringIO()
    line = {"accuracy": {}, "bytes": {"up": 0, "down": 0}}
    with RoundDisplay(Console(file=text, force_terminal=True, width=200), "mine") as display:
        display.start(0, 2)
        display.show({**line, "round": 2, "phase": ""})
        display._bar.refresh()
        display.show({**line, "round": 3, "phase": "closing"})
        display._bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.getvalue())
    assert "2/2" in shown
    assert "closing evaluation …" in shown, "it is under way"
    assert "closing evaluation: received" in shown
    assert "3/" not in shown


def test_the_table_at_the_end_marks_the_deployed_view_and_who_chose_the_best_round(tmp_path):
    write_run(tmp_path / "a", method="ditto", kept=True)
    write_run(tmp_path / "b", method="fedavg-ft", kept=True)
    result = sepal("show", str(tmp_path / "a"), "--beside", str(tmp_path / "b"))
    rows = [line.split() for line in result.stdout.splitlines() if "(deployed)" in line]
    assert [row[:3] for row in rows] == [["ditto", "kept", "(deployed)"], ["fedavg-ft", "trained", "(deployed)"]]
    assert "validation's" in result.stdout


def test_a_run_takes_method_data_and_rounds_as_options(here):
    sets = ("clients=2", "partition.subsample=200", "evaluate-every=0", "rounds=9", "method=fedavg")
    result = sepal(
        "run",
        "--method",
        "local",
        "--dataset",
        "digits",
        "--rounds",
        "1",
        "--name",
        "short",
        "--workers",
        "1",
        *(word for pair in sets for word in ("--set", pair)),
    )
    assert result.exit_code == 0, result.output
    config = tomllib.loads((here / "runs" / "short" / "config.toml").read_text())
    assert (config["method"], config["dataset"], config["rounds"], config["clients"]) == ("local", "digits", 1, 2)
    bad = sepal("run", "--method", "fedavgg")
    assert (bad.exit_code, bad.stderr) == (
        2,
        "sepal: method: expected fedavg, or another one of `sepal methods`, got fedavgg\n",
    )


def test_the_help_has_every_command_once_in_a_group_with_a_line_that_fits():
    grouped = [name for commands in GROUPS.values() for name in commands]
    assert sorted(grouped) == sorted(get_command(app).commands)
    lines = sepal("--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for commands in GROUPS.values():
        for name, words in commands.items():
            assert any(re.fullmatch(rf" +{name} +{re.escape(words)}", line) for line in lines), name
    assert [line.strip() for line in lines if line.startswith("  sepal ")] == list(EXAMPLES)


def test_the_help_of_every_command_fits_80_columns():
    commands = [[name] for name in get_command(app).commands]
    commands += [["deploy", name] for name in get_command(app).commands["deploy"].commands]
    wide = {tuple(command): max(map(len, sepal(*command, "--help").stdout.splitlines())) for command in commands}
    assert {command: width for command, width in wide.items() if width > 80} == {}


@pytest.mark.parametrize("command", [["keys"], ["keys", "fedpse"], ["methods"]])
def test_lists_with_text_are_as_wide_as_a_page_in_a_pipe_and_names_stay_whole(command):
    out = sepal(*command).stdout
    assert max(map(len, out.splitlines())) <= 100
    for name in {"keys": ["partition.min-examples"], "methods": ["subfedavg"]}[command[0]] if command[1:] == [] else ():
        assert re.search(rf"^ *{re.escape(name)} ", out, re.M)
