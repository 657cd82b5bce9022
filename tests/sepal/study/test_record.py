"""Records of runs: what is in one, that its run can be made again, and that their files survive kills."""

from __future__ import annotations

import pytest

from sepal.errors import ConfigError
from sepal.study.record import RunRecord, alone, append, columns, read, recorded, write

KEYS = {"dataset": "digits", "clients": 3, "novel-clients": 0.3, "partition.subsample": 200, "rounds": 2}
KEYS |= {"evaluate-every": 1, "evaluate.shift": True, "lr": 0.1, "method": "fedavg", "seed": 0}


def test_a_record_has_what_pages_need_and_its_run_gives_the_same_weights_again(tmp_path):
    append(tmp_path / "rows.ndjson", recorded(KEYS, {"block": "x"}, "abc"))
    (row,) = read(tmp_path / "rows.ndjson")
    assert (row.config, row.labels, row.rounds, row.deployed) == (KEYS, {"block": "x"}, 2, "received")
    # Training, and a model for each of the two clients that train; the third never did
    model = row.bytes["down_dense"] / 4
    assert row.closing * 1e6 == pytest.approx(2 * model, rel=0.01)
    sent = row.bytes["up"] + row.bytes["down"]
    assert len(row.spent) == 2
    assert row.spent[1] * 1e6 == pytest.approx(sent + row.closing * 1e6, abs=20)
    assert sorted(row.clients["novel"]) == [False, False, True]
    assert {"received", "trained", "kept", "trained-shift-100"} <= row.clients.keys()
    by_client = row.of_clients("trained")
    assert list(by_client) == row.participants
    assert sum(by_client.values()) / 2 == pytest.approx(row.accuracy["trained"]["mean"], abs=1e-4)
    assert len(row.of_clients("received", novel=True)) == 1
    assert row.curve["round"] == [1, 2, 3]
    assert min(row.seconds, row.cpu_seconds) >= 0
    again = recorded(row.config, row.labels, "def")
    assert again.digests() == row.digests()
    assert all(again.digests()[:2])


def test_without_parts_there_is_nothing_of_the_test_data_and_views_may_be_left_out():
    row = recorded(KEYS, {}, "abc", ())
    assert 0 < row.validation["trained"] <= 1
    assert row.held_out == row.validation["received"]
    assert (row.accuracy, row.clients, row.curve, row.spent) == ({}, {}, {}, ())
    some = recorded(KEYS, {}, "abc", views=("trained",))
    assert set(some.clients) == {"name", "novel", "trained", "steps"}
    assert set(some.accuracy) == set(some.validation) == {"trained"}


def test_a_run_that_ends_with_an_error_has_a_record_without_figures():
    row = recorded({**KEYS, "lr": 1e30, "on-divergence": "stop"}, {}, "abc")
    assert row.error
    assert (row.validation, row.spent, row.held_out, row.reached) == ({}, (), 0.0, None)
    assert row.diverged >= 1


def test_keys_that_are_wrong_have_no_record():
    with pytest.raises(ConfigError, match="lr: expected"):
        recorded({**KEYS, "lr": -1}, {}, "abc")


def test_records_are_appended_and_a_cut_line_is_dropped(tmp_path):
    path = tmp_path / "rows.ndjson"
    append(path, RunRecord(rounds=1))
    with path.open("a") as file:
        file.write('{"config": {"lr"')
    assert [row.rounds for row in read(path)] == [1]
    append(path, RunRecord(rounds=2, config={"seed": 0}))
    assert [row.rounds for row in read(path)] == [1, 2]
    write(path, read(path)[1:])
    assert read(path) == [RunRecord(rounds=2, config={"seed": 0})]
    assert read(tmp_path / "none.ndjson") == []
    path.write_text('{"rounds": 1}\n{"round": 2}\n')
    with pytest.raises(ConfigError, match=r"rows\.ndjson, line 2: expected a run's record, got"):
        read(path)


def test_a_file_is_added_to_by_one_process(tmp_path):
    path = tmp_path / "rows.ndjson"
    with alone(path), pytest.raises(ConfigError, match="that no other process adds records to"), alone(path):
        pass


def test_columns_have_none_for_what_is_missing_and_none_is_no_column():
    rows = [{"name": "a", "x": 0.1234567, "y": None}, {"name": "b", "z": 1}]
    assert columns(rows) == {"name": ["a", "b"], "x": [0.12346, None], "z": [None, 1]}
