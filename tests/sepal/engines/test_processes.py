"""Further processes have this one's environment and imports of their own, and none of a working directory's files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path

import psutil
import pytest

from sepal.engines import processes
from sepal.engines.flower import lines
from sepal.engines.flower.processes import Processes
from sepal.errors import StateError


def answer(connection):
    connection.send((dict(os.environ), "torch" in sys.modules, sys.modules["__main__"].__name__))


def ask_process(environment=None):
    receiver, sender = Pipe()
    process = processes.start(answer, sender, environment=environment)
    sender.close()
    reply = receiver.recv()
    process.join()
    return reply


def test_a_process_has_the_environment_of_the_one_that_starts_it(monkeypatch):
    """And not that of the server from which it is forked, which may be older."""
    ask_process()  # the server runs
    monkeypatch.setenv("SEPAL_TEST", "new")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    variables, imported, _ = ask_process({"NO_COLOR": "1"})
    assert (variables["SEPAL_TEST"], variables["NO_COLOR"]) == ("new", "1")
    assert "PYTHONSAFEPATH" not in variables
    assert "PYTHONSAFEPATH" not in os.environ
    if processes._FORKS:
        assert imported


@pytest.mark.skipif(not processes._FORKS, reason="no server process")
def test_the_server_runs_no_file_of_the_working_directory(tmp_path):
    """A file that has the name of a library's module must not run because somebody starts a run beside it."""
    mark = tmp_path / "ran"
    for name in ("random", "flwr", "torch"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write(__name__)")
    script = tmp_path / "bin" / "script"
    script.parent.mkdir()
    script.write_text("from tests.sepal.engines.test_processes import ask_process; print(ask_process()[1])")
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script)]
    output = subprocess.check_output(command, cwd=tmp_path, env=variables, text=True, encoding="utf-8")
    assert output == "True\n"
    assert not mark.exists()


def test_a_long_name_of_the_temporary_directory_keeps_no_process_from_starting(tmp_path):
    """The server's socket lies there, and its name may have 107 characters."""
    long_directory = tmp_path / ("t" * 100)
    (long_directory / "bin").mkdir(parents=True)
    script = long_directory / "bin" / "script"
    script.write_text("from tests.sepal.engines.test_processes import ask_process; print(ask_process()[2])")
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(long_directory)}
    output = subprocess.check_output([sys.executable, str(script)], env=variables, text=True, encoding="utf-8")
    assert output == "__main__\n"


HOLDER = """
import os, signal, sys
from pathlib import Path
from sepal.engines.flower.processes import Processes
processes = Processes(Path(sys.argv[1]))
print(processes.take_over(Path(sys.argv[2])), flush=True)
print(processes.spawn("sleep", "600", log="sleep.log").pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_holder_has_left_is_ended_by_the_next(tmp_path):
    record = tmp_path / "processes"
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "home"), str(record)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    ended, pid = map(int, answer.stdout.split())
    assert ended == 0, "nobody had it before"
    assert psutil.Process(pid).is_running()
    with Processes(tmp_path / "next") as holder:
        assert holder.take_over(record) == 1
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert holder.take_over(record) == 0, "its own are left alone when nothing runs"


@pytest.mark.parametrize("damage", [os.mkdir, os.mkfifo, lambda path: path.write_bytes(b"\xff")])
def test_a_record_that_is_none_is_one_line(damage, tmp_path):
    damage(tmp_path / "record")
    with Processes(tmp_path / "home") as holder, pytest.raises(StateError, match="record"):
        holder.take_over(tmp_path / "record")


def test_a_record_ends_nothing_of_another_holder(tmp_path):
    with Processes(tmp_path / "one") as first, Processes(tmp_path / "two") as second:
        first.take_over(tmp_path / "first")
        process = first.spawn("sleep", "600")
        assert second.take_over(tmp_path / "second") == 0
        assert process.poll() is None


PRINTER = """
import sys
for number in range(int(sys.argv[1])):
    print(f"line {number} of what a process says", flush=number % 50 == 0)
"""


def test_a_log_is_bounded_and_loses_no_line_of_what_it_keeps(tmp_path, monkeypatch):
    """It is the output of a process that may run for a year: 4.9 kB a round of a SuperLink's."""
    monkeypatch.setattr(lines, "BYTES", 10_000)
    with Processes(tmp_path) as holder:
        assert holder.spawn(sys.executable, "-c", PRINTER, "5000", log="chatty.log").wait(60) == 0
    files = sorted(tmp_path.glob("chatty.log*"))
    assert [file.name for file in files] == ["chatty.log", *(f"chatty.log.{n}" for n in range(1, lines.OLDER + 1))]
    assert all(file.stat().st_size <= 10_000 for file in files)
    by_age = sorted(files, key=file_number, reverse=True)
    kept = [line for file in by_age for line in file.read_text().splitlines()]
    assert kept == [f"line {number} of what a process says" for number in range(5000 - len(kept), 5000)]
    assert len(kept) > 250 * lines.OLDER


def file_number(file):
    return int(file.suffix[1:]) if file.suffix != ".log" else 0


def test_a_process_that_speaks_on_while_its_log_cannot_be_written_is_not_held_up(tmp_path):
    (tmp_path / "chatty.log").mkdir()
    with Processes(tmp_path) as holder:
        assert holder.spawn(sys.executable, "-c", PRINTER, "50000", log="chatty.log").wait(60) == 0


def test_a_process_whose_holder_was_killed_may_speak_on(tmp_path):
    """Until the next holder ends it: a closed pipe ends no process of Python's, and so no run."""
    script = f"""
import os, signal, sys
from pathlib import Path
from sepal.engines.flower.processes import Processes
speaker = "import logging, time, pathlib; logging.basicConfig(level=20); time.sleep(1)\\n"
speaker += "for _ in range(9): logging.info('on')\\npathlib.Path('spoke').write_text('all')"
Processes(Path({str(tmp_path)!r})).spawn(sys.executable, "-c", speaker, log="speaker.log")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False, env=os.environ)
    end = time.monotonic() + 30
    while not (tmp_path / "spoke").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert (tmp_path / "spoke").read_text() == "all"
