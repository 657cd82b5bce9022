"""Who writes a run: claims with growing numbers, for runs that jobs of a cluster continue (``docs/clusters.md``).

A job takes the next number when it starts, and checks before each commit that no higher one is there. An older process
that is still alive, which a file lock does not tell across machines, so ends at its next commit.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from sepal.errors import StateError, SupersededError, one_line
from sepal.runs.processors import processor
from sepal.runs.stored_run import begun
from sepal.storage.files import check_owner, make_directory, sync_path
from sepal.storage.json_record import read_record
from sepal.storage.regular import once

log = logging.getLogger("sepal")
CLAIMS = "claims"  # the directory of them in a run directory
SETTLED = 10.0  # seconds, after which a commit of another machine that had passed its check has ended
ELSEWHERE = 60.0  # seconds that a lock of a process is waited for that is not known to live
HERE = 6 * 3600.0  # the same of one that lives on this machine, and may be in a long round
MOST = 1000  # claims that are read, the newest
LOOK = 1.0  # seconds between looks at a newer claim while waiting
LAST = 10**12 - 1
_NAME = re.compile(r"[0-9]{8,12}\.json\Z")


@dataclass(frozen=True)
class ClaimRecord:
    """What a claim says of the process that made it.

    Attributes:
        number: Its number, from 1.
        job: The job in words: ``slurm 12, start 2``; ``none`` for a process without one.
        host: The machine's name.
        boot: The boot id of its kernel, which tells whether the machine has been restarted since.
        pid: The process.
        started: When the process started, in ticks since the machine's boot, which tells it from a later one.
        processor: The kind of processor.
        time: Seconds since 1970.
    """

    number: int
    job: str = ""
    host: str = ""
    boot: str = ""
    pid: int = 0
    started: int = 0
    processor: str = ""
    time: float = 0.0

    @property
    def lives_here(self) -> bool:
        """Whether its process is alive on this machine, as far as this process can see."""
        return bool(self.boot) and self.boot == boot_id() and self.started == started_at(self.pid) != 0

    @property
    def is_of_this_machine(self) -> bool:
        """Whether it was made on this machine, since it was started."""
        return bool(self.boot) and self.boot == boot_id()


@dataclass(frozen=True)
class Claim:
    """This process's claim to a run.

    Attributes:
        run: The run directory.
        number: Its number; 0 for a process without a claim, whose run has none as long as no job takes it.
    """

    run: Path
    number: int = 0

    def check(self) -> None:
        """Check that this process may go on to write the run.

        Raises:
            SupersededError: There is a claim with a higher number.
        """
        newest = newest_number(self.run)
        if newest > self.number:
            record = read_claim(self.run, newest)
            who = f"{record.job} on {record.host}" if record.host else "another one"
            expected = f"its newest claim to be that of this process, {self.number}"
            raise SupersededError(str(self.run), expected, f"claim {newest}: another job continues this run ({who})")


def newest_number(run: Path) -> int:
    """Return the highest number of a claim to the run directory ``run``; 0 without one.

    The directory is listed, because that makes an NFS client ask its server; whether a single file is there it may
    answer from what it knew a minute ago.
    """
    try:
        names = os.listdir(run / CLAIMS)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as reason:
        raise StateError(str(run / CLAIMS), "a directory that can be listed", reason.strerror or str(reason)) from None
    return max((int(name[:-5]) for name in names if _NAME.match(name)), default=0)


def read_claim(run: Path, number: int) -> ClaimRecord:
    """Return a claim's record; with its number alone if there is none, or it is damaged, which a warning then says."""
    try:
        stored = read_record(_file(run, number), run, ClaimRecord(number), "the record of a claim")
    except FileNotFoundError:
        return ClaimRecord(number)
    except StateError as error:
        log.warning("%s", error)
        return ClaimRecord(number)
    job, host = one_line(stored.job, 200), one_line(stored.host, 200)
    boot, kind = one_line(stored.boot, 200), one_line(stored.processor, 200)
    return replace(stored, number=number, job=job, host=host, boot=boot, processor=kind)


def read_claims(run: Path) -> list[ClaimRecord]:
    """Return the newest claims to a run, in order of their numbers."""
    with suppress(OSError, StateError):
        numbers = sorted(int(name[:-5]) for name in os.listdir(run / CLAIMS) if _NAME.match(name))
        return [read_claim(run, int(file.stem)) for file in once(_file(run, number) for number in numbers[-MOST:])]
    return []


