"""Runs as jobs of Slurm, with commands that only pretend: what is submitted, when again, and what has failed."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError, StateError
from sepal.study.clusters import slurm
from sepal.study.clusters.commands import Slurm, SlurmError
from sepal.study.clusters.records import JobEnd, log_file, read_submission, submission_file, write_end, write_submission
from sepal.study.clusters.refusals import LONGEST
from sepal.study.clusters.slurm import SlurmJobs, cancelling, options_of
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.resources import Resources
from tests.sepal.study.clusters.planned_runs import Shown

SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > "$PRETENDED/arguments"
env > "$PRETENDED/environment"
[ -e "$PRETENDED/refused" ] && { cat "$PRETENDED/refused" >&2; exit 1; }
number=$(($(cat "$PRETENDED/number") + 1)); echo $number > "$PRETENDED/number"
for argument; do case "$argument" in --job-name=*) name=${argument#*=};; esac; done
echo "$number|PENDING||$name|Priority" >> "$PRETENDED/queue"
echo $number
"""
SQUEUE = """#!/bin/sh
[ -e "$PRETENDED/down" ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
cat "$PRETENDED/queue"
"""


class Pretended:
    """The queue of a Slurm that runs nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        (directory / "number").write_text("0")
        (directory / "queue").touch()

    def set(self, job: str, state: str, reason: str = "None", node: str = "") -> None:
        rows = [line.split("|") for line in (self.directory / "queue").read_text().splitlines()]
        self._write([[job, state, node, row[3], reason] if row[0] == job else row for row in rows])

    def forget(self, job: str) -> None:
        rows = [line.split("|") for line in (self.directory / "queue").read_text().splitlines()]
        self._write([row for row in rows if row[0] != job])

    def _write(self, rows: list[list[str]]) -> None:
        (self.directory / "queue").write_text("".join("|".join(row) + "\n" for row in rows))

    @property
    def submitted(self) -> int:
        return int((self.directory / "number").read_text())

    @property
    def arguments(self) -> list[str]:
        return (self.directory / "arguments").read_text().splitlines()


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    directory = tmp_path / "pretended"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PRETENDED", str(directory))
    monkeypatch.setattr(slurm, "POLL", 0.0)
    monkeypatch.setattr(slurm, "GRACE", 0.0)
    return Pretended(directory)


RUN = PlannedRun("", "", "fedavg", 0, {"name": "a-seed0", "method": "fedavg", "seed": 0, "lr": 0.1})


@pytest.fixture
def jobs(pretended, tmp_path):
    made: list[SlurmJobs] = []

    def make(**others) -> SlurmJobs:
        (tmp_path / "out").mkdir(exist_ok=True)
        for old in made:
            old.close()
        made.append(
            SlurmJobs(
                tmp_path / "out",
                **{"resources": {}, "one_processor": False, "workers": 0, "display": Shown(), **others},
            )
        )
        return made[-1]

    yield make
    for old in made:
        old.close()


def end_run(run: Path) -> None:
    run.mkdir(exist_ok=True)
    (run / "summary.json").write_text(json.dumps({"complete": True}))


def checkpoint(run: Path, round: int) -> None:
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / f"round-{round:06d}.safetensors").touch()


@pytest.mark.parametrize("name", ["", ".lock", "looked", "a-seed0", "a-seed0/log.txt"])
def test_a_planted_link_of_a_study_takes_nothing_elsewhere(jobs, pretended, tmp_path, name):
    """Slurm would add a log to the file, and the others would be emptied, touched, written to, or deleted from."""
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "out" / "jobs" / name
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "end.json").write_text("mine")
    link.parent.mkdir(parents=True, mode=0o700)
    link.symlink_to(elsewhere if name in ("", "a-seed0") else elsewhere / "new")
    before = pretended.submitted
    with pytest.raises(StateError, match="a link that leads out of it"):
        jobs().start(RUN, 1)
    assert [path.name for path in elsewhere.iterdir()] == ["end.json"]
    assert pretended.submitted == before


# what is submitted


def test_a_run_becomes_one_job_with_its_keys_in_a_file(jobs, pretended, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")  # of a job in which the command itself may be
    monkeypatch.setenv("SEPAL_CA_PASSPHRASE", "secret")
    resources = {"": Resources(cores=2), "fedavg": Resources(cores=4, gpus="a100:1", memory="8G", time="01:00:00")}
    going = jobs(resources=resources).start(RUN, 1)
    out = tmp_path / "out"
    submission = read_submission(out, "a-seed0")
    assert submission == going.submission
    assert (submission.job, submission.keys) == ("1", {**RUN.keys, "out": str(out)})
    assert pretended.arguments[:5] == [
        "--parsable",
        "--cpus-per-task=4",
        "--gres=gpu:a100:1",
        "--mem=8G",
        "--time=01:00:00",
    ]
    assert f"--job-name={submission.name}" in pretended.arguments
    assert pretended.arguments[-3] == str(out / "jobs" / "job.sh")
    assert pretended.arguments[-1] == str(submission_file(out, "a-seed0"))
    environment = (pretended.directory / "environment").read_text()
    assert "SLURM_CPUS_PER_TASK" not in environment
    assert "SEPAL_CA_PASSPHRASE" not in environment, "whoever has the node could read it"
    assert (out / "jobs").stat().st_mode & 0o777 == 0o700


def test_the_script_is_the_same_whatever_the_plan_says(jobs, tmp_path):
    jobs().start(replace(RUN, keys={**RUN.keys, "name": "b", "augment": "$(touch /tmp/x); #\n"}), 1)
    assert (tmp_path / "out" / "jobs" / "job.sh").read_text() == slurm.SCRIPT


def test_every_option_is_one_argument_of_its_own():
    asked = Resources(partition="a,b", account="me", qos="low", constraint="avx512&ib", nodelist="n[1-3]", exclude="m7")
    assert options_of(asked) == [
        "--partition=a,b",
        "--account=me",
        "--qos=low",
        "--constraint=avx512&ib",
        "--nodelist=n[1-3]",
        "--exclude=m7",
    ]
    assert options_of(Resources()) == []


def test_a_function_of_this_session_is_refused(jobs, pretended):
    with pytest.raises(ConfigError, match=r"a-seed0: model: expected package.module:function, which a job can import"):
        jobs().start(replace(RUN, keys={**RUN.keys, "model": "defined_in_this_session:build"}), 1)
    assert pretended.submitted == 0


def test_a_directory_whose_name_slurm_would_replace_is_refused(pretended, tmp_path):
    with pytest.raises(ConfigError, match="--out: expected a path without %"):
        SlurmJobs(tmp_path / "50%j", {}, False, 0, Shown())


def test_without_slurm_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match="--on: expected slurm on a machine with Slurm's commands, got no sbatch on PATH"
    ):
        Slurm()


def test_a_second_command_is_refused(jobs, tmp_path):
    jobs()
    with pytest.raises(StateError, match="no other `sepal compare` that watches its jobs"):
        SlurmJobs(tmp_path / "out", {}, False, 0, Shown())


# what becomes of it


def test_a_run_has_ended_when_its_summary_is_there(jobs, pretended, tmp_path):
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    assert workers.ended([going]) == []
    pretended.set("1", "RUNNING", node="n2")
    assert workers.ended([going]) == []
    assert (read_submission(tmp_path / "out", "a-seed0").state, going.submission.node) == ("RUNNING", "n2")
    end_run(tmp_path / "out" / "a-seed0")
    write_end(tmp_path / "out", "a-seed0", JobEnd("1", seconds=12.0, megabytes=300.0, cores=2, host="n2"))
    assert workers.ended([going]) == [going]
    assert workers.trouble(going) == ""
    assert display.lines[0] == "a-seed0 begins"
    assert display.lines[1].startswith("a-seed0: its last job took 12 s on 2 cores of n2, and at most 300 MB")


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "FAILED", "LOST"])
def test_a_job_that_was_cut_short_is_submitted_again_while_it_gets_on(jobs, pretended, tmp_path, state):
    """Once without a newer checkpoint, and as often as there is one."""
    workers, run = jobs(), tmp_path / "out" / "a-seed0"
    going = workers.start(RUN, 1)

    def cut(job):
        pretended.forget(job) if state == "LOST" else pretended.set(job, state)
        return workers.ended([going])

    for number, round in ((1, 0), (2, 10), (3, 20), (4, 20)):
        checkpoint(run, round)
        assert cut(str(number)) == []
        assert pretended.submitted == number + 1
    assert cut("5") == [going]
    assert pretended.submitted == 5
    assert workers.trouble(going).startswith(slurm.REASONS.get(state, "it ended without a result, in state FAILED"))
    assert workers.trouble(going).endswith(f"(job 5, {log_file(tmp_path / 'out', 'a-seed0')})")
    assert read_submission(tmp_path / "out", "a-seed0").state == state


@pytest.mark.parametrize("state", ["CANCELLED", "OUT_OF_MEMORY", "COMPLETED"])
def test_a_job_that_would_fail_again_is_not_submitted_again(jobs, pretended, tmp_path, state):
    workers = jobs()
    going = workers.start(RUN, 1)
    log_file(tmp_path / "out", "a-seed0").write_text("slurmstepd: error: a line\n\n")
    pretended.set("1", state)
    assert workers.ended([going]) == [going]
    assert pretended.submitted == 1
    assert ("it printed: slurmstepd: error: a line" in workers.trouble(going)) == (state == "COMPLETED")


def test_a_job_that_has_said_why_it_ended_is_quoted(jobs, pretended, tmp_path):
    workers = jobs()
    going = workers.start(RUN, 1)
    write_end(tmp_path / "out", "a-seed0", JobEnd("1", 2, "sepal: lr: expected more than 0, got -1"))
    pretended.set("1", "FAILED", "NonZeroExitCode")
    assert workers.ended([going]) == [going]
    assert workers.trouble(going).startswith("sepal: lr: expected more than 0, got -1 (job 1, ")


def test_files_that_come_late_to_this_machine_are_waited_for(jobs, pretended, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "GRACE", 60.0)
    workers = jobs()
    going = workers.start(RUN, 1)
    pretended.set("1", "COMPLETED")
    assert workers.ended([going]) == []
    end_run(tmp_path / "out" / "a-seed0")
    assert workers.ended([going]) == [going]
    assert workers.trouble(going) == ""


def test_while_the_controller_is_silent_nothing_has_failed(jobs, pretended, tmp_path):
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    (pretended.directory / "down").touch()
    assert workers.ended([going]) == workers.ended([going]) == []
    assert [line for line in display.lines if "does not answer" in line] == display.lines, "it is said once"
    assert len(display.lines) == 1
    end_run(tmp_path / "out" / "a-seed0")
    assert workers.ended([going]) == [going], "a run ends without the controller"


def test_a_submission_that_is_refused_is_tried_again_and_named(jobs, pretended):
    (pretended.directory / "refused").write_text("sbatch: error: invalid partition specified: x\n")
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    looks = 0
    while not workers.ended([going]):
        looks += 1
    assert looks == 3, "the second try is at look 1, the third at look 3"
    assert display.lines[:-1] == [
        "a-seed0: Slurm does not take its job (sbatch: error: invalid partition specified: x); it is tried again"
    ]
    assert workers.trouble(going) == "Slurm does not take its job: sbatch: error: invalid partition specified: x"


def test_a_submission_that_was_taken_without_an_answer_is_not_repeated(jobs, pretended):
    """``sbatch`` gives up after some seconds, while a busy controller goes on with what it was asked."""
    (pretended.directory / "refused").write_text("sbatch: error: Socket timed out on send/recv operation\n")
    workers = jobs()
    going = workers.start(RUN, 1)
    (pretended.directory / "queue").write_text(f"9|PENDING||{going.submission.name}|Priority\n")
    (pretended.directory / "refused").unlink()
    assert workers.ended([going]) == []
    assert (going.submission.job, pretended.submitted) == ("9", 0)


def test_a_submission_that_is_refused_waits_while_other_jobs_go_on(jobs, pretended):
    """As where a site limits the jobs of a user."""
    workers = jobs()
    first = workers.start(RUN, 2)
    (pretended.directory / "refused").write_text("QOSMaxSubmitJobPerUserLimit\n")
    second = workers.start(replace(RUN, keys={**RUN.keys, "name": "b-seed0"}), 2)
    for _ in range(20):
        assert workers.ended([first, second]) == []
    (pretended.directory / "refused").unlink()
    for _ in range(LONGEST):
        assert workers.ended([first, second]) == []
    assert second.submission.job == "2"


def named(name, variant="fedavg"):
    return replace(RUN, variant=variant, keys={**RUN.keys, "name": name})


def test_refused_submissions_are_repeated_ever_more_seldom_and_said_once(jobs, pretended, tmp_path):
    """Ten runs of a partition that is not there, beside one that goes on: ten calls; one at looks 1, 3, 7 and 15."""
    sbatch = pretended.directory / "sbatch"
    bad = 'case "$*" in *partition=typo*) echo x >> "$PRETENDED/tries"; echo "bad partition" >&2; exit 1;; esac\n'
    sbatch.write_text(SBATCH.replace("printf", f"{bad}printf", 1))
    display = Shown()
    workers = jobs(display=display, resources={"bad": Resources(partition="typo")})
    going = [workers.start(named(f"bad{number}", "bad"), 11) for number in range(10)]
    going.append(workers.start(named("good"), 11))
    for _ in range(20):
        assert workers.ended(going) == []
    assert (pretended.directory / "tries").read_text().count("x") == 14
    assert display.lines == ["bad0: Slurm does not take its job (bad partition); it is tried again"]
    end_run(tmp_path / "out" / "good")
    assert workers.ended(going) == [going.pop()]
    ended = [run for _ in range(5) for run in workers.ended([run for run in going if not run.trouble])]
    assert len(ended) == 10, "two more pauses, of one look and of two"
    assert {run.trouble for run in ended} == {"Slurm does not take its job: bad partition"}
    assert (pretended.directory / "tries").read_text().count("x") == 16


def test_a_place_that_becomes_free_is_taken_at_once(jobs, pretended, tmp_path):
    """A site allows two jobs at a time; six runs are to go on."""
    sbatch, display = pretended.directory / "sbatch", Shown()
    limit = '[ $(grep -c PENDING "$PRETENDED/queue") -ge 2 ] && { echo "job limit 2" >&2; exit 1; }\n'
    sbatch.write_text(SBATCH.replace("printf", f"{limit}printf", 1))
    workers = jobs(display=display)
    going = [workers.start(named(f"r{number}"), 6) for number in range(6)]
    for _ in range(30):
        workers.ended(going)
    while going:
        ended = [job for job in going if job.submission.job]
        assert len(ended) == 2
        for job in ended:
            end_run(tmp_path / "out" / job.run.name)
            pretended.set(job.submission.job, "COMPLETED")
        assert workers.ended(going) == ended
        going = [job for job in going if job not in ended]
        workers.ended(going)
    assert pretended.submitted == 6
    said = [line for line in display.lines if not line.endswith(" begins")]
    assert said == ["r2: Slurm does not take its job (job limit 2); it is tried again"]


def test_a_job_that_is_held_is_told_once_with_the_way_out(jobs, pretended):
    """Slurm holds a job that it could not start several times; it would wait for ever."""
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    pretended.set("1", "PENDING", "launch failed requeued held")
    assert workers.ended([going]) == workers.ended([going]) == []
    assert display.lines == ["a-seed0: job 1 is held (launch failed requeued held): `scontrol release 1` lets it go on"]


def test_a_job_that_waits_for_more_than_its_turn_is_told_once(jobs, pretended):
    """Such as one that can never start."""
    display = Shown()
    workers = jobs(display=display)
    going = [workers.start(named(name), 2) for name in ("a", "b")]
    for reason in ("Priority", "Resources", "None", "PartitionTimeLimit", "PartitionTimeLimit", "Priority"):
        pretended.set("1", "PENDING", reason)
        pretended.set("2", "PENDING", reason)
        assert workers.ended(going) == []
    line = "a: job 1 waits (PartitionTimeLimit), others of its kind may, too; `scancel 1` ends it if it cannot start"
    assert display.lines == [line]
    pretended.set("1", "PENDING", "PartitionTimeLimit")
    again = Shown()
    jobs(display=again).start(named("a"), 1)
    assert again.lines == ["a goes on as job 1", line], "also by the next command"


def test_a_job_that_waits_again_is_told_once(jobs, pretended):
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    for state, reason in (("RUNNING", "None"), ("PENDING", "BeginTime"), ("PENDING", "BeginTime")):
        pretended.set("1", state, reason)
        assert workers.ended([going]) == []
    assert display.lines == ["a-seed0 begins", "a-seed0 waits again, as job 1: BeginTime"]


@pytest.mark.parametrize("name", ["a-seed0", "jobs/a-seed0"])
def test_a_directory_is_listed_before_a_file_in_it_is_looked_for(jobs, pretended, tmp_path, monkeypatch, name):
    """An NFS client may answer from what it knew a minute ago whether a single name is there."""
    workers, listed = jobs(), []
    going = workers.start(RUN, 1)
    list_directory = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or list_directory(path))
    reader = "read_end" if "/" in name else "stored_summary"
    monkeypatch.setattr(slurm, reader, lambda *paths: listed.append(reader))
    pretended.set("1", "CANCELLED")
    assert workers.ended([going]) == [going]
    assert listed.index(tmp_path / "out" / name) < listed.index(reader)


def test_a_damaged_record_of_an_end_is_none_and_is_named(jobs, pretended, tmp_path):
    display = Shown()
    workers = jobs(display=display)
    going = workers.start(RUN, 1)
    file = tmp_path / "out" / "jobs" / "a-seed0" / "end.json"
    file.write_text('{"code": Infinity}')
    pretended.set("1", "CANCELLED")
    assert workers.ended([going]) == [going]
    assert workers.trouble(going).startswith("it was cancelled")
    assert display.lines[:-1] == [f"{file}: expected how a job has ended, got a damaged file, without job"]


# the command is killed, and started again


def test_a_job_that_is_queued_is_not_submitted_twice(jobs, pretended):
    jobs().start(RUN, 1)
    going = jobs().start(RUN, 1)
    assert (going.submission.job, pretended.submitted) == ("1", 1)


def test_a_job_whose_number_was_never_noted_is_found_by_its_name(jobs, pretended, tmp_path):
    """The command was killed between the submission and the note of its number."""
    submission = jobs().start(RUN, 1).submission
    write_submission(tmp_path / "out", replace(submission, job="", state=""))
    going = jobs().start(RUN, 1)
    assert (going.submission.job, pretended.submitted) == ("1", 1)


def test_a_job_that_has_ended_meanwhile_is_submitted_again(jobs, pretended):
    jobs().start(RUN, 1)
    pretended.set("1", "CANCELLED")
    assert jobs().start(RUN, 1).submission.job == "2"


def test_another_job_of_the_same_number_is_none_of_ours(jobs, pretended, tmp_path):
    """Numbers begin again where a controller has lost its state."""
    submission = jobs().start(RUN, 1).submission
    (pretended.directory / "queue").write_text("1|RUNNING|n1|something else|None\n")
    assert jobs().start(RUN, 1).submission.job == "2"
    assert submission.job == "1"


def test_a_job_whose_number_another_one_has_got_meanwhile_is_lost(jobs, pretended):
    workers = jobs()
    going = workers.start(RUN, 1)
    (pretended.directory / "queue").write_text("1|RUNNING|n1|something else|None\n")
    assert workers.ended([going]) == []
    assert (going.submission.job, pretended.submitted) == ("2", 2)


def test_a_job_with_other_keys_is_refused(jobs):
    jobs().start(RUN, 1)
    with pytest.raises(ConfigError, match=r"job 1, which goes on with others; `scancel 1` ends it"):
        jobs().start(replace(RUN, keys={**RUN.keys, "lr": 0.2}), 1)


def test_the_command_that_ends_what_goes_on_names_these_jobs_alone(jobs, tmp_path):
    workers = jobs()
    for name in ("a", "b", "c"):
        workers.start(replace(RUN, keys={**RUN.keys, "name": name}), 3)
    end_run(tmp_path / "out" / "b")
    assert cancelling(tmp_path / "out", ["a", "b", "c", "d"]) == "scancel 1 3"
    assert cancelling(tmp_path / "out", ["b", "d"]) == ""


def test_an_answer_that_is_no_number_is_refused(pretended):
    (pretended.directory / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\n")
    with pytest.raises(SlurmError, match="sbatch: expected the number of a job, got Submitted batch job 7"):
        Slurm().submit([], [])


def test_what_a_user_wants_squeue_to_show_hides_no_job(jobs, pretended, monkeypatch):
    squeue = '#!/bin/sh\n[ -n "$SQUEUE_PARTITION$SBATCH_ARRAY_INX$SBATCH_WAIT" ] && exit 0\ncat "$PRETENDED/queue"\n'
    (pretended.directory / "squeue").write_text(squeue)
    for variable in ("SQUEUE_PARTITION", "SBATCH_ARRAY_INX", "SBATCH_WAIT"):
        monkeypatch.setenv(variable, "gpu")
    monkeypatch.setenv("SBATCH_ACCOUNT", "me")
    workers = jobs()
    going = workers.start(RUN, 1)
    assert workers.ended([going]) == workers.ended([going]) == []
    assert pretended.submitted == 1
    environment = (pretended.directory / "environment").read_text()
    assert "SBATCH_ACCOUNT=me" in environment, "what a job asks for is the user's"


def test_another_cluster_is_refused(pretended, monkeypatch):
    monkeypatch.setenv("SBATCH_CLUSTERS", "other")
    with pytest.raises(ConfigError, match="SBATCH_CLUSTERS: expected no other cluster than this machine's own"):
        Slurm()


@pytest.mark.parametrize(
    ("cluster", "scancel", "words"),
    [
        ("other", "exit 0", "job 77 on other, which was cancelled"),
        ("other", "echo denied >&2; exit 1", "on other, which goes on: `scancel --clusters=other 77` ends it (denied)"),
        ("--user=me", "exit 0", "job 77 on --user=me, which goes on"),
        ("a,b", "exit 0", "job 77 on a,b, which goes on"),
    ],
)
def test_a_job_that_went_to_another_cluster_is_cancelled_there(pretended, cluster, scancel, words):
    (pretended.directory / "sbatch").write_text(f"#!/bin/sh\necho '77;{cluster}'\n")
    (pretended.directory / "scancel").write_text(f'#!/bin/sh\necho "$@" > "$PRETENDED/cancelled"\n{scancel}\n')
    (pretended.directory / "scancel").chmod(0o755)
    with pytest.raises(ConfigError, match=re.escape(words)):
        Slurm().submit([], [])
    cancelled = pretended.directory / "cancelled"
    assert (cancelled.read_text() if cancelled.exists() else "") == "--clusters=other 77\n" * (cluster == "other")


# the whole command

PLAN = """
methods = ["local"]
[settings]
dataset = "digits"
clients = 2
rounds = 1
"partition.subsample" = 60
[resources]
cores = 1
"""
AT_ONCE = """for last; do :; done
SLURM_JOB_ID=1 "$SEPAL_AT_ONCE" -P -m sepal.study.clusters.job "$last"
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(PLAN)
    return [str(tmp_path / "p.toml"), "--out", str(tmp_path / "out"), "--no-report", "--on", "slurm"]


