"""Jobs that their user ends or suspends past hpcdist: they do not come back, and say who it was."""

import json
from pathlib import Path

import pytest
from cluster_user import CPU, TWO, User, job_id
from counting import COUNT, await_counting, count
from lsf_cluster import QUEUES, Queue

KILLS_ARE_REQUEUED = (*QUEUES, Queue(name="stubborn", requeue_exit_values="130 75 1"))


@pytest.fixture
def stubborn_user(lsf_like, tmp_path):
    """Of a site with a queue that starts jobs again that were killed."""
    return User(lsf_like(kill_interval_s=60.0, queues=KILLS_ARE_REQUEUED), tmp_path)


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
    assert user.status(run)["state"] == "cancelled"


def test_cancel_wins_where_the_queue_requeues_130(stubborn_user):
    run = count(stubborn_user, "--partition", "stubborn")
    done = stubborn_user("cancel", run.id)
    assert done.returncode == 0, done.stderr
    job = stubborn_user.cluster.job(job_id(run))
    assert (job.state, job.attempts) == ("EXIT", 1)


SLOW_TO_STOP = """
import os, sys, time
from pathlib import Path
from hpcdist import record

print("begun")
while not record.should_stop():
    time.sleep(0.02)
print("stopping")
while not Path(os.environ["HPCDIST_RUN_DIR"], "may-end").exists():
    time.sleep(0.01)
sys.exit(record.EXIT_STOPPED)
"""


def test_a_job_that_is_killed_while_it_stops_for_its_limit_does_not_come_back(user):
    run = user.submit(user.write("slow.py", SLOW_TO_STOP), *CPU, *TWO)
    user.wait_for_line(run, "begun")
    user.cluster.reach_limit(job_id(run))
    user.wait_for_line(run, "stopping")
    user.cluster.run("bkill", job_id(run))
    user.cluster.wait_for(lambda: "received SIGINT" in run.agent_log_file(0).read_text())
    (run.path / "may-end").touch()
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.cluster.job(job_id(run)).exit_code == 130
    assert "brequeue" not in user.cluster.calls()
    assert "cancelled" in user("status", run.id).stdout


def test_a_job_that_is_suspended_or_held_says_so_and_all_jobs_of_a_run_are_cancelled(user):
    site = user.cluster
    running = count(user)
    site.run("bstop", job_id(running))
    said = user("status", running.id).stdout
    assert f"{running.id}: running" in said
    assert f"bresume {job_id(running)}" in said
    agent = json.loads(running.agent_file(0).read_text())["process"]["pid"]
    site.wait_for(lambda: ") T " in Path(f"/proc/{agent}/stat").read_text())
    blocker = site.submit("sleep 600", "-n", "14")
    with site.resending(2):  # bsub asks again while the master hangs
        run = user.submit("count.py", *CPU, *TWO)
    site.run("bstop", job_id(run))
    assert "bresume" in user("status", run.id).stdout
    assert user("cancel", run.id).returncode == 0
    jobs = [job for job in site.jobs() if job.name == run.id]
    assert [job.state for job in jobs] == ["EXIT"] * 3
    assert user("cancel", running.id).returncode == 0
    site.run("bkill", blocker)
    site.wait_for_end(blocker)
