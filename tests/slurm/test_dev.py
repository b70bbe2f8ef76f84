"""`hpcdist dev` on Slurm: its job holds the nodes, in which runs start at once."""

import json

import pytest
from cluster_user import User, log

WORK = """
import os, sys
warm = "torch" in sys.modules
import torch
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["SLURM_JOB_ID"], warm, flush=True)
"""


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


def test_runs_and_shells_in_nodes_that_a_job_holds(user, slurm):
    user.write("work.py", WORK)
    done = user(
        *("dev", "--nodes", "2", "--gpus", "2", "--time", "0:10:00", "--idle", "0:05", "--json"),
        *("--set", "launch.device=cpu"),
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    assert held["is_ready"]
    assert 0 < held["ends_s"]
    for nodes in (2, 1):  # the second leaves one of them out, and the third has it again
        run = user("submit", "work.py", "--in", "dev", "--nodes", nodes, "--gpus", "2", "--json")
        assert run.returncode == 0, run.stderr
        done_run = user.runs()[-1]
        assert [log(done_run, rank) for rank in range(2 * nodes)] == [
            f"{rank} {2 * nodes} {held['job_id']} True\n" for rank in range(2 * nodes)
        ]
    third = user("submit", "work.py", "--in", "dev", "--nodes", "2", "--detach", "--json")
    inside = user("attach", "dev", "--", "sh", "-c", "echo $SLURM_JOB_ID")
    assert inside.stdout.split() == [held["job_id"]]
    assert user("status", json.loads(third.stdout)["run"]).returncode == 0
    assert [job.id for job in slurm.queue()] == [held["job_id"]]
    assert user("cancel", "dev").returncode == 0
    slurm.wait_for(lambda: slurm.queue() == [])
    states = {run.id: run.read_verdict().state for run in user.runs()}
    assert states.pop(held["run"]) == "cancelled"
    assert set(states.values()) <= {"done", "cancelled"}
