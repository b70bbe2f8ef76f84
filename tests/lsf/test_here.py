"""Runs in the job of a shell (bsub -Is), which has its hosts already."""

import json
import shlex
import sys

import pytest
from cluster_user import CPU
from counting import COUNT, await_counting

from hpcdist.runs.run import all_runs

HERE = ("submit", "count.py", "--here", *CPU)


class Shell:
    """In a job of two hosts; calls hpcdist there, one call after the other."""

    def __init__(self, user):
        self.user, self.called = user, 0
        script = f"""
            cd {shlex.quote(str(user.folder))}
            n=0
            while :; do
                while [ ! -e call-$n ]; do sleep 0.05; done
                (
                    {sys.executable} -m hpcdist $(cat call-$n) > out-$n 2> err-$n
                    echo $? > code-$n.new && mv code-$n.new code-$n
                ) &
                n=$((n + 1))
            done
        """
        options = ("-n", "4", "-R", "span[ptile=2]", "-W", "10", "-J", "shell")
        self.job_id = user.cluster.submit(script, *options, cwd=user.folder)

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


@pytest.fixture
def shell(user):
    user.write("count.py", COUNT)
    shell = Shell(user)
    yield shell
    assert user.cluster.job_state(shell.job_id) == "RUN"
    user.cluster.run("bkill", shell.job_id)
    user.cluster.wait_for_end(shell.job_id)


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
    code, _, err = shell(*HERE, "--nodes", 3)
    assert code == 2
    assert "resources.nodes is 3" in err
    assert "bsub -Is" in err


def test_a_run_is_cancelled_from_another_shell_and_the_job_stays(shell):
    command = shell.start(*HERE)
    (run,) = shell.user.cluster.wait_for(lambda: [*all_runs(shell.user.folder / "runs")])
    await_counting(shell.user, run)
    code, _, err = shell("cancel", run.id)
    assert code == 0, err
    assert shell.end(command)[0] == 130
    assert run.read_verdict().state == "cancelled"


def test_outside_of_a_job_it_is_refused_with_the_command_that_gets_one(user):
    user.write("count.py", COUNT)
    refused = user(*HERE)
    assert refused.returncode == 2
    assert "bsub -Is" in refused.stderr
