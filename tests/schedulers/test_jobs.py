"""One job has a run, and others of its name end at once; where a scheduler answers and does not
know it, nothing is concluded from one answer."""

import os
import subprocess
from contextlib import suppress

import pytest

from hpcdist.base.errors import EXIT_INTERRUPTED
from hpcdist.machine.command import CommandFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.batch import condition_of
from hpcdist.schedulers.pbs.pbs import scheduler as pbs
from hpcdist.schedulers.slurm.slurm import scheduler as slurm
from hpcdist.schedulers.tasks import end_unless_adopted, leave_to_another, owner_of


def begin(folder, job, place=0):
    """Be a job that begins; returns the one that has the run."""
    with suppress(SystemExit):
        end_unless_adopted(folder, place, job)
    return owner_of(folder, place)


def test_a_run_is_left_by_its_own_job_alone_and_adopted_by_the_next(tmp_path):
    assert [begin(tmp_path, job) for job in ("11", "12", "11")] == ["11"] * 3
    leave_to_another(tmp_path, 0, "12")
    assert owner_of(tmp_path, 0) == "11"
    leave_to_another(tmp_path, 0, "11")
    assert begin(tmp_path, "12") == "12"


def test_the_submission_names_the_job_that_has_the_run_though_it_began_first(tmp_path, monkeypatch):
    done = subprocess.CompletedProcess(["sbatch"], 0, "Submitted batch job 14\n", "")
    monkeypatch.setattr("hpcdist.schedulers.submitting.call_command", lambda *_, **__: done)
    run = Run(tmp_path / "count-1")
    target = Target(name=run.id, folder=run.path, cwd="/")
    target.make_folders()
    begin(target.submitit_folder, "11")
    slurm.submit(None, target, [run], "#!/bin/sh\n")
    assert run.read_job_id() == "11"
    assert run.read_submission().job_name == run.id


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
    another = Submission(scheduler="pbs", job_id="13", job_name="ddp")
    assert state(run, another) == "unknown"  # it is missed anew


def test_a_run_that_was_killed_is_not_called_cancelled_for_one_answer(run):
    (run.attempts_folder / "00000").mkdir()
    killed = Verdict(
        kind="preempted", state="preempted", message="killed", exit_code_of_run=EXIT_INTERRUPTED
    )
    run.write_attempt_verdict(killed)
    assert state(run) == "unknown"
    age(run, 60)
    assert state(run) == "cancelled"


@pytest.mark.parametrize(
    ("command", "ask"),
    [
        ("qstat", lambda: pbs.list_jobs(["12"])),
        ("squeue", lambda: slurm.list_jobs(())),
        ("sacct", lambda: slurm.books(["12"])),
    ],
    ids=["qstat", "squeue", "sacct"],
)
def test_a_command_that_fails_is_no_empty_list(tmp_path, monkeypatch, command, ask):
    program = tmp_path / command
    program.write_text("#!/bin/sh\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandFailedError):
        ask()
