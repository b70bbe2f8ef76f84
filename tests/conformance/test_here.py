"""Runs in the job of a shell (salloc, bsub -Is, qsub -I), which has its two hosts already."""

import json
import os
import shlex
import signal
import sys

import pytest
from cluster_user import CPU, User
from counting import COUNT, await_counting

from hpcdist.runs.run import all_runs

HERE = ("submit", "count.py", "--here", *CPU)
SCRIPT = """
cd {folder}
n=0
while :; do
    while [ ! -e call-$n ]; do sleep 0.05; done
    (
        {python} -m hpcdist $(cat call-$n) > out-$n 2> err-$n
        echo $? > code-$n.new && mv code-$n.new code-$n
    ) &
    n=$((n + 1))
done
"""


class LsfShell:
    """In a job of two hosts; calls hpcdist there, one call after the other."""

    command = "bsub -Is"

    def __init__(self, user):
        self.user, self.called = user, 0
        folder, python = shlex.quote(str(user.folder)), shlex.quote(sys.executable)
        self.job_id = self.begin(SCRIPT.format(folder=folder, python=python))

    def begin(self, script):
        options = ("-n", "4", "-R", "span[ptile=2]", "-W", "10", "-J", "shell")
        return self.user.cluster.submit(script, *options, cwd=self.user.folder)

    def close(self):
        """The job is there, whatever has become of the runs in it."""
        assert self.user.cluster.job_state(self.job_id) == "RUN"
        self.user.cluster.run("bkill", self.job_id)
        self.user.cluster.wait_for_end(self.job_id)

    def start(self, *words):
        """Call hpcdist; returns the number of the call."""
        number, self.called = self.called, self.called + 1
        self.user.write("call.new", " ".join(map(str, words)))
        (self.user.folder / "call.new").rename(self.user.folder / f"call-{number}")
        return number

    def end(self, number):
        """Wait for a call; returns its exit code and output."""
        code, out, err = (self.user.folder / f"{name}-{number}" for name in ("code", "out", "err"))
        self.user.cluster.wait_for(code.exists)
        return int(code.read_text()), out.read_text(), err.read_text()

    def __call__(self, *words):
        return self.end(self.start(*words))


class PbsShell(LsfShell):
    command = "qsub -I"

    def begin(self, script):
        output = str(self.user.folder / "shell.out")
        options = ["-f", "-N", "shell", "-r", "n", "-l", "select=2:ncpus=2", "-l", "place=scatter"]
        options += ["-l", "walltime=00:10:00", "-j", "oe", "-o", output]
        path = f"export PATH={shlex.quote(os.environ['PATH'])}\n"
        words = ("qsub", *options, "--", "/bin/bash", "-c", path + script)
        return self.user.cluster.run(*words).stdout.partition(".")[0]

    def close(self):
        assert self.user.cluster.jobs()[self.job_id]["job_state"] == "R"
        self.user.cluster.run("qdel", self.job_id)


class SlurmShell:
    """On the login node, as salloc leaves it."""

    command = "salloc"

    def __init__(self, user):
        self.user, self.commands = user, []
        size = ("-N2", "--ntasks-per-node=2", "--gpus-per-node=2")
        said = user.cluster.run("salloc", "--no-shell", *size).stderr
        self.job_id = said.split("Granted job allocation ")[1].split()[0]

    def close(self):
        assert self.user.cluster.queue() == [self.job_id]
        self.user.cluster.run("scancel", self.job_id)

    def start(self, *words):
        environment = self.user.cluster.environment | {"SLURM_JOB_ID": self.job_id}
        self.commands.append(self.user.start(*words, env=environment))
        return len(self.commands) - 1

    def end(self, number):
        with self.commands[number] as command:
            out, err = command.communicate(timeout=150)
        return command.returncode, out, err

    def __call__(self, *words):
        return self.end(self.start(*words))