def take_claim(run: Path, job: str = "none") -> Claim:
    """Make the next claim to the run directory ``run``; of several processes, each gets a number of its own.

    Raises:
        StateError: It cannot be written, others may write to the directory of claims, or there is no next number.
    """
    directory = run / CLAIMS
    make_directory(directory)
    check_owner(directory)
    part = directory / f".{uuid.uuid4().hex}.part"
    try:
        for left in directory.glob(".*.part"):  # of a process that was killed after it had made its claim
            with suppress(FileNotFoundError):
                if left.stat().st_nlink > 1:
                    left.unlink()
        number = newest_number(run)
        while True:
            number += 1
            if number > LAST:  # of a longer name, nobody would see that it is there
                raise StateError(str(_file(run, number - 1)), f"a number below {LAST}", "a claim that no job has made")
            _write_part(part, record_of(number, job))
            if _linked(part, _file(run, number)):
                break
        part.unlink(missing_ok=True)  # another process may have swept it, as above
        sync_path(directory)
    except OSError as reason:
        raise StateError(str(directory), "room and permission to write", reason.strerror or str(reason)) from None
    return Claim(run, number)


def record_of(number: int, job: str) -> ClaimRecord:
    """Return the record of a claim of this process."""
    pid = os.getpid()
    return ClaimRecord(
        number, job, socket.gethostname(), boot_id(), pid, started_at(pid), processor(), round(time.time(), 3)
    )


def _write_part(part: Path, record: ClaimRecord) -> None:
    with open(part, "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _linked(part: Path, path: Path) -> bool:
    """Give ``part`` the name ``path`` as well; return False if another process has taken that."""
    try:
        os.link(part, path)
    except FileExistsError:
        # A server of NFS whose answer was lost is asked again, and finds the link that it has made itself.
        try:
            return part.stat().st_nlink > 1
        except FileNotFoundError:  # swept by another process, which sweeps only what was linked
            return True
    except FileNotFoundError:  # the same, where the server looks for the part first
        if not path.exists():
            raise
        return True
    except OSError:  # a file system without hard links: a claim is then its name, whatever a kill leaves in it
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(part.read_bytes())
            file.flush()
            os.fsync(handle)
    return True


def _file(run: Path, number: int) -> Path:
    return run / CLAIMS / f"{number:08d}.json"


def lock_after_predecessor(claim: Claim, lock: FileLock, patience: float) -> None:
    """Lock the run for a process that has taken a claim; its predecessor ends at its next commit, and releases it.

    Where the predecessor is not known to be alive on this machine, the lock may be one that a lost machine left behind:
    then the claim alone is the guard.

    Args:
        claim: The claim.
        lock: The run directory's lock.
        patience: Seconds to wait where nobody had a claim before, as of two processes without claims.

    Raises:
        StateError: The lock is not released.
        SupersededError: A newer claim is made meanwhile.
    """
    before, begin = read_claim(claim.run, claim.number - 1), time.monotonic()
    limit = _patience_with(before, patience)
    while True:
        try:
            lock.acquire(timeout=min(LOOK, patience))
            break
        except Timeout:
            claim.check()
        if time.monotonic() - begin <= limit:
            continue
        if before.lives_here or not before.number:
            raise StateError(str(claim.run), "no other process that runs it", "one that has it open") from None
        log.warning("%s: its lock is held elsewhere, and its claims are the guard", claim.run)
        break
    settle(claim, begin)


def _patience_with(before: ClaimRecord, patience: float) -> float:
    """Return the seconds that a lock is waited for which ``before`` may hold, or with number 0 anybody."""
    if before.lives_here:
        return HERE
    return ELSEWHERE if before.number else patience


def settle(claim: Claim, begin: float | None = None) -> None:
    """Wait for a commit that the process before may have begun on another machine, before it could see the claim.

    A process without a claim may have been on any machine; it has committed nothing to a run that has not begun.

    Args:
        claim: The claim.
        begin: Since when, by the monotonic clock, the process before has been able to see it; None: from now.

    Raises:
        SupersededError: A newer claim is made meanwhile.
    """
    before = read_claim(claim.run, claim.number - 1)
    begin = time.monotonic() if begin is None else begin
    if not before.is_of_this_machine and (before.number or begun(claim.run)):
        while time.monotonic() - begin < SETTLED:
            time.sleep(min(LOOK, SETTLED))
    claim.check()


def boot_id() -> str:
    """Return the kernel's boot id; empty where there is none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def started_at(pid: int) -> int:
    """Return when a process of this machine started, in ticks since its boot; 0 if there is none."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/stat").read_bytes()
        fields = status[status.rindex(b")") + 2 :].split()  # the name before may have blanks and parentheses in it
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    return 0
