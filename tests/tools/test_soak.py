"""The soak's checks notice what they are for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e.machines import RUN
from tools.soak.__main__ import CLIENTS, GROWING, wrong

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
    assert wrong(soak, ROUNDS, SIZES, []) == []


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what, soak):
    BROKEN[what](soak)
    (named,) = wrong(soak, ROUNDS, SIZES, [])
    assert named.startswith(what)


@pytest.mark.parametrize("kind", GROWING)
@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_file_of_another_size_is_named(kind, factor, soak):
    (named,) = wrong(soak, ROUNDS, {**SIZES, kind: int(factor * SIZES[kind])}, [])
    assert named.startswith(f"{kind} of about ")


def test_a_file_that_is_not_bounded_is_named(soak):
    samples = [{"round": 100 + round, "bytes": {"checkpoints/uploads/": 10 * round}} for round in range(1, 9)]
    assert wrong(soak, ROUNDS, SIZES, samples) == ["checkpoints/uploads/ bounded (40 bytes, then 80)"]
