"""Whole runs in process: the files that they leave, the summary, and ends after a kill."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError, RosterError
from sepal.protocol.views import CLOSING_VIEWS
from sepal.report.tables import capacity_table, headline
from sepal.report.text_tables import novel_line
from sepal.runs import json_lines, stored_run
from sepal.runs.run_directory import RunDirectory
from sepal.runs.stored_run import FREE, read_run, stored_summary
from sepal.runs.summary import digest_clients
from sepal.server.accuracy import capacity_group
from sepal.strategies.assembly import assemble
from tests.server_app.json_lines import lines


class KilledError(Exception):
    pass


class KillAt:
    """An observer that ends the run at the end of a round."""

    def __init__(self, round):
        self.round_ = round

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        if progress.round == self.round_:
            raise KilledError

    def closed(self, progress, line):
        pass


def complete(path, assembly, *observers):
    with RunDirectory(path, assembly, "in-process") as directory:
        run_in_process(
            assembly,
            store=directory.store(),
            observers=[directory, *observers],
            workers=1,
            state_dir=path / "clients",
        )
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, assembly):
    return complete(tmp_path_factory.mktemp("runs") / "whole", assembly)


# A whole run, in process


def test_a_whole_run_leaves_everything(finished):
    assert {"config.toml", "metrics.jsonl", "ledger.jsonl", "summary.json", "checkpoints", "clients"} <= {
        path.name for path in finished.iterdir()
    }
    metrics = lines(finished / "metrics.jsonl")
    assert [row["round"] for row in metrics] == [1, 2, 3, 4]
    assert [row["full"] for row in metrics] == [False, True, False, True]
    assert metrics[-1]["phase"] == "closing"
    assert {row["client"] for row in lines(finished / "ledger.jsonl")} == {f"client-0000{k}" for k in range(3)}


def test_the_ledgers_sums_are_the_summarys_bytes(finished):
    summary, entries = stored_summary(finished), lines(finished / "ledger.jsonl")
    for direction in ("up", "down"):
        of_direction = [row for row in entries if row["direction"] == direction]
        training = [row for row in of_direction if row["purpose"] == "training"]
        assert summary["bytes"][direction] == sum(row["payload"] for row in training) > 0
        assert summary["bytes"][f"{direction}_dense"] == sum(row["dense"] for row in training)
        assert summary["bytes"]["total"][direction] == sum(row["payload"] for row in of_direction)
        purposes = summary["bytes"]["purposes"].values()
        assert summary["bytes"]["total"][f"{direction}_message"] == sum(p[f"{direction}_message"] for p in purposes)


def test_the_summary_says_what_ran(finished, keys):
    summary = stored_summary(finished)
    settings = {"method": "fedavg", "dataset": "digits", "engine": "in-process", "rounds": 3, "seed": 0, "clients": 3}
    assert {key: summary[key] for key in settings} == settings
    assert (summary["name"], summary["complete"], summary["model_round"]) == ("whole", True, 3)
    for view in CLOSING_VIEWS:
        figures = summary["accuracy"][view]
        assert set(figures) == {"mean", "weighted", "std", "bottom_decile", "clients", "best"}
        assert figures["clients"] == 3
        assert figures["best"]["round"] in (2, 4)
    assert summary["reasons"] == {}
    assert (summary["populations"], summary["novel"]) == ({"participants": 3, "novel": 0}, None)
    assert len(summary["weights_sha256"]) == len(summary["clients_sha256"]) == 64
    assert summary["weights_sha256"] != summary["clients_sha256"]
    assert set(summary["versions"]) == {"sepal", "commit", "flwr", "torch", "numpy", "python", "platform", "cpu"}
    assert re.fullmatch("([0-9a-f]{7,40}(-dirty)?)?", summary["versions"]["commit"])
    assert summary["seconds"]["total"] >= summary["seconds"]["train"] > 0


def test_a_run_of_mixed_capacities_shows_accuracy_by_capacity(tmp_path, keys):
    assembly = assemble({**keys, "method": "pa3dfl", "rounds": 1, "capacity.profile": "hetero"})
    path = complete(tmp_path / "mixed", assembly)
    summary, last = json.loads((path / "summary.json").read_text()), lines(path / "metrics.jsonl")[-1]
    capacities = [client["capacity"] for client in last["clients"]]
    assert len(set(capacities)) > 1
    assert sum(views["trained"]["clients"] for views in summary["by_capacity"].values()) == len(capacities)
    group = capacity_group(capacities[0])
    same = [client["trained"] for client in last["clients"] if capacity_group(client["capacity"]) == group]
    assert summary["by_capacity"][group]["trained"]["mean"] == pytest.approx(sum(same) / len(same))
    shown = capacity_table(summary)
    assert shown.row_count == len(summary["by_capacity"])


def test_novel_clients_are_reported_apart(tmp_path, keys):
    """One of three never trains: it has a model only in the closing round, and none that it could have kept."""
    assembly = assemble({**keys, "method": "fedavg", "rounds": 1, "novel-clients": 0.34})
    path = complete(tmp_path / "novel", assembly)
    summary = stored_summary(path)
    assert summary["populations"] == {"participants": 2, "novel": 1}
    for view in ("received", "trained", "pooled"):
        assert summary["accuracy"][view]["clients"] == 2
        difference = summary["accuracy"][view]["mean"] - summary["novel"]["accuracy"][view]["mean"]
        assert summary["novel"]["gap"][view] == pytest.approx(difference)
    assert summary["accuracy"]["kept"]["clients"] == 2
    assert summary["novel"]["accuracy"]["kept"] is None
    assert lines(path / "metrics.jsonl")[-1]["novel"] == summary["novel"]
    assert "1 novel clients, which never trained" in novel_line(summary)


def test_a_finished_run_is_recognised(finished, tmp_path, assembly):
    with RunDirectory(finished, assembly, "in-process") as directory:
        assert directory.completed
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        assert not directory.completed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"complete": false}'])
def test_a_damaged_summary_is_not_an_end(tmp_path, assembly, text):
    RunDirectory(tmp_path, assembly, "in-process").close()
    (tmp_path / "summary.json").write_text(text)
    with RunDirectory(tmp_path, assembly, "in-process") as directory:
        assert not directory.completed


def test_a_run_killed_in_any_round_ends_with_the_same_lines_and_weights(finished, tmp_path, assembly):
    def without_times(path):
        rows = lines(path / "metrics.jsonl")
        for row in rows:
            del row["seconds"]
            for client in row["clients"]:
                del client["metrics"]
        return rows

    for round in (1, 2, 3, 4):
        path = tmp_path / f"killed-{round}"
        with pytest.raises(KilledError):
            complete(path, assembly, KillAt(round))
        complete(path, assembly)
        assert without_times(path) == without_times(finished)
        assert lines(path / "ledger.jsonl") == lines(finished / "ledger.jsonl")
        assert without_chance(stored_summary(path)) == without_chance(stored_summary(finished))


def without_chance(summary):
    """Everything but times, names and the run's own number."""
    return {key: value for key, value in summary.items() if key not in ("name", "run", "seconds", "written")}


