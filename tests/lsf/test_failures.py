"""What fails in a job on LSF, what the verdict says of it, and what goes on all the same."""

import os
import signal

import pytest
from cluster_user import User, agent_pid, job_id, log
from counting import await_counting, count
from trainings import CPU, TWO

from hpcdist.monitor.follow import again_sentence

WORK = """\
import os, time
from pathlib import Path
if os.environ["RANK"] == "1":
    Path("pid.new").write_text(str(os.getpid()))
    Path("pid.new").rename("pid")
    raise ValueError("the second rank cannot go on")
while not Path("pid").exists() or Path("/proc", Path("pid").read_text()).exists():
    time.sleep(0.005)
raise ConnectionResetError("the other rank is gone")
"""
WAIT = """\
import os, time
print("waits", os.getpid(), flush=True)
time.sleep(600)
"""


def waiting(user, *options):
    """A run whose two ranks are there."""
    run = user.submit(user.write("wait.py", WAIT), *CPU, *TWO, *options)
    for rank in range(2):
        user.wait_for_line(run, "waits", rank=rank)
    return run


def test_the_rank_that_raised_is_named_and_not_those_that_waited_for_it(user):
    done = user("submit", user.write("work.py", WORK), *CPU, *TWO, "--wait")
    assert done.returncode == 1
    (run,) = user.runs()
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.first.rank, verdict.first.node) == ("exception", 1, 1)
    assert (verdict.first.report.exception, verdict.first.host) == ("ValueError", "hostB")
    assert "the second rank cannot go on" in verdict.message
    assert "hostB" in done.stderr
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    job = user.cluster.job(job_id(run))
    assert (job.exit_code, job.attempts) == (1, 1)


def test_a_rank_that_is_killed_is_named(user):
    run = waiting(user)
    os.kill(int(log(run, 1).split()[1]), signal.SIGKILL)
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.first.rank, verdict.first.signal) == ("signal", 1, "SIGKILL")
    assert verdict.first.host == "hostB"
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_is_killed_is_named_with_its_node(user, node):
    run = waiting(user, "--no-requeue")
    os.kill(agent_pid(run, node), signal.SIGKILL)
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.node) == ("agent_lost", node)
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


def test_a_run_that_loses_a_host_and_then_its_first_goes_on_elsewhere(user):
    """LSF gives it the lost host once more, which it still calls ok; then the request leaves that
    host out. The first host's loss is LSF's to answer (-r)."""
    site = user.cluster
    run = count(user)
    former = job_id(run)
    assert site.job(former).hosts == ["hostA", "hostB"]
    site.lose_host("hostB")
    await_counting(user, run, 1)
    assert site.job(job_id(run)).hosts == ["hostA", "hostC"]
    assert site.job(former).attempts == 2
    told = again_sentence(run.read_attempt_verdict(1), most_restarts=0)  # by status, as it waits
    assert "it starts again without hostB, lost at" in told
    assert told.endswith("when the scheduler restarts the job")
    site.lose_host("hostA")
    await_counting(user, run, 2)
    assert site.job(job_id(run)).hosts == ["hostC", "hostD"]
    user.write("gate", "")
    user.done(run)
    assert run.newest_attempt() == 3
    lost = [run.read_attempt_verdict(attempt) for attempt in range(3)]
    assert [one.kind for one in lost] == ["agent_lost", "launch", "agent_lost"]
    assert ["hostB" in one.message for one in lost] == [True, True, False]


def test_a_job_whose_only_host_is_lost_says_so_as_long_as_lsf_cannot_reach_it(lsf_like, tmp_path):
    user = User(lsf_like(loss_known_s=0.0), tmp_path)
    run = user.submit(user.write("wait.py", WAIT), *CPU, "--no-requeue")
    user.wait_for_line(run, "waits")
    user.cluster.lose_host("hostA")
    assert "LSF cannot reach its first host (UNKWN)" in user("status", run.id).stdout
    user.cluster.return_host("hostA")
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert user.status(run)["state"] == "failed"
