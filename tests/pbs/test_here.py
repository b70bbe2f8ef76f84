"""Runs in the job of a shell, which has its hosts already."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass

import pytest
from cluster_user import CPU
from counting import COUNT, await_counting
from waiting import wait_for

from hpcdist.runs.run import all_runs

SHELL = """\
export PATH={path}
cd {folder}
n=0
while :; do
    while [ ! -e shell-$n ]; do sleep 0.1; done
    (
        {python} -m hpcdist $(cat shell-$n) > out-$n 2> err-$n
        echo $? > code-$n.new
        mv code-$n.new code-$n
    ) &
    n=$((n + 1))
done
"""


@dataclass
class Done:
    code: int
    out: str
    err: str


class Shell:
    """In a job of two hosts; calls hpcdist there."""

    def __init__(self, user, job_id):
        self.user, self.job_id, self.called = user, job_id, 0

    def start(self, *words):
        number, self.called = self.called, self.called + 1
        new = self.user.folder / "shell.new"
        new.write_text(" ".join(words))
        new.rename(self.user.folder / f"shell-{number}")
        return number

    def end(self, number):
        def read(name):
            return (self.user.folder / f"{name}-{number}").read_text()

        wait_for((self.user.folder / f"code-{number}").exists)
        return Done(int(read("code")), read("out"), read("err"))

    def __call__(self, *words):
        return self.end(self.start(*words))

    def run(self):
        """The newest run, once it is there."""
        wait_for(lambda: all_runs(self.user.folder / "runs"))
        return max(all_runs(self.user.folder / "runs"), key=lambda run: run.id)

    def is_there(self):
        command = ["qstat", "-f", self.job_id]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return "job_state = R" in said


@pytest.fixture
def shell(user):
    user.write("count.py", COUNT)
    script = SHELL.format(
        path=shlex.quote(os.environ["PATH"]),
        folder=shlex.quote(str(user.folder)),
        python=shlex.quote(sys.executable),
    )
    options = ["-f", "-N", "shell", "-r", "n", "-l", "select=2:ncpus=2", "-l", "place=scatter"]
    options += ["-l", "walltime=00:10:00", "-j", "oe", "-o", str(user.folder / "shell.out")]
    command = ["qsub", *options, "--", "/bin/bash", "-c", script]
    job_id = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    yield Shell(user, job_id)
    subprocess.run(["qdel", job_id], check=True)


def here(*words):
    return ("submit", "count.py", "--here", *CPU, *words)


def test_a_run_takes_all_hosts_of_the_job_or_some_and_ends_with_its_own_code(shell):
    shell.user.write("gate", "")
    done = shell(*here("--json"))
    assert done.code == 0, done.err
    assert json.loads(done.out)["state"] == "done"
    run = shell.run()
    assert run.read_outline().resources.nodes == 2
    submission = run.read_submission()
    assert (submission.step, f"{submission.job_id}") == (True, shell.job_id.partition(".")[0])
    assert 0 < run.read_spec().plan.limit_min <= 10  # what the job has left

    done = shell(*here("--nodes", "1", "--gpus", "2"))
    assert done.code == 0, done.err
    assert "[rank 1] counted from 0" in done.out
    (shell.user.folder / "fails.py").write_text("raise SystemExit(3)")
    failed = shell("submit", "fails.py", "--here", *CPU)
    assert failed.code == 1, failed.err
    for words, said in (
        (("--nodes", "3"), ("resources.nodes is 3", "has 2", "qsub -I")),
        (("--gpus", "3"), ("takes 3 CPUs per node", "2 at most")),
        (("--partition", "workq"), ("--here and --partition contradict each other",)),
    ):
        refused = shell(*here(*words))
        assert refused.code == 2, refused.err
        assert all(text in refused.err for text in said), refused.err
    assert len(all_runs(shell.user.folder / "runs")) == 3
    assert shell.is_there()


def test_a_run_is_seen_and_cancelled_from_another_shell_and_the_job_stays(shell):
    command = shell.start(*here())
    run = shell.run()
    await_counting(shell.user, run)
    (status,) = json.loads(shell("status", run.id, "--json").out)
    cancelled = shell("cancel", run.id)
    assert status["state"] == "running"
    assert len(status["hosts"]) == 2
    assert cancelled.code == 0, cancelled.err
    assert shell.end(command).code == 130
    assert run.read_verdict().state == "cancelled"
    assert shell.is_there()


def test_outside_of_a_job_and_in_one_that_has_ended_it_is_refused(user, monkeypatch):
    user.write("count.py", COUNT)
    refused = user(*here())
    assert refused.returncode == 2
    assert "neither SLURM_JOB_ID nor LSB_JOBID nor PBS_JOBID is set" in refused.stderr
    monkeypatch.setenv("PBS_JOBID", "4711.pbs")
    refused = user(*here())
    assert refused.returncode == 2
    assert "job 4711.pbs, which PBS_JOBID names, cannot be used" in refused.stderr
    assert "qstat: " in refused.stderr
    assert not (user.folder / "runs").exists()
