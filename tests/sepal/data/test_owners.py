"""Owners of examples are the clients, and clients are called by them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import sepal
from sepal.cli.main import app
from sepal.cli.running import run_flat
from sepal.data.owners import checked_names
from sepal.errors import ConfigError
from sepal.report import learned_rows
from sepal.report.page import render
from sepal.runs.stored_run import Allowed
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import as_begun, defaults
from sepal.study.comparison import read_comparison
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.rates import data_notes
from sepal.study.run_keys import gather_to_serve
from sepal.study.runs import model_of

SITES = {"berlin": 60, "paris": 50, "rome": 40, "oslo": 3}


def write(directory, sites=SITES):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal() + n % 2},{n % 2},{site}" for site, count in sites.items() for n in range(count)]
    (directory / "all.csv").write_text("\n".join(["age,label,person", *rows]) + "\n")
    return {"dataset": "folder", "data-dir": str(directory), "method": "fedavg", "rounds": 1}


def test_without_clients_each_owner_with_enough_examples_is_one_and_a_line_says_so(tmp_path):
    flat = write(tmp_path)
    assembly = assemble(flat)
    assert assembly.setup.config.clients == 3
    assert assembly.names == ("berlin", "paris", "rome")
    assert assembly.notes[0] == "clients = 3: one for each owner with at least 10 examples; 1 with fewer are left out"
    assert assemble({**flat, "partition.min-examples": 3}).names == ("berlin", "oslo", "paris", "rome")
    assert assemble({**flat, "clients": 2}).setup.config.clients == 2
    assert len(assemble({**flat, "clients": 2}).names) == 2
    assert assemble({**flat, "partition.name": "iid"}).setup.config.clients == 10
    assert assemble({**flat, "partition.name": "iid"}).names == ()
    assert assemble({"dataset": "digits", "method": "fedavg"}).setup.config.clients == 10
    assert assemble(as_begun({**flat, "clients": 3})).names == (), "a run of before goes on with its clients' names"
    assert assemble({**flat, "clients-per-round": 3}).setup.config.clients_per_round == 3
    with pytest.raises(ConfigError, match="clients-per-round: expected at most clients = 3, got 4"):
        assemble({**flat, "clients-per-round": 4})
    many = write(tmp_path, {f"site{n}": 12 for n in range(12)})
    assert assemble({**many, "clients-per-round": 11}).setup.config.clients == 12


def test_in_flowers_run_config_which_has_every_key_clients_are_owners_too(tmp_path):
    flat = {**defaults(), **write(tmp_path)}
    assert flat["clients"] == "auto"
    assert assemble(flat).names == ("berlin", "paris", "rome")
    assert assemble({**flat, "clients": 2}).setup.config.clients == 2
    assert assemble({**defaults(), "dataset": "digits", "method": "fedavg"}).setup.config.clients == 10


def test_a_server_waits_for_as_many_clients_as_owners_or_two(tmp_path):
    sets = [f"{key}={value}" for key, value in write(tmp_path).items()]
    assert gather_to_serve(None, sets, None, None)["clients"] == 3
    assert gather_to_serve(None, [*sets, "clients=2"], None, None)["clients"] == 2
    assert gather_to_serve(None, [*sets, "partition.name=iid"], None, None)["clients"] == 2
    assert gather_to_serve(None, ["dataset=digits"], None, None)["clients"] == 2


def test_each_name_is_that_of_the_owner_of_the_clients_examples(tmp_path):
    data = assemble(write(tmp_path, {"rome": 40, "berlin": 60, "paris": 50})).data
    parts = [data.client(number, 3, name) for number, name in enumerate(("berlin", "paris", "rome"))]
    sizes = [len(part.train) + len(part.validation) + len(part.test) for part in parts]
    assert sizes == [60, 50, 40]


def test_tables_report_export_and_predictions_call_clients_by_their_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    flat = write(tmp_path / "data")
    keys = {"data_dir": flat["data-dir"], "rounds": 2, "name": "sites", "progress": False, "workers": 2}
    run = sepal.run("fedavg", "folder", **keys)
    assert set(run.frame["client"]) == {"berlin", "paris", "rome"}
    assert sorted(path.name for path in (run.path / "clients").glob("*/*")) == ["berlin", "paris", "rome"]
    assert set(run.stored.about["labels"]) == {"berlin", "paris", "rome"}
    assert run.predict("paris", str(tmp_path / "data")).shape[0] == 153
    assert model_of(run.path, 1).origin.client == model_of(run.path, "paris").origin.client == "paris"
    result = CliRunner().invoke(app, ["export", "runs/sites", "rome", "--with-client"])
    assert result.exit_code == 0, result.output
    assert (run.path / "rome.safetensors").exists()
    page = render(read_comparison(["runs/sites"]))
    assert "berlin" in page
    assert "client-0000" not in page
    refused = CliRunner().invoke(app, ["export", "runs/sites", "oslo"])
    assert "a client of sites: berlin … rome" in str(refused.exception) + refused.output


def test_owners_that_are_numbers_are_not_taken_for_the_numbers_of_clients(tmp_path):
    assert assemble(write(tmp_path, {"7": 20, "3": 20})).names == ("owner-3", "owner-7")
    others = {"client-00001": 20, "client-00002": 20, "client-east": 20}
    assert assemble(write(tmp_path, others)).names == ("owner-client-00001", "owner-client-00002", "client-east")


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ({"Zürich Nord": 20, "rome": 20}, "got 'Zürich Nord'"),
        ({"Rome": 20, "rome": 20}, "got Rome and rome"),
        ({"x" * 65: 20, "rome": 20}, "got 'xxx"),
    ],
)
def test_owners_that_cannot_be_names_have_numbers_and_it_is_said(sites, words, tmp_path):
    flat = write(tmp_path, sites)
    assembly = assemble(flat)
    assert assembly.names == ()
    assert assembly.setup.config.client_names == "numbers"
    (line,) = [note for note in assembly.notes if note.startswith("clients are called by their numbers: ")]
    assert words in line
    with pytest.raises(ConfigError, match="client-names: expected owners whose names differ"):
        assemble({**flat, "client-names": "owners"})
    assert not [note for note in assemble({**flat, "client-names": "numbers"}).notes if "numbers" in note]


def test_names_of_owners_are_refused_where_there_are_none(tmp_path):
    with pytest.raises(ConfigError, match="client-names: expected numbers for data without owners"):
        assemble({"dataset": "digits", "method": "fedavg", "client-names": "owners"})
    assert checked_names(["a", "b"]) == ("a", "b")


def test_a_comparison_says_what_was_found_in_data_with_owners(tmp_path):
    """Its runs have as many clients as owners, not ten, with which the lines were lost."""
    flat = write(tmp_path)
    lines = data_notes([PlannedRun("", "", "fedavg", 0, flat)])
    assert lines == [
        "clients = 3: one for each owner with at least 10 examples; 1 with fewer are left out",
        "partition: 3 of 153 examples are with no client: 3 of 1 people with fewer than 10 (partition.min-examples)",
    ]


def test_masks_of_clients_that_are_called_by_their_owners_are_read(tmp_path):
    flat = write(tmp_path) | {"method": "pfedgate", "name": "gates", "out": str(tmp_path)}
    run_flat(flat, tmp_path, workers=1)
    masks = learned_rows.read(tmp_path / "gates", "masks", Allowed(data=True))
    assert masks.names == ["berlin", "paris", "rome"]
    assert learned_rows.learned(read_comparison([tmp_path / "gates"], Allowed(data=True)))["masks"]


def test_no_masks_are_read_from_states_outside_the_run(tmp_path, monkeypatch):
    """A node of a deployment may be called like an owner of this machine's data, with which its masks would be wrong.

    The state directory has its states; the run's own directory may have one of that name without any.
    """
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    run_flat(write(tmp_path) | {"method": "pfedgate", "name": "gates", "out": str(tmp_path)}, tmp_path, workers=1)
    clients = tmp_path / "gates" / "clients"
    (tmp_path / "home").mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(clients, tmp_path / "home" / "state")
    for file in clients.glob("*/*/*.safetensors"):
        file.unlink()
    write(tmp_path, {**SITES, "berlin": 61})
    with pytest.raises(ConfigError, match="run: expected one whose clients have gates"):
        learned_rows.read(tmp_path / "gates", "masks", Allowed(data=True))
    assert learned_rows.learned(read_comparison([tmp_path / "gates"], Allowed(data=True)))["masks"] == []
