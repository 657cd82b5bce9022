"""The soak's checks notice what they are for, and its page is made from the result."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e.machines import RUN
from tools.growth.__main__ import RESULTS
from tools.soak.__main__ import CLIENTS, GROWING, problems_of
from tools.soak.page import memory_rows, page

EVENTS = ["data grow", "renew certificate", "pause server", "fill disk", "lose server", "upgrade"]
ROUNDS = 9
SIZES = {kind: ROUNDS * (of_round + of_client * len(CLIENTS)) for kind, (of_round, of_client) in GROWING.items()}


@pytest.fixture
def soak(tmp_path):
    """What a run leaves in which all is well."""
    run = tmp_path / "runs" / RUN
    run.mkdir(parents=True)
    clients = [{"name": name} for name in CLIENTS]
    lines = [json.dumps({"round": round, "clients": clients}) for round in range(1, ROUNDS + 2)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "summary.json").write_text(json.dumps({"complete": True, "data_changed": [CLIENTS[0]]}))
    (run / "ledger.jsonl").write_text(f'{{"reason": "{CLIENTS[-1]}: no-room: expected room"}}\n')
    log = tmp_path / "home" / "server" / RUN / "superlink.log"
    log.parent.mkdir(parents=True)
    log.write_text("paused, or the clock was set: 75 s that count for nobody\n")
    running = {f"join{number}": SimpleNamespace(poll=lambda: None) for number in range(len(CLIENTS))}
    return SimpleNamespace(directory=tmp_path, run=run, disk=Path("/disk"), machines=SimpleNamespace(running=running))


def changed(name, before, after):
    """Return a change of a file of the run."""

    def change(soak):
        (path,) = soak.directory.rglob(name)
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))

    return change


BROKEN = {
    "all rounds": changed("metrics.jsonl", '"round": 3', '"round": 4'),
    "a complete run": changed("summary.json", "true", "false"),
    "each client": changed("metrics.jsonl", f', {{"name": "{CLIENTS[-1]}"}}', ""),
    "no client that started again": changed("metrics.jsonl", '{"round": 5,', '{"restarted": [], "round": 5,'),
    "the client whose data changed": changed("summary.json", CLIENTS[0], CLIENTS[1]),
    "the pause": changed("superlink.log", "count for nobody", ""),
    "the full disk": changed("ledger.jsonl", "no-room", "data"),
    "clients that still run": lambda soak: soak.machines.running.update(join1=SimpleNamespace(poll=lambda: 2)),
}


def test_nothing_is_wrong_where_all_is_well(soak):
    assert problems_of(soak, ROUNDS, SIZES, []) == []


def test_the_pause_may_stand_in_an_older_log(soak):
    (log,) = soak.directory.rglob("superlink.log")
    log.rename(log.with_name("superlink.log.1"))
    log.write_text("POST /api\n")
    assert problems_of(soak, ROUNDS, SIZES, []) == []


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what, soak):
    BROKEN[what](soak)
    (named,) = problems_of(soak, ROUNDS, SIZES, [])
    assert named.startswith(what)


@pytest.mark.parametrize("kind", GROWING)
@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_file_of_another_size_is_named(kind, factor, soak):
    (named,) = problems_of(soak, ROUNDS, {**SIZES, kind: int(factor * SIZES[kind])}, [])
    assert named.startswith(f"{kind} of about ")


def test_a_file_that_is_not_bounded_is_named(soak):
    samples = [{"round": 100 + round, "bytes": {"checkpoints/uploads/": 10 * round}} for round in range(1, 9)]
    assert problems_of(soak, ROUNDS, SIZES, samples) == ["checkpoints/uploads/ bounded (40 bytes, then 80)"]


def test_the_page_is_made_from_the_result():
    samples = [
        {
            "round": round,
            "bytes": {"ledger.jsonl": 900 * round, "states of a client": 7},
            "memory": {"SuperLink 5": 16_000_000},
        }
        for round in (2, 4, 6, 8)
    ]
    event = {"event": "lose server", "after_round": 5, "until_round": 7, "seconds": 3, "what": "it went back"}
    facts = {"date": "2026-11-29", "rounds": 8, "clients": 3, "seconds": 1234, "load": [0.5, 1.5], "every": 2}
    result = {**facts, "problems": [], "events": [event], "samples": samples}
    lines = page(result).splitlines()
    for line in (
        "| 5 | 7 | 3 | lose server | it went back |",
        "| `ledger.jsonl` | 900 bytes a round |",
        "| `states of a client` | at most 7 bytes |",
        "| SuperLink | 2 to 8 | 16 MB | +0.00 MB per 100 rounds |",
    ):
        assert line in lines
    assert "At the end, all was as it should be: " in page(result)
    assert "At the end, wrong was: the pause: " in page({**result, "problems": ["the pause"]})


def test_the_stored_page_is_that_of_the_stored_result_and_nothing_was_wrong():
    """All events happened, each once, and the run ended as it should."""
    result = json.loads((RESULTS / "soak.json").read_text(encoding="utf-8"))
    assert page(result) == (RESULTS / "soak.md").read_text(encoding="utf-8")
    assert (result["rounds"], result["problems"]) == (800, [])
    assert [row["event"] for row in result["events"]] == EVENTS


def test_memory_grows_as_the_longest_process_of_its_kind_does_after_its_first_sample():
    """SuperLink 12: 101, 102, 103, 104 MB at rounds 50, 100, 150, 200, so 1 MB in 50 rounds, 2 MB per 100."""
    older = [{"round": round, "memory": {"SuperLink 9": 500_000_000}} for round in (10, 20)]
    newer = [
        {"round": round, "memory": {"SuperLink 12": size * 1_000_000, "sepal join 3": 90_000_000}}
        for round, size in ((30, 80), (50, 101), (100, 102), (150, 103), (200, 104))
    ]
    assert memory_rows([*older, *newer]) == [
        "| SuperLink | 30 to 200 | 104 MB | +2.00 MB per 100 rounds |",
        "| sepal join | 30 to 200 | 90 MB | +0.00 MB per 100 rounds |",
    ]
