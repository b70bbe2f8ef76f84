"""What users and LSF do to a job that runs: kill it while it stops, suspend it."""

import pytest
from cluster_user import User, job_id

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
ON_CPUS = ("--nodes", "2", "--gpus", "1", "--set", "launch.device=cpu", "--no-snapshot")


@pytest.fixture
def user(lsf_like, tmp_path):
    hosts = tuple(f"127.0.1.{number}" for number in range(1, 5))
    user = User(lsf_like(hosts=hosts, kill_interval_s=60.0), tmp_path)
    user.write("train.py", SLOW_TO_STOP)
    return user


def test_a_job_that_is_killed_while_it_stops_for_its_limit_does_not_come_back(user):
    run = user.submit("train.py", *ON_CPUS)
    user.wait_for_line(run, "begun")
    user.cluster.signal(job_id(run), "USR2")
    user.wait_for_line(run, "stopping")
    user.cluster.run("bkill", job_id(run))
    user.cluster.wait_for(lambda: "received SIGINT" in run.agent_log_file(0).read_text())
    (run.path / "may-end").touch()
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.cluster.job(job_id(run)).exit_code == 130
    assert "brequeue" not in user.cluster.calls()
    assert "cancelled" in user("status", run.id).stdout


def test_a_suspended_job_runs_and_status_says_what_holds_it(user):
    run = user.submit("train.py", *ON_CPUS)
    user.wait_for_line(run, "begun")
    user.cluster.run("bstop", job_id(run))
    said = user("status", run.id).stdout
    assert f"{run.id}: running" in said
    assert f"bresume {job_id(run)}" in said
    assert user("cancel", run.id).returncode == 0
