"""A model's card: it says what the run says, no more than was asked for, and no text of the run becomes markup."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from safetensors import safe_open
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.report.card import card
from sepal.runs.about import ABOUT
from sepal.runs.stored_run import read_run
from tests.attacks.looking import changed
from tests.sepal.cli.runs_for_tests import write_run

STORED = Path(__file__).parents[2] / "data" / "run_of_0_1"
FACTS = {"run": "a", "method": "fedavg", "sha256": "0" * 64, "round": "2"}
EVIL = (
    "[x](http://x.example) <script>x</script> ![y](z) www.y.example `a` **b** | c | \n\n# Big\n\n<!-- &amp; x@y.example"
)


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copytree(STORED, tmp_path / "secret-place" / "before"))


def exported(run, *options):
    file = run.parents[1] / "out" / "model.safetensors"
    done = sepal("export", run, "client-00000", "--view", "trained", "--out", file, "--card", *options)
    return done, file


def test_a_card_has_the_figures_of_the_run_and_the_digest_of_the_file(run):
    done, file = exported(run)
    assert done.exit_code == 0, done.output
    written = ModelCard.load(file.parent / "README.md")
    (result,) = written.data.eval_results
    closing = json.loads((STORED / "metrics.jsonl").read_text().splitlines()[-1])
    assert result.metric_value == closing["clients"][0]["trained"]
    summary = json.loads((STORED / "summary.json").read_text())
    for view in ("received", "trained", "kept", "pooled"):
        (row,) = (line for line in written.text.splitlines() if re.match(rf"\| {view} ", line))
        assert f"{100 * summary['accuracy'][view]['mean']:.1f} %" in row
    with safe_open(file, "np") as model:
        assert f"`{model.metadata()['sha256']}`" in written.text
    assert f"{summary['bytes']['up'] / 1e6:.3f} MB" in written.text
    assert "--set partition.subsample=100 " in written.text


def test_a_card_names_no_path_and_no_client_unless_it_is_asked_to(run):
    changed(run, **{"data-dir": "/home/somebody/data", "state-dir": "/home/somebody/states"})
    done, file = exported(run)
    assert done.exit_code == 0, done.output
    text = (file.parent / "README.md").read_text()
    assert not re.findall(r"client-0|somebody|secret-place|/home|/tmp", text)
    assert "data-dir" in text, "the reader learns that something is left out"
    assert exported(run, "--with-client")[0].exit_code == 0, "a card of the same file is replaced"
    assert "client-00000" in (file.parent / "README.md").read_text()


def test_label_counts_are_added_up_over_clients_and_only_if_asked_for(tmp_path):
    run = write_run(tmp_path / "a")
    counts = list(zip(*json.loads((run / ABOUT).read_text())["labels"].values(), strict=True))
    rows = [f"| {label} | {sum(of_clients)} |" for label, of_clients in enumerate(counts)]
    assert [row for row in rows if row not in card(read_run(run), "m", FACTS, "trained", "", labels=True)] == []
    assert [row for row in rows if row in card(read_run(run), "m", FACTS, "trained", "")] == []
    (run / ABOUT).unlink()
    shutil.copytree(STORED, tmp_path / "before")
    refused = sepal(
        "export", tmp_path / "before", "0", "--view", "trained", "--out", tmp_path / "m", "--card", "--with-labels"
    )
    assert "--with-labels: expected a run that has stored its label counts, got before" in refused.stderr
    assert not (tmp_path / "m").exists()


def test_another_readme_is_left_alone_and_nothing_is_written(run):
    for kind in ("text", "link"):
        file = run.parents[1] / "out" / "model.safetensors"
        shutil.rmtree(file.parent, ignore_errors=True)
        file.parent.mkdir()
        readme = file.parent / "README.md"
        readme.symlink_to(run / "summary.json") if kind == "link" else readme.write_text("mine")
        done, file = exported(run)
        assert done.exit_code == 2
        assert "--card: expected no README.md beside the model but its own card" in done.stderr
        assert [path.name for path in file.parent.iterdir()] == ["README.md"]


def test_an_unfinished_run_and_an_earlier_round_have_no_accuracy(tmp_path):
    run = write_run(tmp_path / "a")
    assert "60.0 %" in card(read_run(run), "m", FACTS, "trained", "")
    for text in (card(read_run(run), "m", FACTS, "trained", "", last=False), _unfinished(run)):
        assert "60.0 %" not in text
        assert "No closing evaluation has tested this model" in text


def test_a_run_with_secure_sums_has_a_card(tmp_path):
    """Such a run knows neither the worst tenth nor figures of single clients."""
    run = write_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for figures in filter(None, lines[-1]["accuracy"].values()):
        del figures["bottom_decile"], figures["std"]
    for client in lines[-1]["clients"]:
        client.update(dict.fromkeys(("received", "trained", "kept", "pooled")))
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = card(read_run(run), "m", FACTS, "trained", "")
    (row,) = (line for line in text.splitlines() if line.startswith("| trained"))
    assert row.startswith("| trained (this file) | 60.0 % |")


def _unfinished(run):
    (run / "summary.json").unlink()
    return card(read_run(run), "m", FACTS, "trained", "")


def test_no_text_of_a_run_becomes_markup(tmp_path):
    """Everything that comes from the run: its name, title, keys, names of classes, versions, the reason of its end."""
    run = write_run(tmp_path / "a")
    plain = rendered(card(read_run(run), "m", FACTS, "trained", "", labels=True))
    about, summary = (json.loads((run / name).read_text()) for name in (ABOUT, "summary.json"))
    about["method"]["title"] = EVIL
    about["data"]["class_names"] = [EVIL] * 10
    summary["stopped"] = {"reason": EVIL}
    summary["versions"] = {"sepal": EVIL, "torch": EVIL}
    (run / ABOUT).write_text(json.dumps(about))
    (run / "summary.json").write_text(json.dumps(summary))
    keys = {"model": EVIL, "dataset": "folder", "method": f"x:{EVIL}", "split.by": EVIL, "own.data": f"```\n{EVIL}"}
    changed(run, **keys)
    html = rendered(card(read_run(run), "m", {**FACTS, "run": EVIL, "client": EVIL}, "trained", "", labels=True))
    assert html.count("Big") > 15, "they are shown"
    assert tags(html) <= tags(plain)
    assert html.count("<h1>") == 1
    assert html.count("<h2>") == plain.count("<h2>")
    assert html.count("<td>") == plain.count("<td>")
    assert html.count("<pre>") == plain.count("<pre>")


def rendered(text):
    """As GitHub and the Hub do: links without brackets are links, and HTML is HTML."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(ModelCard(text).text)


def tags(html):
    return set(re.findall(r"<(?!!--)/?\w+", html))