def test_a_run_killed_between_its_last_checkpoint_and_its_summary_gets_one(finished, assembly):
    before = stored_summary(finished)
    (finished / "summary.json").unlink()
    complete(finished, assembly)
    after = stored_summary(finished)
    assert {k: v for k, v in after.items() if k != "written"} == {k: v for k, v in before.items() if k != "written"}


# A run that ends before its limit


@pytest.fixture(scope="module")
def plateau(keys):
    """Nothing is learnt at this rate: the first mean of five points is in round 5, and the run ends after round 7."""
    more = {"method": "fedavg", "rounds": 12, "stop-after": 2, "evaluate-every": 0, "lr": 1e-6}
    return assemble({**keys, **more})


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, plateau):
    return complete(tmp_path_factory.mktemp("stopped") / "whole", plateau)


def test_a_run_whose_accuracy_stands_still_ends_early_and_says_why(stopped):
    summary, rows = stored_summary(stopped), lines(stopped / "metrics.jsonl")
    assert [(row["round"], row["phase"]) for row in rows] == [*((n, "") for n in range(1, 8)), (8, "closing")]
    assert (summary["rounds"], summary["limit"], summary["accuracy_round"], summary["model_round"]) == (7, 12, 8, 7)
    assert summary["stopped"]["by"] == "stop-after"
    first = rows[4]["validation"]["received"]["mean"]
    assert f"since {100 * first:.1f} % in round 5" in summary["stopped"]["reason"]
    assert "7 of at most 12 rounds" in headline(read_run(stopped))


@pytest.mark.parametrize("round", [5, 6, 7, 8])
def test_a_run_that_ends_early_ends_the_same_after_a_kill(stopped, plateau, tmp_path, round):
    """Killed after round 7, it has decided; its checkpoint is that of round 6, without the record of round 7."""
    path = tmp_path / "killed"
    with pytest.raises(KilledError):
        complete(path, plateau, KillAt(round))
    complete(path, plateau)
    assert without_chance(stored_summary(path)) == without_chance(stored_summary(stopped))
    assert lines(path / "ledger.jsonl") == lines(stopped / "ledger.jsonl")
    (path / "summary.json").unlink()
    complete(path, plateau)
    assert without_chance(stored_summary(path)) == without_chance(stored_summary(stopped)), "only the summary is new"


