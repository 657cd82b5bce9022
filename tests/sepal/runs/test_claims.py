"""Who writes a run: each process gets a number of its own, and an older one writes nothing once there is a newer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from filelock import FileLock

from sepal.errors import StateError, SupersededError
from sepal.runs import claims
from sepal.runs.claims import (
    CLAIMS,
    Claim,
    ClaimRecord,
    lock_after_predecessor,
    newest_number,
    read_claim,
    read_claims,
    record_of,
    settle,
    take_claim,
)

TAKE = """
import sys
from pathlib import Path
from sepal.runs.claims import take_claim
print("ready", flush=True)
sys.stdin.readline()
print(*(take_claim(Path(sys.argv[1]), "slurm 7").number for _ in range(20)))
"""


def test_numbers_grow_and_a_claim_says_who_made_it(tmp_path):
    assert newest_number(tmp_path) == 0
    assert take_claim(tmp_path, "slurm 12, start 1") == Claim(tmp_path, 1)
    assert take_claim(tmp_path, "slurm 12, start 2") == Claim(tmp_path, 2)
    first, second = read_claims(tmp_path)
    assert (first.number, first.job, first.host) == (1, "slurm 12, start 1", socket.gethostname())
    assert second.pid == os.getpid()
    assert second.lives_here
    assert not replace(second, started=second.started + 1).lives_here, "a later process of the same number"
    assert not replace(second, boot="another").lives_here, "the machine has been started again"
    assert [path.name for path in sorted((tmp_path / CLAIMS).iterdir())] == ["00000001.json", "00000002.json"]


def test_two_processes_at_once_share_no_number(tmp_path):
    """Each takes twenty: together 1 to 40."""
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for taker in takers:
        assert taker.stdout.readline() == "ready\n"
    for taker in takers:
        taker.stdin.write("\n")
        taker.stdin.flush()
    numbers = [int(text) for taker in takers for text in taker.communicate(timeout=60)[0].split()]
    assert sorted(numbers) == list(range(1, 41))


def test_an_older_claim_is_refused_and_the_newer_one_named(tmp_path):
    old = take_claim(tmp_path, "slurm 1, start 1")
    old.check()
    new = take_claim(tmp_path, "slurm 1, start 2")
    new.check()
    with pytest.raises(SupersededError, match=r"claim 2: another job continues this run \(slurm 1, start 2 on "):
        old.check()
    with pytest.raises(SupersededError):
        Claim(tmp_path).check()  # a process that began before there was a claim


@pytest.mark.parametrize("when", ["link", "unlink"])
def test_a_process_that_is_killed_while_it_claims_leaves_what_the_next_can_use(tmp_path, monkeypatch, when):
    """Before the link there is no claim; after it there is a whole one, and its second name goes with the next."""

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed) if when == "link" else patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            take_claim(tmp_path, "slurm 1")
    assert newest_number(tmp_path) == (0 if when == "link" else 1)
    assert take_claim(tmp_path, "slurm 2").number == (1 if when == "link" else 2)
    assert len(list((tmp_path / CLAIMS).glob(".*"))) == (1 if when == "link" else 0)


def test_a_link_whose_answer_was_lost_is_ones_own(tmp_path, monkeypatch):
    """A server of NFS that is asked again says that the name is there, and it is that of the same file."""
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert take_claim(tmp_path).number == 1
    assert newest_number(tmp_path) == 1


@pytest.mark.parametrize("answer", ["taken", "exists", "no part"])
def test_a_part_that_another_process_sweeps_once_it_is_linked_is_ones_own(tmp_path, monkeypatch, answer):
    """Also where the answer to the link was lost, and a server of NFS is asked again."""
    link = os.link

    def link_and_be_swept(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        link(source, target)
        assert take_claim(tmp_path, "slurm 2").number == 2
        assert not source.exists()
        if answer != "taken":
            raise FileExistsError if answer == "exists" else FileNotFoundError

    monkeypatch.setattr(os, "link", link_and_be_swept)
    assert take_claim(tmp_path, "slurm 1").number == 1
    assert [claim.job for claim in read_claims(tmp_path)] == ["slurm 1", "slurm 2"]


def test_without_hard_links_numbers_are_exclusive_too(tmp_path, monkeypatch):
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(1, "no hard links")

    monkeypatch.setattr(os, "link", refused)
    assert [take_claim(tmp_path, "slurm 1").number for _ in range(2)] == [1, 2]
    assert read_claim(tmp_path, 2).job == "slurm 1"


def test_a_damaged_claim_still_counts(tmp_path):
    take_claim(tmp_path)
    (tmp_path / CLAIMS / "00000001.json").write_text("{")
    assert read_claims(tmp_path) == [ClaimRecord(1)]
    assert take_claim(tmp_path).number == 2


@pytest.mark.parametrize(
    ("key", "text"),
    [("pid", "Infinity"), ("pid", "true"), ("time", "9" * 400), ("time", "NaN"), ("started", "-1"), ("host", "1")],
)
def test_a_claim_with_a_value_that_none_has_is_named_in_a_line(tmp_path, caplog, key, text):
    take_claim(tmp_path)
    file = tmp_path / CLAIMS / "00000001.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, key: "@"}).replace('"@"', text))
    assert read_claims(tmp_path) == [ClaimRecord(1)]
    (line,) = caplog.messages
    assert line.startswith(f"{file}: {key}: expected a ")


def test_a_claim_cannot_lead_out_of_the_run(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(asdict(record_of(1, "a secret"))))
    (tmp_path / "run" / CLAIMS).mkdir(parents=True)
    (tmp_path / "run" / CLAIMS / "00000001.json").symlink_to(secret)
    assert read_claims(tmp_path / "run") == [ClaimRecord(1)]


# the lock of the process before


def _before(run: Path, **others: object) -> None:
    """Let the newest claim be that of another process."""
    record = asdict(replace(record_of(1, "slurm 1"), **others))
    take_claim(run)
    (run / CLAIMS / "00000001.json").write_text(json.dumps(record))


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in (("SETTLED", 0.05), ("ELSEWHERE", 0.05), ("HERE", 0.05), ("LOOK", 0.01)):
        monkeypatch.setattr(claims, name, seconds)


def test_a_lock_that_a_lost_machine_left_behind_does_not_stop_its_successor(tmp_path, quick):
    _before(tmp_path, boot="another", host="lost")
    with FileLock(tmp_path / ".lock"):
        lock_after_predecessor(take_claim(tmp_path, "slurm 1"), FileLock(tmp_path / ".lock"), 0.01)


def test_a_process_that_lives_here_keeps_its_lock(tmp_path, quick):
    _before(tmp_path)
    lock = FileLock(tmp_path / ".lock")
    with lock, pytest.raises(StateError, match="no other process that runs it, got one that has it open"):
        lock_after_predecessor(take_claim(tmp_path, "slurm 1"), FileLock(tmp_path / ".lock"), 0.01)


def test_a_process_without_a_claim_keeps_its_lock(tmp_path, quick):
    with FileLock(tmp_path / ".lock"), pytest.raises(StateError, match="one that has it open"):
        lock_after_predecessor(take_claim(tmp_path, "slurm 1"), FileLock(tmp_path / ".lock"), 0.01)


def test_one_who_waits_is_superseded_as_well(tmp_path, quick):
    _before(tmp_path)
    second = take_claim(tmp_path, "slurm 1")
    take_claim(tmp_path, "slurm 2")
    with FileLock(tmp_path / ".lock"), pytest.raises(SupersededError):
        lock_after_predecessor(second, FileLock(tmp_path / ".lock"), 0.01)


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that are slept; a clock of its own that moves by them alone."""
    slept: list[float] = []
    monkeypatch.setattr(claims.time, "sleep", slept.append)
    monkeypatch.setattr(claims.time, "monotonic", lambda: 1000.0 + sum(slept))
    return slept


@pytest.mark.parametrize(
    ("before", "has_begun", "seconds"),
    [
        ({"boot": "another"}, False, claims.SETTLED),
        ({}, True, 0.0),
        (None, True, claims.SETTLED),
        (None, False, 0.0),
    ],
)
def test_a_commit_of_another_machine_is_waited_for(tmp_path, pauses, before, has_begun, seconds):
    """Of a process without a claim, ``None`` here, nobody knows the machine."""
    if before is not None:
        _before(tmp_path, **before)
    if has_begun:
        (tmp_path / "metrics.jsonl").touch()
    settle(take_claim(tmp_path, "slurm 2"))
    assert sum(pauses) == seconds


def test_after_the_last_number_there_is_no_next_one_that_nobody_would_see(tmp_path):
    (tmp_path / CLAIMS).mkdir(mode=0o700)
    (tmp_path / CLAIMS / "999999999999.json").touch()
    for _ in range(2):
        with pytest.raises(StateError, match="expected a number below 999999999999"):
            take_claim(tmp_path)
