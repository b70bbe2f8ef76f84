"""The run limit and what else LSF ends jobs for: what goes on does so where it stopped, and what is
over stays so."""

from cluster_user import job_id, log
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, count, end_counting
from trainings import CPU, TWO


def test_a_job_that_is_preempted_and_one_that_an_administrator_requeues_go_on(user):
    """SIGINT, and LSF's own brequeue."""
    run = count(user)
    user.cluster.preempt(job_id(run))
    await_counting(user, run, 1)
    user.cluster.requeue(job_id(run))
    end_counting(user, run, 2)
    kinds = [run.read_attempt_verdict(attempt).kind for attempt in range(2)]
    assert kinds == ["preempted", "preempted"]


def test_the_job_stops_before_a_limit_of_its_own(user):
    """A quarter of eight seconds before; LSF's own limit is rounded up to a minute."""
    run = count(user, "--time", "0:00:08")
    for rank in range(2):
        user.wait_for_line(run, "stopped", rank=rank)
    user.write("gate", "")  # the second attempt has no limit to fear
    end_counting(user, run)
    assert run.read_attempt_verdict(0).kind == "time_limit"
    job = user.cluster.job(job_id(run))
    assert (job.run_limit_min, job.attempts) == (1, 2)


def test_a_job_in_an_image_goes_on_after_its_limit_which_lsf_is_asked_for_outside(
    user,
    image,  # noqa: F811 - pytest's way
):
    run = count(user, *container(image))
    user.cluster.reach_limit(job_id(run))
    end_counting(user, run)
    assert run.read_attempt_verdict(0).kind == "time_limit"
    assert user.cluster.job(job_id(run)).attempts == 2
    assert run.read_spec().container.runtime == "charliecloud"


def test_where_brequeue_is_refused_the_run_goes_on_as_a_new_job(user):
    run = count(user)
    first = job_id(run)
    with user.cluster.refusing_requeues():
        user.cluster.reach_limit(first)
        user.cluster.wait_for(lambda: run.newest_attempt() == 1, 90)
        await_counting(user, run, 1)
    assert user.cluster.wait_for_end(first) == "EXIT"
    second = job_id(run)
    assert second != first
    found = user.status(run)
    assert (found["state"], found["job_id"]) == ("running", second)
    done = user("cancel", run.id)
    assert done.returncode == 0, done.stderr
    assert user.cluster.job_state(second) == "EXIT"
    assert run.read_verdict().state == "cancelled"
    assert "counted from" not in log(run)


def test_where_nothing_is_allowed_the_run_ends_with_75(user):
    waiting = user.start("submit", user.write("count.py", COUNT), *CPU, *TWO, "--wait")
    (run,) = user.cluster.wait_for(user.runs)
    await_counting(user, run)
    with (
        user.cluster.refusing_requeues(),
        user.cluster.refusing("bsub", "Closed. Job not submitted."),
    ):
        user.cluster.reach_limit(job_id(run))
        _, said = waiting.communicate(timeout=100)
    assert waiting.returncode == 75, said
    verdict = run.read_verdict()
    assert (verdict.kind, verdict.state) == ("time_limit", "preempted")
    assert "User permission denied" in verdict.message
    assert "Closed" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


def test_what_is_not_to_be_requeued_ends_with_75(user):
    run = count(user, "--no-requeue")
    user.cluster.reach_limit(job_id(run))
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.exit_code_of_run) == ("time_limit", 75)
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    job = user.cluster.job(job_id(run))
    assert (job.attempts, job.rerunnable) == (1, False)

    with user.cluster.refusing("bsub", "Closed. Job not submitted."):
        assert user("resume", run.id).returncode == 3
    assert run.read_verdict().exit_code_of_run == 75
    resumed = user("resume", run.id, "--set", "launch.requeue=true")
    assert resumed.returncode == 0, resumed.stderr
    await_counting(user, run, 1)
    again = user.cluster.job(job_id(run))
    assert (again.name, again.rerunnable) == (f"{run.id}.2", True)
    user.cluster.reach_limit(again.id)  # and it may be requeued as before
    end_counting(user, run, 2)
    assert [run.read_beginning(number).life for number in range(3)] == [0, 2, 3]


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
