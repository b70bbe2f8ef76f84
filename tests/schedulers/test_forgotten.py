"""A scheduler that answers and does not know a job: nothing is concluded from one answer."""

import os

import pytest

from hpcdist.base.errors import EXIT_INTERRUPTED
from hpcdist.machine.command import CommandFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.batch import condition_of
from hpcdist.schedulers.pbs.pbs import scheduler as pbs
from hpcdist.schedulers.slurm.slurm import scheduler as slurm

SUBMISSION = Submission(scheduler="pbs", job_id="12", job_name="ddp")


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path, "ddp")


def state(run, submission=SUBMISSION):
    return condition_of(run, submission, None, "PBS").state


def age(run, seconds):
    missed_s = run.missed_file.stat().st_mtime
    os.utime(run.missed_file, (missed_s - seconds, missed_s - seconds))


def test_a_job_is_forgotten_only_when_it_was_not_known_some_time_ago_either(run):
    run.agent_file(0).touch()
    first = condition_of(run, SUBMISSION, None, "PBS")
    assert first.state == "running"
    assert first.reason == "PBS does not list its job 12, but its agents live"
    os.utime(run.agent_file(0), (0, 0))
    assert state(run) == "unknown"
    age(run, 60)
    assert state(run) == "lost"


def test_a_run_that_was_killed_is_not_called_cancelled_for_one_answer(run):
    (run.attempts_folder / "00000").mkdir()
    killed = Verdict(
        kind="preempted", state="preempted", message="killed", exit_code_of_run=EXIT_INTERRUPTED
    )
    run.write_attempt_verdict(killed)
    assert state(run) == "unknown"
    age(run, 60)
    assert state(run) == "cancelled"


def test_another_job_of_the_run_is_missed_anew(run):
    assert state(run) == "unknown"
    age(run, 60)
    assert state(run, Submission(scheduler="pbs", job_id="13", job_name="ddp")) == "unknown"


@pytest.mark.parametrize(
    ("command", "ask"),
    [
        ("qstat", lambda: pbs.list_jobs(["12"])),
        ("qselect", lambda: pbs.list_jobs(())),
        ("squeue", lambda: slurm.list_jobs(())),
        ("sacct", lambda: slurm.books(["12"])),
    ],
    ids=["qstat", "qselect", "squeue", "sacct"],
)
@pytest.mark.parametrize("said", ["", "cannot connect to server login (errno=111)"])
def test_a_command_that_fails_is_no_empty_list(tmp_path, monkeypatch, command, ask, said):
    program = tmp_path / command
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandFailedError):
        ask()
