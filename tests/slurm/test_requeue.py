"""Preempted, requeued by an administrator, warned, or without some of its nodes: a run goes on."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from cluster_user import CPU, TWO, agent_pid, events, job_id, log
from counting import COUNT, await_counting, count, end_counting
from interruptions import hosts, kill_agent, lose_first_node, lose_second_node, preempt, warn

SAVES_EVERY_STEP = """\
import os, sys, time
from pathlib import Path
from hpcdist import record
saved = Path(os.environ["HPCDIST_RUN_DIR"], f"saved-{os.environ['RANK']}")
step = int(saved.read_text()) if saved.exists() else 0
print("begun", step, flush=True)
record.start(first_step=step)
while not Path("gate").exists():
    time.sleep(0.02)
    step += 1
    record.step(samples=1)
    saved.with_suffix(".new").write_text(str(step))
    saved.with_suffix(".new").rename(saved)
    if record.should_stop():
        print("stopped", step, flush=True)
        sys.exit(record.EXIT_STOPPED)
"""


@pytest.mark.timeout(240)
def test_a_run_that_is_interrupted_again_and_again_and_loses_its_nodes_goes_on(user):
    interrupt = {
        preempt: "preempted",  # without a grace period
        warn: "time_limit",
        kill_agent: "agent_lost",
        lose_second_node: "agent_lost",
        lose_first_node: "agent_lost",
    }
    run = user.submit(user.write("saves.py", SAVES_EVERY_STEP), *CPU, *TWO, "--partition", "low")
    lost = {}
    for attempt, happens in enumerate(interrupt):
        await_counting(user, run, attempt)
        wait_for_progress(user, run)
        lost[attempt] = happens(user, run)
    await_counting(user, run, len(interrupt))
    assert not set(filter(None, lost.values())) & set(hosts(user, run))
    user.write("gate", "")
    user.done(run)

    verdicts = [run.read_attempt_verdict(attempt) for attempt in range(len(interrupt))]
    assert [verdict.kind for verdict in verdicts] == [*interrupt.values()]
    for attempt, node in ((3, 1), (4, 0)):
        message = verdicts[attempt].message
        assert lost[attempt] in message or f"node {node}" in message
    begun, stopped = [
        [
            [int(step) for step in re.findall(rf"^{word} (\d+)$", log(run, rank), re.MULTILINE)]
            for rank in range(2)
        ]
        for word in ("begun", "stopped")
    ]
    assert all(steps == sorted(set(steps)) for steps in begun)
    assert stopped[0] == stopped[1]  # each time all ranks stopped at one step
    assert stopped[0]
    assert set(stopped[0]) <= set(begun[0]) & set(begun[1])
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert len(row["attempts"]) == len(begun[0]) == len(interrupt) + 1
    assert row["lost_time_s"] > 0


def wait_for_progress(user, run):
    """Until the newest attempt has saved a step of its own: several in vain would be the last."""

    def saved():
        return [file.read_text() for file in run.path.glob("saved-?")]

    before = saved()
    user.cluster.wait_for(lambda: len(now := saved()) == 2 and not set(now) & set(before))


def test_the_loss_of_the_only_node_is_told_by_the_next_life(user):
    script = "import os, time\ntime.sleep(0 if 'SLURM_RESTART_COUNT' in os.environ else 600)\n"
    run = user.submit(user.write("first_sleeps.py", script))
    user.cluster.wait_for(run.event_file(0).exists)
    (name,) = hosts(user, run)
    user.cluster.kill_node(name)
    user.cluster.give_up_node(name)
    user.done(run, 120)
    lost = run.read_attempt_verdict(0)
    assert (lost.kind, lost.host) == ("agent_lost", name)
    assert f"node 0 (host {name})" in lost.message


def test_a_node_that_slurm_has_lost_is_named_where_its_agent_went_on(user):
    """As where slurmd hangs: to the agents it is the same SIGTERM as that of a preemption."""
    run = count(user)
    name = hosts(user, run)[1]
    user.cluster.kill_daemon(name)
    user.cluster.give_up_node(name)
    lost = user.cluster.wait_for(lambda: run.read_attempt_verdict(0))
    await_counting(user, run, 1)
    user.write("gate", "")
    user.done(run)
    assert (lost.kind, lost.state, lost.node, lost.host) == ("agent_lost", "preempted", 1, name)
    assert lost.message.startswith(f"Slurm lost node 1 (host {name}: down, lost): stopped at step ")
    assert name not in hosts(user, run)


LATE_ON_NODE_1 = """\
import os, time
if os.environ.get("SLURM_PROCID") == "1" and "SLURM_RESTART_COUNT" not in os.environ:
    time.sleep(600)
