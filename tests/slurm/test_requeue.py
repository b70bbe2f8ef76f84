"""Preempted, requeued by an administrator, or warned: what is trained is bit for bit what it would
have been."""

import pytest
from cluster_user import User, events, job_id, log
from counting import COUNT, await_counting, count
from interruptions import kill_agent, requeue, warn
from trainings import CPU, end_well, stopped_steps, train

from hpcdist.runs.run import Run


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@pytest.mark.timeout(240)
def test_a_training_that_is_interrupted_again_and_again_goes_on_exactly(user, uninterrupted):
    run = train(user)
    for attempt, interrupt in enumerate((requeue, warn, kill_agent), 1):
        interrupt(user, run)
        user.cluster.wait_for(lambda n=attempt: len(events(run, "resume")) == n)
    end_well(user, run, uninterrupted, attempts=4)
    stops, resumed = stopped_steps(run)
    assert stops == set(resumed[:2])  # every rank stopped at one step, and went on from there
    kinds = [run.read_attempt_verdict(attempt).kind for attempt in range(3)]
    assert kinds == ["preempted", "time_limit", "agent_lost"]


@pytest.mark.timeout(240)
def test_a_preempted_training_goes_on_exactly_with_a_grace_period_and_without(user, uninterrupted):
    run = train(user, "--partition", "low")
    try:
        for attempt, grace_s in enumerate((60, 0), 1):
            user.cluster.run("scontrol", "update", "PartitionName=low", f"GraceTime={grace_s}")
            urgent = user.cluster.submit("sleep 2", "--partition=high", "--nodes=4", "--exclusive")
            user.cluster.wait_for_state(urgent, "RUNNING", "COMPLETED", limit_s=90)
            user.cluster.wait_for(lambda n=attempt: len(events(run, "resume")) == n)
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=low", "GraceTime=0")
    end_well(user, run, uninterrupted, attempts=3)
    stops, resumed = stopped_steps(run)
    # Within the grace period every rank stopped at one step, and went on from there.
    assert resumed[0] in stops


def test_a_part_of_a_sweep_is_requeued_by_itself(user):
    """The last element's own job id is that of the whole array."""
    script = user.write("count.py", COUNT)
    done = user("submit", script, "--repeat", 3, *CPU)
    assert done.returncode == 0, done.stderr
    runs = [Run(path) for path in sorted(user.folder.glob("runs/*-00?"))]
    for run in runs:
        await_counting(user, run, num_ranks=1)
    last = max(runs, key=lambda run: int(job_id(run).partition("_")[2]))
    warn(user, last)
    await_counting(user, last, 1, num_ranks=1)
    user.write("gate", "")
    for run in runs:
        user.done(run)
    assert [run.newest_attempt() for run in runs] == [int(run is last) for run in runs]


def test_without_requeue_a_warned_run_ends_with_75(user):
    run = count(user, "--no-requeue")
    warn(user, run)
    verdict = user.verdict(run)
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)
    assert user.cluster.wait_for_end(job_id(run)) == "FAILED"
    for rank in range(2):
        assert log(run, rank) == f"stopped {verdict.step}\n"


ONE_STEP = """\
import time
from hpcdist import record
record.step(samples=1)
print("up", flush=True)
time.sleep(600)
"""


def test_two_starts_without_progress_are_enough(user):
    run = user.submit(user.write("one_step.py", ONE_STEP))
    for start in range(3):  # the first recorded a step that none had before
        user.cluster.wait_for(lambda count=start: is_up(run, count))
        requeue(user, run)
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.state) == ("no_progress", "failed")
    assert "2 starts" in verdict.message
    user.cluster.wait_for_end(job_id(run))


def is_up(run, attempt):
    """Its rank has said so."""
    path = run.log_file(0, attempt)
    return path.exists() and "up" in path.read_text()
