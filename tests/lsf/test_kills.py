"""Runs that are ended, by their user or past hpcdist: they do not come back, and say who it was."""

import os

import pytest
from cluster_user import User, job_id, log
from counting import COUNT, await_counting, count
from lsf_site.config import QUEUES, Queue
from trainings import CPU, TWO

KILLS_ARE_REQUEUED = (*QUEUES, Queue(name="stubborn", requeue_exit_values="130 75 1"))

PIDS = """\
import os, time
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def stubborn_user(lsf_like, tmp_path):
    """Of a site with a queue that starts jobs again that were killed."""
    return User(lsf_like(kill_interval_s=60.0, queues=KILLS_ARE_REQUEUED), tmp_path)


def test_cancel_ends_the_job_and_every_process_of_it(user):
    run = user.submit(user.write("pids.py", PIDS), *CPU, "--nodes", 2, "--gpus", 2)
    for rank in range(4):
        user.wait_for_line(run, "pid", rank=rank)
    done = user("cancel", run.id, timeout=45)  # before the second signal of a kill comes
    assert done.returncode == 0, done.stderr
    assert user.cluster.job_state(job_id(run)) == "EXIT"
    for rank in range(4):
        with pytest.raises(ProcessLookupError):
            os.kill(int(log(run, rank).split()[1]), 0)
    verdict = run.read_verdict()
    assert (verdict.state, verdict.exit_code_of_run) == ("cancelled", 130)
    assert user("cancel", run.id).returncode == 0  # again


def test_bkill_saves_and_does_not_come_back_even_where_the_queue_requeues_130(stubborn_user):
    user = stubborn_user
    words = (user.write("count.py", COUNT), *CPU, *TWO, "--partition", "stubborn", "--wait")
    waiting = user.start("submit", *words)
    (run,) = user.cluster.wait_for(user.runs)
    await_counting(user, run)
    user.cluster.run("bkill", job_id(run))
    said, err = waiting.communicate(timeout=100)
    assert waiting.returncode == 130, err
    assert {line.split("] ")[1].split()[0] for line in said.splitlines()} == {"stopped"}
    assert "cancelled" in err
    job = user.cluster.job(job_id(run))
    assert (job.state, job.attempts, job.reason) == ("EXIT", 1, "TERM_OWNER")
    assert job.exit_code not in (0, 1, 75, 130)  # any of those would have brought it back
    assert (run.submitit_folder / f"{job.id}_exit_code").read_text() == "130\n"
    assert user.status(run)["state"] == "cancelled"


def test_cancel_wins_where_the_queue_requeues_130(stubborn_user):
    run = count(stubborn_user, "--partition", "stubborn")
    done = stubborn_user("cancel", run.id)
    assert done.returncode == 0, done.stderr
    job = stubborn_user.cluster.job(job_id(run))
    assert (job.state, job.attempts) == ("EXIT", 1)


def test_a_job_that_waits_or_is_held_says_why_and_can_be_cancelled(user):
    site = user.cluster
    blocker = site.submit("sleep 600", "-n", "16")
    site.wait_for_state(blocker, "RUN")
    run = user.submit(user.write("pids.py", PIDS), *CPU, *TWO)
    assert "it waits for" in user("status", run.id).stdout
    site.run("bstop", job_id(run))
    assert "bresume" in user("status", run.id).stdout
    assert user("cancel", run.id).returncode == 0
    assert run.read_verdict().state == "cancelled"
    site.run("bkill", blocker)
    site.wait_for_end(blocker)
