"""What is compared, shown and used together: one's own images, runs found by name, and what is refused."""

from __future__ import annotations

import csv
import html
import json
import re

import numpy as np
import pytest
import tomli_w
from PIL import Image
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.config.elsewhere import PLACES
from sepal.errors import ConfigError
from sepal.report.page import live_parts, render
from sepal.runs.stored_run import read_run, stored_config
from sepal.study.comparison import INDEX, SEEDS_OF_ONE, read_comparison
from sepal.study.results import RunResult
from tests.sepal.cli.runs_for_tests import figures, write_run


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments):
    """The one line of a command that is refused."""
    result = sepal(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A working directory with two directories of 24 images in two classes."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for site in ("A", "B"):
        for name, low in (("dark", 0), ("light", 128)):
            (tmp_path / site / name).mkdir(parents=True)
            for number in range(12):
                image = random.integers(low, low + 128, (8, 8)).astype(np.uint8)
                Image.fromarray(image).save(tmp_path / site / name / f"{number}.png")
    return tmp_path


def train(site, name):
    keys = {"dataset": "folder", "data-dir": site, "method": "local", "clients": 2, "rounds": 1}
    keys |= {"partition.name": "iid", "split.validation": 0.0}
    sets = [f"--set={key}={value}" for key, value in keys.items()]
    assert sepal("run", *sets, "--name", name, "--workers", 1).exit_code == 0


def test_own_images_are_found_from_anywhere_and_labelled_by_the_exported_model(photos, monkeypatch):
    """A run keeps a copy of the data beside it, in a hidden directory that `predict` leaves out."""
    train("A", "one")
    assert read_run(photos / "runs" / "one").config["data-dir"] == str(photos / "A")
    (photos / "elsewhere").mkdir()
    monkeypatch.chdir(photos / "elsewhere")
    exported = sepal("export", photos / "runs" / "one", "client-00000", "--out", "model.safetensors")
    assert exported.exit_code == 0, exported.stderr
    assert list((photos / "A").glob(".sepal-cache/*"))
    labelled = sepal("predict", "model.safetensors", photos / "A")
    assert labelled.exit_code == 0, labelled.stderr
    assert len(labelled.stdout.splitlines()) == 1 + 24
    assert {row.split(",")[2] for row in labelled.stdout.splitlines()[1:]} <= {"dark", "light"}
    missing = refusal("predict", "model.safetensors", photos / "A", "--out", "/nowhere/x.csv")
    assert "/nowhere" in missing


def test_runs_on_other_images_cannot_be_compared(photos):
    train("A", "one")
    train("B", "two")
    with pytest.raises(ConfigError, match=r"data-dir: expected '.*/A', as in .*one, got '.*/B' in .*two"):
        read_comparison(["one", "two"])


def test_a_run_that_is_given_twice_counts_once(tmp_path):
    run = write_run(tmp_path / "a")
    (variant,) = read_comparison([str(run), f"{tmp_path}/../{tmp_path.name}/a"]).variants("")
    assert len(variant.results) == 1


def test_the_same_settings_and_seed_twice_are_no_two_seeds(tmp_path):
    places = [str(write_run(tmp_path / name)) for name in ("a", "b")]
    assert read_comparison(places).labels == ["fedavg (a)", "fedavg (b)"]


@pytest.mark.parametrize("key", SEEDS_OF_ONE)
def test_runs_that_differ_in_what_makes_no_other_method_are_seeds_of_one(tmp_path, key):
    different = {"seed": 1, "timeout": 5.0, "max-message-bytes": 2**30, "checkpoint-every": 3}
    places = [str(write_run(tmp_path / name)) for name in ("a", "b")]
    config = {**stored_config(tmp_path / "b"), "seed": 7, key: different.get(key, "other")}
    (tmp_path / "b" / "config.toml").write_text(tomli_w.dumps(config))
    (variant,) = read_comparison(places).all_variants()
    assert variant.label == "fedavg"
    assert len(variant.results) == 2


def test_a_label_tells_no_place_of_this_machine_and_still_tells_runs_apart(tmp_path):
    starts = {"a": "/home/me/old/w.safetensors", "b": "/home/me/new/w.safetensors", "c": "/home/me/v.safetensors"}
    places = [str(write_run(tmp_path / name)) for name in starts]
    for name, start in starts.items():
        config = {**stored_config(tmp_path / name), "initial-weights": start}
        (tmp_path / name / "config.toml").write_text(tomli_w.dumps(config))
    weights = "fedavg initial-weights="
    expected = [f"{weights}w.safetensors (2)", f"{weights}w.safetensors (1)", f"{weights}v.safetensors"]
    comparison = read_comparison(places)
    assert comparison.labels == expected
    assert "/home/me" not in json.dumps(live_parts(comparison))
    assert "/home/me" not in render(comparison)


@pytest.mark.parametrize("key", PLACES)
def test_a_report_has_no_place_of_this_machine(tmp_path, key):
    path = write_run(tmp_path / "a")
    config = {**stored_config(path), "dataset": "hf", key: "/home/me/secret"}
    (path / "config.toml").write_text(tomli_w.dumps(config))
    assert "/home/me" not in render(read_comparison([str(path)]))


def test_runs_with_other_clients_are_not_shown_beside_each_other(tmp_path):
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", closing=[0.5, 0.6])
    assert "clients: expected 3, as in " in refusal("show", first, "--beside", second)


def test_a_comparison_is_found_by_its_name_and_refuses_what_is_for_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "both" / "a")
    runs = [{"name": "a", "label": "fedavg", "cell": ""}]
    index = {"title": "Both", "view": "trained", "target": None, "runs": runs}
    (tmp_path / "runs" / "both" / INDEX).write_text(json.dumps(index))
    result = sepal("show", "both")
    assert result.exit_code == 0
    assert "fedavg" in result.stdout
    words = "expected one run, not a comparison"
    assert words in refusal("show", "both", "--tensorboard", tmp_path / "board")
    assert words in refusal("show", "both", "--beside", "a")
    assert not (tmp_path / "board").exists()


