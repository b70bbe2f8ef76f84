"""Runs as steps of an allocation that the user has already."""

import json
import os
import signal

import pytest
from cluster_user import log

from hpcdist.runs.run import all_runs

WORK = """
import os, sys, time
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["SLURM_JOB_ID"], flush=True)
time.sleep(float(sys.argv[1]))
"""


class Shell:
    """A shell inside an allocation."""

    def __init__(self, cluster, folder, job_id):
        self.cluster, self.folder, self.job_id = cluster, folder, job_id
        self.environment = cluster.environment | {"SLURM_JOB_ID": job_id}

    def settings(self):
        return {"cwd": self.folder, "env": self.environment}

    def __call__(self, *arguments):
        return self.cluster.run(*arguments, **self.settings(), timeout=150, check=False)

    def submit(self, *arguments):
        return self("hpcdist", "submit", *arguments)

    def start(self, *arguments):
        return self.cluster.start_command(
            "hpcdist", "submit", *arguments, **self.settings(), stdout=-1, stderr=-1
        )

    def steps(self):
        said = self("squeue", "--steps", "--noheader", f"--jobs={self.job_id}", "--format=%j")
        return [line.strip() for line in said.stdout.splitlines()]

    @property
    def runs(self):
        return all_runs(self.folder / "runs")


@pytest.fixture
def shell(slurm, tmp_path, write_script):
    """In an allocation of three nodes, with 2 CPUs and 2 GPUs of each."""
    write_script(WORK, "work.py")
    said = slurm.run("salloc", "--no-shell", "-N3", "--ntasks-per-node=2", "--gpus-per-node=2")
    job_id = said.stderr.split("Granted job allocation ")[1].split()[0]
    yield Shell(slurm, tmp_path, job_id)
    slurm.run("scancel", job_id)


def test_a_job_that_names_no_nodes_takes_all_of_the_allocation(shell, slurm):
    done = shell.submit("work.py", "--here", "--gpus", "2", "--json", "--", "0")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "done"
    assert "started on node 0: 127.0.1.1" in done.stderr
    (run,) = shell.runs
    assert [log(run, rank) for rank in range(6)] == [
        f"{rank} 6 {shell.job_id}\n" for rank in range(6)
    ]
    submission = run.read_submission()
    assert (submission.step, submission.job_id) == (True, shell.job_id)
    assert [job.id for job in slurm.queue()] == [shell.job_id]


def test_outside_of_an_allocation_it_says_how_to_get_one(slurm, tmp_path):
    done = slurm.run("hpcdist", "submit", "check", "--here", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "neither SLURM_JOB_ID nor LSB_JOBID nor PBS_JOBID is set" in done.stderr
    assert "salloc" in done.stderr
    assert os.listdir(tmp_path) == []


def test_an_allocation_that_has_ended_is_refused(shell, slurm):
    slurm.run("scancel", shell.job_id)
    slurm.wait_for_end(shell.job_id)
    done = shell.submit("check", "--here")
    assert done.returncode == 2
    assert f"job {shell.job_id}, which SLURM_JOB_ID names" in done.stderr


def test_a_step_is_seen_and_cancelled_from_another_shell(shell, slurm):
    with shell.start("work.py", "--here", "--", "600") as command:
        assert command.stdout.readline().startswith("[rank ")
        (status,) = json.loads(shell("hpcdist", "status", "last", "--json").stdout)
        ended = shell("hpcdist", "cancel", "last", "--json")
        _, said = command.communicate(timeout=150)
    assert status["state"] == "running"
    assert [seen["host"] for seen in status["hosts"]] == ["127.0.1.1", "127.0.1.2", "127.0.1.3"]
    (answer,) = json.loads(ended.stdout)
    assert (answer["state_before"], answer["state"]) == ("running", "cancelled")
    assert "cancelled" in said
    slurm.wait_for(lambda: shell.steps() == [])
    assert [job.id for job in slurm.queue()] == [shell.job_id]


def test_a_step_that_finds_no_room_waits_and_can_be_given_up(shell, slurm):
    with shell.start("work.py", "--here", "--gpus", "2", "--", "600") as first:
        assert first.stdout.readline().startswith("[rank ")
        with shell.start("work.py", "--here", "--nodes", "1", "--", "0") as second:
            said = [second.stderr.readline(), second.stderr.readline()]
            second.send_signal(signal.SIGINT)
            second.communicate(timeout=150)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=150)
    assert "waits for room in allocation" in said[1]
    assert second.returncode == 130
    assert [run.read_verdict().state for run in shell.runs] == ["cancelled", "cancelled"]
    assert [job.id for job in slurm.queue()] == [shell.job_id]
