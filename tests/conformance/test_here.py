"""Runs in the job of a shell (salloc, bsub -Is, qsub -I), which has its two hosts already."""

import json
import shlex
import signal

import pytest
from cluster_user import CPU, User
from counting import COUNT, await_counting
from pbs_cluster import REAL

from hpcdist.runs.run import all_runs

HERE = ("submit", "count.py", "--here", *CPU)


class LsfShell:
    """In a job of two hosts: calls hpcdist in the environment that the job has."""

    command, variable = "bsub -Is", "LSB_JOBID"

    def __init__(self, user):
        self.user, file = user, user.folder / "job-environment"
        folder = shlex.quote(str(user.folder))
        self.job_id = self.begin(f"cd {folder}; env -0 > new; mv new {file.name}; exec sleep 600")
        user.cluster.wait_for(file.exists)
        words = file.read_text().rstrip("\0").split("\0")
        self.environment = user.cluster.environment | dict(word.split("=", 1) for word in words)
        self.environment["PATH"] = user.cluster.environment["PATH"]

    def begin(self, script):
        options = ("-n", "4", "-R", "span[ptile=2]", "-W", "10", "-J", "shell")
        return self.user.cluster.submit(script, *options)

    def close(self):
        """The job is there, whatever has become of the runs in it."""
        assert self.user.cluster.job_state(self.job_id) == "RUN"
        self.user.cluster.run("bkill", self.job_id)
        self.user.cluster.wait_for_end(self.job_id)

    def __call__(self, *words):
        return self.user(*words, env=self.environment)

    def start(self, *words):
        """Call hpcdist, and go on at once."""
        return self.user.start(*words, env=self.environment)


class PbsShell(LsfShell):
    command, variable = "qsub -I", "PBS_JOBID"

    def begin(self, script):
        output = str(self.user.folder / "shell.out")
        options = ["-f", "-N", "shell", "-r", "n", "-l", "select=2:ncpus=2", "-l", "place=scatter"]
        options += ["-l", "walltime=00:10:00", "-j", "oe", "-o", output]
        words = ("qsub", *options, "--", "/bin/bash", "-c", script)
        return self.user.cluster.run(*words).stdout.partition(".")[0]

    def close(self):
        assert self.user.cluster.jobs()[self.job_id]["job_state"] == "R"
        self.user.cluster.run("qdel", self.job_id)


class SlurmShell(LsfShell):
    """On the login node, as salloc leaves it."""

    command, variable = "salloc", "SLURM_JOB_ID"

    def __init__(self, user):
        self.user = user
        size = ("-N2", "--ntasks-per-node=2", "--gpus-per-node=2")
        said = user.cluster.run("salloc", "--no-shell", *size).stderr
        self.job_id = said.split("Granted job allocation ")[1].split()[0]
        self.environment = user.cluster.environment | {"SLURM_JOB_ID": self.job_id}

    def close(self):
        assert self.user.cluster.queue() == [self.job_id]
        self.user.cluster.run("scancel", self.job_id)


SHELLS = {"lsf": LsfShell, "pbs": PbsShell, "slurm": SlurmShell}


@pytest.fixture(params=SHELLS)
def scheduler(request):
    return request.param


@pytest.fixture
def user(request, scheduler, tmp_path):
    get = request.getfixturevalue
    if scheduler == "pbs":
        if REAL:
            pytest.skip("its commands are to be called on the job's first host")
        return User(get("pbs"), get("pbs_folder"), options=("--scheduler", "pbs"))
    if scheduler == "slurm":
        return User(get("slurm"), tmp_path)
    return User(get("lsf_like")(), tmp_path)


@pytest.fixture
def shell(user, scheduler):
    user.write("count.py", COUNT)
    shell = SHELLS[scheduler](user)
    yield shell
    shell.close()


def runs_of(shell):
    return shell.user.cluster.wait_for(lambda: [*all_runs(shell.user.folder / "runs")])


def test_runs_take_all_hosts_of_the_job_or_some_and_are_cancelled_and_the_job_stays(shell):
    command = shell.start(*HERE)
    (run,) = runs_of(shell)
    await_counting(shell.user, run)
    submission = run.read_submission()
    assert (submission.step, submission.job_id) == (True, shell.job_id)
    assert 0 < run.read_spec().plan.limit_min <= 10  # what the job has left
    (status,) = json.loads(shell("status", run.id, "--json").stdout)  # from another shell
    assert (status["state"], len(status["hosts"])) == ("running", 2)
    done = shell("cancel", run.id)
    assert done.returncode == 0, done.stderr
    with command:
        command.communicate(timeout=150)
    assert command.returncode == 130
    assert run.read_verdict().state == "cancelled"

    shell.user.write("gate", "")
    done = shell(*HERE, "--nodes", 1, "--gpus", 2)
    assert done.returncode == 0, done.stderr
    assert "[rank 1] counted from 0" in done.stdout
    refused = shell(*HERE, "--nodes", "3")
    assert refused.returncode == 2
    words = ("resources.nodes is 3", "has 2", shell.command)
    assert all(text in refused.stderr for text in words), refused.stderr


def test_in_a_job_that_has_ended_it_is_refused(user, scheduler):
    user.write("count.py", COUNT)
    variable = SHELLS[scheduler].variable
    refused = user(*HERE, env=user.cluster.environment | {variable: "4711"})
    assert refused.returncode == 2
    assert f"job 4711, which {variable} names, cannot be used" in refused.stderr
    assert not (user.folder / "runs").exists()


@pytest.mark.parametrize("scheduler", ["slurm"])
def test_a_step_ends_with_the_code_of_its_run_and_one_that_finds_no_room_can_be_given_up(shell):
    refused = shell.user(*HERE)
    assert refused.returncode == 2
    assert "neither SLURM_JOB_ID nor LSB_JOBID nor PBS_JOBID is set" in refused.stderr
    fails = shell.user.write("fails.py", "raise SystemExit(3)")
    assert shell("submit", fails, "--here", *CPU).returncode == 1
    first = shell.start(*HERE, "--gpus", 2)
    run = shell.user.cluster.wait_for(lambda: runs_of(shell)[1:])[0]
    await_counting(shell.user, run)
    second = shell.start(*HERE, "--nodes", 1)
    assert "waits for room in allocation" in second.stderr.readline() + second.stderr.readline()
    for command in (second, first):
        command.send_signal(signal.SIGINT)
        with command:
            command.communicate(timeout=150)
        assert command.returncode == 130