@pytest.mark.e2e
def test_a_comparison_on_slurm_ends_with_its_table(pretended, plan, tmp_path, monkeypatch):
    """Here ``sbatch`` executes the job before it answers."""
    sbatch = pretended.directory / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("echo $number\n", f"{AT_ONCE}echo $number\n"))
    monkeypatch.setenv("SEPAL_AT_ONCE", sys.executable)
    result = CliRunner().invoke(app, ["compare", *plan])
    assert result.exit_code == 0, result.output
    assert "its last job took" in result.stderr
    assert (tmp_path / "out" / "comparison.csv").exists()
    assert pretended.submitted == 1
    assert CliRunner().invoke(app, ["compare", *plan]).exit_code == 0
    assert pretended.submitted == 1, "what has ended is not submitted again"


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_an_interrupted_command_says_how_its_jobs_are_ended(pretended, plan, monkeypatch, command):
    def interrupted(workers, going):
        raise KeyboardInterrupt

    monkeypatch.setattr(SlurmJobs, "ended", interrupted)
    if command == "tune":
        plan.remove("--no-report")
        Path(plan[0]).write_text(f"{PLAN}[grid]\nlr = [0.1]\n")
    result = CliRunner().invoke(app, [command, *plan])
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1].endswith("takes them up again; `scancel 1` ends them")
