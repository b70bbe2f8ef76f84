"""Jobs that their user ends or suspends past hpcdist: they do not come back, and say who it was."""

from cluster_user import CPU, TWO, job_id
from counting import count

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