"""


def test_a_run_whose_daemons_died_begins_elsewhere_while_its_first_leader_still_waits(user):
    """That leader would take a node of the later life for its own, by what it left in the run
    directory."""
    user.write("sitecustomize.py", LATE_ON_NODE_1)
    setup = json.dumps([f"export PYTHONPATH={user.folder}:${{PYTHONPATH:-}}"])
    user.write("hpcdist.yaml", f"clusters: {{lab: {{setup: {setup}}}}}\n")
    user.write("gate", "")
    run = user.submit(user.write("count.py", COUNT), *CPU, *TWO)
    user.cluster.wait_for(run.meeting_file.exists)
    assert "waits for  the agent of node 1 to join" in user("status", run.id).stdout
    former, names = agent_pid(run, 0), hosts(user, run)
    for name in names:
        user.cluster.kill_daemon(name)
    for name in names:
        user.cluster.give_up_node(name)
    try:
        user.done(run)
        user.cluster.wait_for(lambda: not Path(f"/proc/{former}").exists())
    finally:
        for name in names:
            user.cluster.kill_node(name)  # what is left there
    assert not set(names) & {one["host"] for rank in range(2) for one in starts(run, rank)}


def starts(run, rank):
    return events(run, "start", rank=rank)


def test_a_resume_that_slurm_refuses_changes_nothing_and_one_may_ask_for_other_resources(user):
    run = count(user, "--no-requeue")
    warn(user, run)
    verdict = user.verdict(run)
    user.cluster.wait_for_end(first := job_id(run))
    environment = user.cluster.environment
    real = shutil.which("sbatch", path=environment["PATH"])
    sbatch = user.folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        f'#!/bin/sh\n[ "$1" != --version ] || exec {real} --version\n'
        "echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1\n"
    )
    sbatch.chmod(0o755)
    path = f"{sbatch.parent}:{environment['PATH']}"
    refused = user("resume", run.id, env=environment | {"PATH": path})
    assert refused.returncode == 3, refused.stderr
    assert (run.read_verdict(), run.read_job_id()) == (verdict, first)
    done = user("resume", run.id, "--time", "0:10:00")
    assert done.returncode == 0, done.stderr
    running = user("resume", run.id)
    assert running.returncode == 2, running.stderr
    end_counting(user, run)
    assert run.read_beginning(1).life == 1
    assert run.read_spec().job["resources"]["time_limit_min"] == 10


@pytest.fixture
def squeue_lags(user, tmp_path):
    """Environment in which squeue still says that jobs have failed which Slurm has requeued."""
    before = user.cluster.environment
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(
        f'#!/bin/bash\n{shutil.which("squeue", path=before["PATH"])} "$@" |'
        " sed -E 's/\\|(PENDING|RUNNING|COMPLETING)\\|/|FAILED|/'\n"
    )
    squeue.chmod(0o755)
    return before | {"PATH": f"{squeue.parent}{os.pathsep}{before['PATH']}"}


def test_between_a_lifes_end_and_its_requeue_a_run_is_open_and_cancel_ends_its_job(
    user, squeue_lags
):
    run = count(user)
    user.cluster.run("scontrol", "requeuehold", job_id(run))
    user.cluster.wait_for(lambda: run.read_attempt_verdict(0))
    user.cluster.wait_for_state(job_id(run), "PENDING")
    (status,) = json.loads(user("status", run.id, "--json", env=squeue_lags).stdout)
    assert status["state"] == "pending"
    assert "is to be started again" in status["reason"]
    ended = run.attempts_folder / "00000" / "verdict.json"
    os.utime(ended, (now := ended.stat().st_mtime - 150, now))
    (status,) = json.loads(user("status", run.id, "--json", env=squeue_lags).stdout)
    assert status["state"] == "failed"
    os.utime(ended)
    cancelled = user("cancel", run.id, env=squeue_lags)
    assert cancelled.returncode == 0, cancelled.stderr
    assert run.cancel_file.exists()
    assert run.read_verdict().state == "cancelled"
    assert user.cluster.wait_for_end(job_id(run)) == "CANCELLED"


def test_cancel_ends_a_job_that_slurm_requeued_after_the_run_had_ended(user):
    user.write("gate", "")
    run = user.done(user.submit(user.write("count.py", COUNT), *CPU, *TWO))
    user.cluster.run("scontrol", "requeuehold", job_id(run))
    user.cluster.wait_for_state(job_id(run), "PENDING")
    shown = user("status", run.id).stdout
    assert f"{run.id}: done" in shown
    assert "Slurm still has its job" in shown
    cancelled = user("cancel", run.id)
    assert cancelled.returncode == 0
    assert "had ended already: done; its job, which Slurm still had, is cancelled" in (
        cancelled.stderr + cancelled.stdout
    )
    assert user.cluster.wait_for_end(job_id(run)) == "CANCELLED"
    assert run.read_verdict().state == "done"