@pytest.fixture
def three(tmp_path):
    """Runs of Ditto, FedAvg and fine-tuned FedAvg with two seeds each; kept 10, received 20, trained 30, ± 1.4 %."""
    for method in ("ditto", "fedavg", "fedavg-ft"):
        for seed in (0, 1):
            file = write_run(tmp_path / f"{method}-{seed}", method=method, seed=seed) / "metrics.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for number, view in enumerate(("kept", "received", "trained"), 1):
                lines[-1]["accuracy"][view] = figures([0.1 * number + 0.02 * seed - 0.01])
            file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    runs = [{"name": path.name, "label": path.name[:-2], "cell": ""} for path in sorted(tmp_path.glob("*-?"))]
    index = {"title": "Three", "view": "trained", "target": None, "runs": runs}
    (tmp_path / INDEX).write_text(json.dumps(index))
    return tmp_path


DEPLOYED = {
    "ditto": ("kept", "10.0 ± 1.4"),
    "fedavg": ("received", "20.0 ± 1.4"),
    "fedavg-ft": ("trained", "30.0 ± 1.4"),
}


def views_of(shown):
    """Return the table of all views, which comes after the short one and before the costs."""
    return shown.partition("\ncost ")[0].split("accuracy, %", 2)[2]


def test_deployed_is_the_first_accuracy_and_of_the_methods_view(three):
    """In the terminal, whole at 80 characters, and in the report; the CSV file names the view."""
    result = sepal("show", three, "--all", "--csv", three / "comparison.csv")
    assert result.exit_code == 0, result.stderr
    table = views_of(result.stdout)
    head = ["deployed", "kept", "trained", "received"]  # without pooled, which no run has
    assert re.search(r"^ +(.+?) +deployed\n", table)[1].split() == head
    page = live_parts(read_comparison([str(three)]))["tables"]
    assert (
        re.findall(r'<th scope="col"><button type="button" class="sort">(\w+)</button></th>', page)[: len(head)] == head
    )
    rows = {row["name"]: row for row in csv.DictReader((three / "comparison.csv").open())}
    for method, (view, accuracy) in DEPLOYED.items():
        rest = rf"{accuracy} +10\.0 ± 1\.4 +30\.0 ± 1\.4 +20\.0 ± 1\.4 +{accuracy} *\n"
        assert re.search(rf"^{method} +{rest}", table, re.MULTILINE), table
        cells = re.search(rf'<th scope="row">{method}</th>(.+?)</tr>', page)[1]
        first = re.search("<td>(?:<strong>)?(.+?)<", cells)[1]
        assert html.unescape(first).replace("\xa0", " ") == accuracy
        assert rows[method]["deployed_view"] == view
        assert rows[method]["deployed"] == rows[method][view]
        assert f"{100 * float(rows[method][view]):.1f}" == accuracy.partition(" ")[0]


@pytest.mark.parametrize(("columns", "tables"), [(60, 2), (80, 1)])
def test_on_a_narrow_terminal_there_are_two_tables(three, monkeypatch, columns, tables):
    """Five accuracies with deviations do not fit into 60 characters; names and figures stay whole."""
    monkeypatch.setenv("COLUMNS", str(columns))
    index = (three / INDEX).read_text()
    (three / INDEX).write_text(index.replace('"label": "ditto"', '"label": "ditto, .1"'))
    shown = views_of(sepal("show", three, "--all").stdout)
    assert "…" not in shown
    assert shown.count("± 1.4") == 3 * 5
    assert shown.count("ditto, .1 ") == tables


def test_paired_differences_of_deployed_models(three, monkeypatch):
    """Ditto's user has the kept model, 10 %, and FedAvg's the received one, 20 %; trained, both have 30 %."""
    values = {"kept": 0.1, "received": 0.2, "trained": 0.3}
    monkeypatch.setattr(RunResult, "clients", lambda self, view: dict.fromkeys("abc", values[view]))
    comparison = read_comparison([str(three)])
    assert dict(comparison.differences("", "deployed"))["ditto − fedavg"].mean == pytest.approx(-0.1)
    assert dict(comparison.differences("", "trained"))["ditto − fedavg"].mean == 0
    table = sepal("show", three, "--all").stdout.partition("paired difference")[2]
    assert re.search(r"deployed +kept\n(.|\n)+received +trained\n", table)
    assert re.search(r"ditto − fedavg +-10\.0 \[-10\.0, -10\.0\] +\+0\.0", table)


def test_a_line_of_metrics_without_a_runs_figures_is_named(tmp_path):
    run = write_run(tmp_path / "a")
    file = run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    del lines[1]["full"]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "metrics.jsonl, line 2: expected a line of metrics" in refusal("report", run)
    lines[1] |= {"full": True, "clients": 7}
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "expected figures as a run writes them" in refusal("report", run)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('dataset = "digit"', "dataset: expected one of "),
        ('dataset = "folder"', "data-dir: expected the directory of your own data"),
        ('dataset = "mnist"\ndata-dir = "empty"', "train-images-idx3-ubyte"),
    ],
)
def test_data_that_is_missing_is_one_line_before_anything_runs(tmp_path, monkeypatch, keys, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_DOWNLOAD", "0")
    (tmp_path / "plan.toml").write_text(f'methods = ["fedavg", "local"]\n[settings]\nclients = 2\nrounds = 1\n{keys}\n')
    assert words in refusal("compare", "plan.toml", "--out", "out")
    assert not (tmp_path / "out").exists()