SHELLS = {"lsf": LsfShell, "pbs": PbsShell, "slurm": SlurmShell}
VARIABLES = {"lsf": "LSB_JOBID", "pbs": "PBS_JOBID", "slurm": "SLURM_JOB_ID"}


@pytest.fixture(params=SHELLS)
def scheduler(request):
    return request.param


@pytest.fixture
def user(request, scheduler, tmp_path):
    get = request.getfixturevalue
    if scheduler == "pbs":
        return User(get("pbs"), get("pbs_folder"), options=("--scheduler", "pbs"))
    if scheduler == "slurm":
        return User(get("slurm"), tmp_path)
    return User(get("lsf_like")(kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)


@pytest.fixture
def shell(user, scheduler):
    user.write("count.py", COUNT)
    shell = SHELLS[scheduler](user)
    yield shell
    shell.close()


def test_a_run_takes_all_hosts_of_the_job_or_some_and_ends_with_its_own_code(shell):
    shell.user.write("gate", "")
    code, out, err = shell(*HERE, "--json")
    assert (code, json.loads(out)["state"]) == (0, "done"), err
    (run,) = all_runs(shell.user.folder / "runs")
    assert run.spec.outline.resources.nodes == 2
    submission = run.read_submission()
    assert (submission.step, submission.job_id) == (True, shell.job_id)
    assert 0 < run.read_spec().plan.limit_min <= 10  # what the job has left
    code, out, err = shell(*HERE, "--nodes", 1, "--gpus", 2)
    assert code == 0, err
    assert "[rank 1] counted from 0" in out
    shell.user.write("fails.py", "raise SystemExit(3)")
    assert shell("submit", "fails.py", "--here", *CPU)[0] == 1
    for words, said in (
        (("--nodes", "3"), ("resources.nodes is 3", "has 2", shell.command)),
        (("--partition", "workq"), ("--here and --partition contradict each other",)),
    ):
        code, _, err = shell(*HERE, *words)
        assert code == 2, err
        assert all(text in err for text in said), err
    assert len(all_runs(shell.user.folder / "runs")) == 3


def test_a_run_is_seen_and_cancelled_from_another_shell_and_the_job_stays(shell):
    command = shell.start(*HERE)
    (run,) = shell.user.cluster.wait_for(lambda: [*all_runs(shell.user.folder / "runs")])
    await_counting(shell.user, run)
    (status,) = json.loads(shell("status", run.id, "--json")[1])
    code, _, err = shell("cancel", run.id)
    assert (status["state"], len(status["hosts"])) == ("running", 2)
    assert code == 0, err
    assert shell.end(command)[0] == 130
    assert run.read_verdict().state == "cancelled"


def test_outside_of_a_job_and_in_one_that_has_ended_it_is_refused(user, scheduler):
    user.write("count.py", COUNT)
    refused = user(*HERE)
    assert refused.returncode == 2
    assert "neither SLURM_JOB_ID nor LSB_JOBID nor PBS_JOBID is set" in refused.stderr
    variable = VARIABLES[scheduler]
    refused = user(*HERE, env=user.cluster.environment | {variable: "4711"})
    assert refused.returncode == 2
    assert f"job 4711, which {variable} names, cannot be used" in refused.stderr
    assert not (user.folder / "runs").exists()


@pytest.mark.parametrize("scheduler", ["slurm"])
def test_a_step_that_finds_no_room_waits_and_can_be_given_up(shell):
    first = shell.start(*HERE, "--gpus", 2)
    (run,) = shell.user.cluster.wait_for(lambda: [*all_runs(shell.user.folder / "runs")])
    await_counting(shell.user, run)
    second = shell.start(*HERE, "--nodes", 1)
    waits = shell.commands[second]
    assert "waits for room in allocation" in waits.stderr.readline() + waits.stderr.readline()
    for number in (second, first):
        shell.commands[number].send_signal(signal.SIGINT)
        assert shell.end(number)[0] == 130
    states = [run.read_verdict().state for run in all_runs(shell.user.folder / "runs")]
    assert states == ["cancelled", "cancelled"]
