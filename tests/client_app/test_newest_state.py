"""Which of a client's stored states is the newest."""

from __future__ import annotations

import shutil

from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.export.stored_states import newest_state
from sepal.runs.stored_run import read_run
from sepal.server.run_store.disk import read_checkpoint
from sepal.strategies import registry
from sepal.strategies.assembly import assemble


def test_while_a_run_is_extended_its_old_closing_state_is_not_the_newest(tmp_path):
    """Both are of round 2: what the run of one round closed with, and the training of the second."""

    def run(rounds):
        sets = ["method=fedpse", "dataset=digits", f"rounds={rounds}", "clients=2", "partition.subsample=100"]
        options = [part for text in sets for part in ("--set", text)]
        result = CliRunner().invoke(app, ["run", *options, "--name", "r", "--out", str(tmp_path), "--workers", "1"])
        assert result.exit_code == 0, result.output

    run(1)
    before = shutil.copytree(tmp_path / "r", tmp_path / "before")
    run(2)
    for path in [*tmp_path.glob("r/clients/*/*/3-*"), *tmp_path.glob("r/checkpoints/round-000003*")]:
        path.unlink()  # as if it had ended before its closing evaluation
    for path in before.glob("clients/*/*/2-*"):
        shutil.copy(path, tmp_path / "r" / path.relative_to(before))
    kind = registry.get("fedpse").server_state
    versions = read_checkpoint(tmp_path / "r" / "checkpoints" / "round-000002.safetensors", kind).versions
    for client in ("client-00000", "client-00001"):
        newest = newest_state(tmp_path / "r", assemble(read_run(tmp_path / "r").config), client)
        assert newest.stored.reply.version == versions[client]


def test_states_of_a_deployment_are_found_and_not_exported_with_other_data(tmp_path, monkeypatch):
    """A client's digest of its data has its store's secret; in process it has none, so here it is of other data."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    sets = ["method=fedpse", "dataset=digits", "rounds=1", "clients=2", "partition.subsample=100"]
    options = [part for text in sets for part in ("--set", text)]
    run = tmp_path / "r"
    assert (
        CliRunner().invoke(app, ["run", *options, "--name", "r", "--out", str(tmp_path), "--workers", "1"]).exit_code
        == 0
    )
    assert CliRunner().invoke(app, ["export", str(run), "0", "--out", str(tmp_path / "m")]).exit_code == 0
    (tmp_path / "home").mkdir(mode=0o700, exist_ok=True)
    (run / "clients").rename(tmp_path / "home" / "state")
    refused = CliRunner().invoke(app, ["export", str(run), "0", "--out", str(tmp_path / "m")])
    assert refused.exit_code == 2
    assert "client: expected the data that it trained on (`sepal join --export`" in refused.stderr
