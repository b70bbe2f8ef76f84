"""Preempted, requeued by an administrator, or without some of its nodes: a run goes on."""

import json
import os

import pytest
from cluster_user import CPU, TWO, job_id, log
from counting import COUNT, await_counting, count
from interruptions import hosts, lose_first_node, preempt

from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.requeue import Decision
from hpcdist.schedulers.slurm.slurm import decide, with_lost_node


def hang_second_node(user, run):
    """Its slurmd is gone: to the agents it is the same SIGTERM as that of a preemption."""
    name = hosts(user, run)[1]
    user.cluster.order("kill_daemon", name)
    user.cluster.give_up_node(name)
    return name


@pytest.mark.timeout(240)
def test_a_run_that_is_interrupted_again_and_again_and_loses_its_nodes_goes_on(user):
    interrupt = {
        preempt: ("preempted", "preempted"),  # without a grace period
        hang_second_node: ("agent_lost", "preempted"),
        lose_first_node: ("agent_lost", "failed"),
    }
    run = user.submit(user.write("count.py", COUNT), *CPU, *TWO, "--partition", "low")
    lost = []
    for attempt, happens in enumerate(interrupt):
        await_counting(user, run, attempt)
        lost.append(happens(user, run))
    await_counting(user, run, len(interrupt))
    assert not set(lost) & set(hosts(user, run))
    user.write("gate", "")
    user.done(run)

    verdicts = [run.read_attempt_verdict(attempt) for attempt in range(len(interrupt))]
    assert [(one.kind, one.state) for one in verdicts] == [*interrupt.values()]
    assert [one.node for one in verdicts] == [None, 1, 0]
    sentence = f"Slurm lost node 1 (host {lost[1]}: down, lost): stopped at step "
    assert verdicts[1].message.startswith(sentence)
    first, second = (log(run, rank).splitlines() for rank in range(2))
    assert first == second  # each time all ranks stopped at one step
    steps = [int(line.split()[-1]) for line in first]
    assert first == [f"stopped {steps[0]}", f"stopped {steps[1]}", f"counted from {steps[1]}"]
    assert steps[0] < steps[1] == steps[2]
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert len(row["attempts"]) == len(interrupt) + 1
    assert row["lost_time_s"] > 0


@pytest.mark.parametrize(
    ("said", "signal", "sequel", "cause"),
    [
        ("JobState=RUNNING Restarts=1", "SIGTERM", "leave", "requeue or preemption"),
        ("JobState=PENDING", "SIGTERM", "leave", "requeue or preemption"),
        ("JobState=PENDING PreemptTime=2026-11-21T13:36:39", "SIGTERM", "leave", "preemption"),
        ("JobState=RUNNING PreemptTime=2026-11-21T13:36:39", "SIGTERM", "requeue", "preemption"),
        ("JobState=COMPLETING Reason=TimeLimit", "SIGTERM", "requeue", "time_limit"),
        ("JobState=COMPLETING Reason=X ExitCode=0:9", "SIGTERM", "requeue", "kill of the script"),
        ("JobState=COMPLETING Reason=None ExitCode=0:9", "SIGTERM", "final", "cancel"),
        ("JobState=CANCELLED PreemptTime=None", "SIGTERM", "final", "cancel"),
        ("JobState=RUNNING Restarts=0", "SIGTERM", "final", "nothing"),
        ("JobState=RUNNING Restarts=0", "SIGUSR2", "requeue", "nothing"),
    ],
)
def test_why_slurm_ends_a_life_and_whether_another_follows(said, signal, sequel, cause):
    verdict = Verdict(kind="preempted", message="stopped", signal=signal)
    assert decide(verdict, said, life=0) == Decision(sequel=sequel, cause=cause)


def test_the_first_node_that_slurm_has_lost_is_named_with_its_state():
    decision = Decision(sequel="leave", cause="requeue or preemption")
    lost = with_lost_node(decision, "n3|idle*|none\nn2|down|lost\nn1|mixed|none\n", ["n1", "n3"])
    assert (lost.node, lost.host, lost.lost) == (1, "n3", "Slurm lost node 1 (host n3: idle*)")


def test_between_a_lifes_end_and_its_requeue_a_run_is_open_and_cancel_ends_its_job(user):
    """Also where squeue still says that jobs have failed which Slurm has requeued; and a resume
    that Slurm refuses changes nothing."""
    run = count(user)
    user.cluster.run("scontrol", "requeuehold", job_id(run))
    user.cluster.wait_for(lambda: run.read_attempt_verdict(0))
    user.cluster.wait_for_state(job_id(run), "PENDING")
    lags = "{} \"$@\" | sed -E 's/\\|(PENDING|RUNNING|COMPLETING)\\|/|FAILED|/'"
    with user.cluster.replacing("squeue", lags):
        status = user.status(run)
        assert status["state"] == "pending"
        assert "is to be started again" in status["reason"]
        ended = run.attempts_folder / "00000" / "verdict.json"
        os.utime(ended, (now := ended.stat().st_mtime - 150, now))
        assert user.status(run)["state"] == "failed"
        os.utime(ended)
        cancelled = user("cancel", run.id)
    assert cancelled.returncode == 0, cancelled.stderr
    verdict, job = run.read_verdict(), job_id(run)
    assert verdict.state == "cancelled"
    assert user.cluster.wait_for_end(job) == "CANCELLED"
    with user.cluster.replacing("sbatch", '[ "$1" != --version ] || exec {} "$@"; exit 1'):
        assert user("resume", run.id).returncode == 3
    assert (run.read_verdict(), run.read_job_id()) == (verdict, job)


def test_cancel_ends_a_job_that_slurm_requeued_after_the_run_had_ended(user):
    user.write("gate", "")
    run = user.done(user.submit(user.write("count.py", COUNT), *CPU, *TWO))
    user.cluster.run("scontrol", "requeuehold", job_id(run))
    user.cluster.wait_for_state(job_id(run), "PENDING")
    shown = user("status", run.id).stdout
    assert f"{run.id}: done" in shown
    assert "Slurm still has its job" in shown
    cancelled = user("cancel", run.id)
    assert "had ended already: done; its job, which Slurm still had, is cancelled" in (
        cancelled.stderr + cancelled.stdout
    )
    assert user.cluster.wait_for_end(job_id(run)) == "CANCELLED"
    assert run.read_verdict().state == "done"
