"""A client that cannot write is away: the run goes on once there is room, with the same bits, and nothing is half."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
from contextlib import suppress

import pytest
from flwr.app import Message, RecordDict

from sepal.client_app.audit import Audit
from sepal.client_app.upload_count import UploadCount
from sepal.errors import RoundError, StateError
from sepal.protocol.messages import read_order, write_client_error
from sepal.protocol.types import Kind
from sepal.server import round as rounds
from sepal.server.strategy import SepalStrategy
from sepal.storage.files import check_room, write_tensors
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes
from tests.strategies.dmpfl import Watch

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk(Nodes):
    """A grid one of whose clients reports that it cannot write, so many times from a round on."""

    arrange = wait = None

    def __init__(self, federation, error=FULL, round=2, times=3, kind=Kind.TRAIN):
        super().__init__(federation)
        self.error, self.round, self.left, self.kind = error, round, times, kind

    def answer(self, message):
        order, _ = read_order(message.content)
        name = self._federation.nodes[message.metadata.dst_node_id]
        if name == "client-1" and self.left and (order.kind, order.plan.round) == (self.kind, self.round):
            self.left -= 1
            return Message(write_client_error(self.error, name, f"{self.left:08d}"), reply_to=message)
        return super().answer(message)


@pytest.fixture(autouse=True)
def _rests_shortly(monkeypatch):
    monkeypatch.setattr(rounds, "FIRST_REST", 0.001)
    monkeypatch.setattr(rounds, "MOST_REST", 0.01)


def run(grid=None, **settings):
    federation = Federation(FAKES["queue"][0], rounds=4, settings=settings)
    strategy, watch = federation.server(), Watch()
    strategy._observers = [watch]
    strategy.start(grid(federation) if grid else Nodes(federation))
    return strategy, watch.records


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_client_that_cannot_write_is_asked_until_it_can_and_the_bits_are_the_same(number, caplog):
    caplog.set_level(logging.INFO, "sepal")
    strategy, records = run(lambda federation: Disk(federation, OSError(number, os.strerror(number)), times=8))
    plain, _ = run()
    assert digest(strategy.progress.server) == digest(plain.progress.server)
    assert strategy.progress.versions == plain.progress.versions
    word = "no-room" if number in (errno.ENOSPC, errno.EDQUOT) else "not-writable"
    (entry,) = [entry for record in records for entry in record.ledger if entry.status != "accepted"]
    assert (entry.round, entry.client, entry.status) == (2, "client-1", "refused")
    assert entry.reason.startswith(f"client-1: {word}: expected ")
    told = [line for line in caplog.messages if word in line or "write again" in line]
    assert len(told) == 2, "once that it cannot, and once that it can"
    assert told[0].startswith(f"round 2: client-1: {word}: expected ")
    assert told[1] == "round 2: client-1 can write again"


def test_under_skip_the_round_goes_on_without_it():
    strategy, records = run(lambda federation: Disk(federation, times=1), on_missing="skip", min_replies=1)
    assert strategy.progress.round == 5
    assert "client-1" not in records[1].replies
    assert "client-1" in records[2].replies


def test_after_the_timeout_the_error_has_the_word():
    words = r"round 2: .* within 1 s, .*client-1 missing; no-room: expected room on its disk"
    with pytest.raises(RoundError, match=words):
        run(lambda federation: Disk(federation, times=10**9), timeout=1.0)


def test_a_run_waits_for_a_client_whose_disk_is_full_at_the_start(caplog):
    caplog.set_level(logging.INFO, "sepal")
    strategy, _ = run(lambda federation: Disk(federation, round=0, kind=Kind.QUERY))
    assert strategy.progress.round == 5
    told = [line for line in caplog.messages if "no-room" in line]
    assert told
    assert "waiting for it" in told[0]


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a file system of 256 KiB."""
    target = tmp_path / "disk"
    target.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(target)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("mount") else None
    if completed is None or completed.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {completed.stderr.strip() if completed else 'no mount'}")
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


def fill(directory):
    """Write a file that takes all the room, and return it."""
    with open(directory / "filler", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 1000)
    return directory / "filler"


def again(action, *arguments):
    """Call ``action`` until it fails, as a file grows over the end of what its disk has."""
    for number in range(2000):
        action(*(argument(number) if callable(argument) else argument for argument in arguments))


def answered(host, content, directory):
    """Return a host's answer as the ClientApp sends it. One that fails leaves the directory as it was."""
    before = sorted(path.name for path in directory.rglob("*"))
    try:
        return host.answer(content)
    except StateError as error:
        left, words = sorted(path.name for path in directory.rglob("*")), "bytes, got No space left on device: "
        return write_client_error(error, host.info.name, "12345678") if left == before and words in str(error) else None


def test_a_client_on_a_full_disk_leaves_nothing_half_and_goes_on_with_the_same_bits(small_disk, tmp_path):
    """Hosts and stores in process, on a disk that fills in round 2 and has room again later."""
    asked = []

    class Filling(Nodes):
        arrange = wait = None

        def answer(self, message):
            order, _ = read_order(message.content)
            name = self._federation.nodes[message.metadata.dst_node_id]
            if order.kind is not Kind.TRAIN or order.plan.round != 2:
                return super().answer(message)
            asked.append(name)
            if len(asked) == 1:
                fill(small_disk)
            if len(asked) == 10:
                (small_disk / "filler").unlink()
            return Message(answered(self._federation.host(name), message.content, small_disk), reply_to=message)

    results = []
    for directory, grid in ((small_disk, Filling), (tmp_path / "large", Nodes)):
        federation = Federation(FAKES["queue"][0], rounds=4, directory=directory)
        strategy: SepalStrategy = federation.server()
        strategy.start(grid(federation))
        results.append((digest(strategy.progress.server), strategy.progress.versions))
    assert len(asked) > 10, "all four were asked again, and once there was room, all answered"
    assert results[0] == results[1]


def test_files_on_a_full_disk_are_whole(small_disk):
    """The log of answers and the count of uploads grow by lines: the disk may take the beginning of one alone."""
    audit, count = Audit(small_disk / "a.jsonl"), UploadCount(small_disk / "uploads" / "sent")
    audit.write("site-a", RecordDict(), RecordDict())
    count.spend("run 0-x")
    filler = fill(small_disk)
    with pytest.raises(StateError, match=r"audit log .* got No space left on device: 0 bytes free"):
        again(audit.write, "site-a", RecordDict(), RecordDict())
    with pytest.raises(StateError, match="No space left on device"):
        again(count.spend, lambda number: f"run {number}-{'x' * 100}")
    for line in (small_disk / "a.jsonl").read_text().splitlines():
        assert json.loads(line)["client"] == "site-a"
    assert all(line.startswith(b"run ") for line in count.path.read_bytes().splitlines())
    assert count.path.read_bytes().endswith(b"\n")
    with pytest.raises(StateError, match="bytes, got No space left on device: 0 bytes free"):
        write_tensors(small_disk / "state", {}, "{}")
    with pytest.raises(StateError, match="room to write about 10 bytes, got No space left on device: 0 bytes free"):
        check_room(small_disk, 10)
    filler.unlink()
    check_room(small_disk, 10)
    audit.write("site-a", RecordDict(), RecordDict())
    json.loads((small_disk / "a.jsonl").read_text().splitlines()[-1])