def test_a_plateau_in_the_last_round_is_no_early_end(tmp_path, plateau):
    config = plateau.setup.config.model_copy(update={"rounds": 7})
    path = complete(tmp_path / "limit", replace(plateau, setup=replace(plateau.setup, config=config)))
    summary = stored_summary(path)
    assert (summary["rounds"], summary["limit"], summary["stopped"]) == (7, 7, None)


def test_local_has_no_received_view_and_the_clients_digest_as_weights(tmp_path, keys):
    local = assemble({**keys, "method": "local", "rounds": 1})
    summary = stored_summary(complete(tmp_path / "local", local))
    assert summary["accuracy"]["received"] is None
    assert summary["reasons"] == {"received": "nothing is sent, so there is no received model"}
    assert summary["weights_sha256"] == summary["clients_sha256"]
    assert summary["bytes"]["up"] == 0


def test_the_clients_digest_does_not_depend_on_order():
    assert digest_clients({"b": "2", "a": "1"}) == digest_clients({"a": "1", "b": "2"})
    # printf 'a 1\nb 2\n' | sha256sum
    assert digest_clients({"a": "1", "b": "2"}) == "2951835de33689a441bfa61bc7af99b1f0305ca8ec0ab4dd508f14f57b27ca23"


# docs/run-directory.md


def test_every_field_is_documented(finished, stopped):
    text = (Path(__file__).resolve().parents[2] / "docs" / "run-directory.md").read_text()

    def names(value):
        if isinstance(value, dict):
            return {key for key in value if "sha" not in value} | {n for item in value.values() for n in names(item)}
        return {n for item in value for n in names(item)} if isinstance(value, list) else set()

    rows = lines(finished / "metrics.jsonl"), lines(finished / "ledger.jsonl")
    for source in (stored_summary(finished), stored_summary(stopped), *rows):
        assert {name for name in names(source) if f"`{name}`" not in text} == set()
    assert {path.name for path in finished.iterdir() if f"`{path.name}" not in text} == set()
    assert {key for key in FREE if f"`{key}`" not in text} == set()


def test_a_complete_run_is_extended_by_more_rounds(finished, tmp_path, keys):
    """It ends like a run that had so many rounds from the start, and trains no round twice."""
    path, rounds = tmp_path / "whole", []

    class Seen(KillAt):
        def round(self, progress, record, line):
            rounds.append(progress.round)

    shutil.copytree(finished, path)
    complete(path, assemble({**keys, "rounds": 5, "method": "fedavg"}), Seen(0))
    assert rounds == [4, 5, 6], "round 4 was the closing one"
    straight = complete(tmp_path / "straight", assemble({**keys, "rounds": 5, "method": "fedavg"}))
    longer, straight_summary = stored_summary(path), stored_summary(straight)
    for key in ("rounds", "weights_sha256", "clients_sha256", "accuracy"):
        assert longer[key] == straight_summary[key], key
    assert read_run(path).config["rounds"] == 5
    with pytest.raises(ConfigError, match="rounds: expected 5, with which the run whole was started, got 4"):
        RunDirectory(path, assemble({**keys, "rounds": 4, "method": "fedavg"}), "in-process")


@pytest.mark.parametrize(("method", "schedule"), [("feddst", "constant"), ("dmpfl", "constant"), ("fedavg", "cosine")])
def test_a_run_whose_schedule_depends_on_its_rounds_is_not_extended(tmp_path, keys, method, schedule):
    keys = {key: value for key, value in keys.items() if "." not in key} | {"method": method, "schedule": schedule}
    path = complete(tmp_path / "short", assemble(keys))
    with pytest.raises(ConfigError, match=r"rounds: expected 3, .* the schedule of .* depends on it, got 6"):
        RunDirectory(path, assemble({**keys, "rounds": 6}), "in-process")
    assert stored_summary(path), "it is left as it was"


def test_a_refused_start_leaves_no_directory(tmp_path, assembly):
    def refused(path):
        with RunDirectory(path, assembly, "in-process"):
            raise RosterError("clients", "clients that fit", "none")

    with pytest.raises(RosterError):
        refused(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir(0o700)
    (tmp_path / "old" / "notes").write_text("mine")
    with pytest.raises(RosterError):
        refused(tmp_path / "old")
    assert (tmp_path / "old" / "notes").exists(), "what was there before is kept"


def test_a_run_that_ends_while_it_is_read_is_still_going_on(finished, tmp_path, monkeypatch):
    """Its last line and then its summary are written after its lines were read: that is no damaged run."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    whole, summary = (path / "metrics.jsonl").read_text(), (path / "summary.json").read_text()
    (path / "metrics.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    (path / "summary.json").unlink()

    def read_rows(file):
        rows = json_lines.read_rows(file)
        (path / "metrics.jsonl").write_text(whole)
        (path / "summary.json").write_text(summary)
        return rows

    monkeypatch.setattr(stored_run, "read_rows", read_rows)
    assert read_run(path).summary is None
    assert read_run(path).summary is not None
