"""`sepal compare PLAN --status` of somebody else's plan: nothing that it names is executed, fetched or read."""

from __future__ import annotations

import json
import os
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.config import RunConfig, key_fields
from sepal.config.elsewhere import CODE, PLACES
from sepal.data import federation
from sepal.data.sources import hub

TRAP = "trap_in_a_plan:Trap"
FORMS = {  # of a plan: what stands before and after its settings
    "plain": "",
    "tuned rates": "tune = true\n",
    "tuned by a grid": "tune = true\ngrid = {lr = [0.1, 0.2]}\n",
}


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """A directory with a module that leaves a file when it is imported, and nothing of the data may be asked for."""
    (tmp_path / "trap_in_a_plan.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nTrap = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_USER_PATH", str(tmp_path))
    yield tmp_path
    sys.modules.pop("trap_in_a_plan", None)
    assert not (tmp_path / "ran").exists()


def status(directory, text, *options):
    (directory / "plan.toml").write_text(textwrap.dedent(text))
    result = CliRunner().invoke(app, ["compare", str(directory / "plan.toml"), "--status", *options])
    if result.exit_code not in (0, 2) or not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1, result.output
    return result.output


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["methods", "settings.fedavg.method", *CODE])
def test_looking_at_a_plan_imports_nothing_that_it_names(key, form, trapped):
    methods = [TRAP, "fedavg"] if key == "methods" else ["fedavg"]
    name = key.removeprefix("settings.fedavg.")
    table = "settings.fedavg" if name != key else "settings"
    named = "" if key == "methods" else f'{json.dumps(name)} = "{TRAP}"\n'
    more = '[settings.own]\nshape = "4"\nclasses = 2\n' if key == "own.data" else ""
    own = 'dataset = "own"\n' if key == "own.data" else 'dataset = "digits"\n'
    head = f"methods = {json.dumps(methods)}\nseeds = [0]\n{FORMS[form]}"
    settings = f"[settings]\nrounds = 2\n{own}" + (named if table == "settings" else f"[{table}]\n{named}")
    status(trapped, head + settings + more)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", [*PLACES, "tuned"])
def test_looking_at_a_plan_reads_no_file_that_it_names(key, form, trapped, monkeypatch):
    """Each is a pipe, which would keep the reader waiting, or a directory with a private table."""
    private = trapped / "private"
    if key == "data-dir":
        private.mkdir()
        (private / "table.csv").write_text("a,label\n" + "1,yes\n2,no\n" * 50)
    else:
        os.mkfifo(private)
    monkeypatch.setattr(hub, "local_copy", lambda *arguments: pytest.fail("the hub was asked"))
    monkeypatch.setattr(federation, "info", guarded(federation.info))
    monkeypatch.setattr(federation, "reading", lambda *arguments: pytest.fail("the data were read"))
    value = json.dumps(str(private))
    dataset = {"hf.name": "hf", "folder.schema": "folder", "data-dir": "folder"}.get(key, "digits")
    head = 'methods = ["fedavg"]\nseeds = [0]\n' + FORMS[form] + (f"tuned = {value}\n" if key == "tuned" else "")
    settings = f'[settings]\nrounds = 2\ndataset = "{dataset}"\n' + (f'"{key}" = {value}\n' if key != "tuned" else "")
    status(trapped, head + settings)


def guarded(info):
    def call(dataset, data_dir, folder):
        assert not data_dir
        return info(dataset, data_dir, folder)

    return call


def test_what_a_plan_says_was_tuned_is_read_beside_it_alone(trapped):
    (trapped / "elsewhere.toml").write_text("")
    (trapped / "plans").mkdir()
    (trapped / "plans" / "link.toml").symlink_to("../elsewhere.toml")
    for name in ("../elsewhere.toml", str(trapped / "elsewhere.toml"), "link.toml"):
        text = f'methods = ["fedavg"]\ntuned = {json.dumps(name)}\n[settings]\nrounds = 2\n'
        assert "a link that leads out of it" in status(trapped / "plans", text), name
    (trapped / "plans" / "beside.toml").write_text("")
    text = 'methods = ["fedavg"]\ntuned = "beside.toml"\n[settings]\nrounds = 2\n'
    assert "fedavg-seed0" in status(trapped / "plans", text)


def test_the_runs_of_a_method_of_ones_own_are_listed_without_its_code(trapped):
    text = f'methods = ["fedavg", "{TRAP}"]\n[settings]\nrounds = 2\n[settings.trap]\nstrength = [1, 2]\n'
    output = status(trapped, text)
    for name in ("fedavg-seed0", "trap_strength_1-seed0", "trap_strength_2-seed0"):
        assert name in output


def test_what_is_allowed_is_imported(tmp_path, monkeypatch):
    (tmp_path / "allowed_in_a_plan.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("SEPAL_USER_PATH", str(tmp_path))
    text = 'methods = ["allowed_in_a_plan:X"]\ntune = true\n[settings]\nrounds = 2\n'
    assert "code that you allow" in status(tmp_path, text)
    assert "no attribute 'X'" in status(tmp_path, text, "--allow", "allowed_in_a_plan")
    assert (tmp_path / "ran").exists()


def test_every_place_and_code_that_a_plan_may_name_is_tried():
    keys = {name for name, _ in key_fields(RunConfig)}
    assert {"method", "model", "task", "own.data"} <= set(CODE) <= keys
    assert {"data-dir", "hf.name", "initial-weights", "devices"} <= set(PLACES) <= keys
