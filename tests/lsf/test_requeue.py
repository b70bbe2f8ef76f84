"""The run limit and what else LSF ends jobs for: what goes on does so where it stopped, and what is
over stays so."""

from cluster_user import CPU, TWO, job_id
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, count, end_counting


def test_a_job_that_is_preempted_and_one_that_an_administrator_requeues_go_on(user):
    """SIGINT, and LSF's own brequeue."""
    run = count(user)
    user.cluster.preempt(job_id(run))
    await_counting(user, run, 1)
    user.cluster.requeue(job_id(run))
    end_counting(user, run, 2)
    kinds = [run.read_attempt_verdict(attempt).kind for attempt in range(2)]
    assert kinds == ["preempted", "preempted"]


def test_where_brequeue_is_refused_the_run_ends_with_75(user):
    waiting = user.start("submit", user.write("count.py", COUNT), *CPU, *TWO, "--wait")
    (run,) = user.cluster.wait_for(user.runs)
    await_counting(user, run)
    with user.cluster.refusing_requeues():
        user.cluster.reach_limit(job_id(run))
        _, said = waiting.communicate(timeout=100)
    assert waiting.returncode == 75, said
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state) == ("time_limit", "preempted")
    assert "User permission denied" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


DEAF = """\
import signal, time
for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    time.sleep(1)
"""


def test_a_script_that_does_not_stop_is_killed_at_the_limit_and_says_so(hasty_user):
    user = hasty_user
    run = user.submit(user.write("deaf.py", DEAF), *CPU, *TWO)
    for rank in range(2):
        user.wait_for_line(run, "deaf", rank=rank)
    user.cluster.reach_limit(job_id(run))
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    found = user.status(run)
    assert found["state"] == "failed"
    assert "run limit" in found["reason"], found
    assert user.cluster.job(job_id(run)).attempts == 1
