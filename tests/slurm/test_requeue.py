"""Stopped and started again: at the time limit, by preemption, by an administrator, after the loss
of a node. What is trained is bit for bit what it would have been."""

import json
import os
import signal

import pytest
import torch
from user import User, agent_pid, events, expand, job_id, log

from hpcdist.run import Run

TRAIN = (
    "ddp",
    *("--set", "train.epochs=24"),
    *("--set", "train.batch_size=16"),
    *("--set", "train.evaluate_every_epochs=0"),
    *("--set", "checkpoint.every_epochs=2"),
    *("--set", "launch.device=cpu"),
)
TWO = ("--nodes", 2, "--gpus", 1)


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@pytest.fixture(scope="module")
def uninterrupted(cluster_of, tmp_path_factory):
    """What the training ends with when nothing comes in between."""
    user = User(cluster_of("loopback"), tmp_path_factory.mktemp("uninterrupted"))
    return last_checkpoint(user.done(user.submit(*TRAIN, *TWO)))


def last_checkpoint(run):
    path = max(run.checkpoints_folder.glob("step-*.pt"))
    return torch.load(path, map_location="cpu", weights_only=True)


def assert_equal(found, expected):
    assert found["identity"] == expected["identity"]
    assert found["position"] == expected["position"]
    for part in ("model", "optimizer", "rng"):
        assert flat(found[part]) == flat(expected[part])


def flat(value):
    """Plain values that compare bit for bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.shape, value.numpy().tobytes())
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [flat(one) for one in value]
    return value


def train(user, *options):
    """Submit the training, and wait until it is well under way."""
    run = user.submit(*TRAIN, *TWO, *options)
    user.cluster.wait_for(lambda: len(events(run, "epoch")) >= 4, 60)
    return run


def end_well(user, run, expected, *, attempts=2):
    user.done(run, 120)
    assert run.newest_attempt() + 1 == attempts
    resumed = events(run, "resume")
    assert len(resumed) == attempts - 1
    assert all(one["exact"] for one in resumed)
    assert_equal(last_checkpoint(run), expected)
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert len(row["attempts"]) == attempts
    assert row["lost_time_s"] > 0


def stopped_steps(run):
    """The step at which each rank stopped, by attempt."""
    return [
        {one["step"] for rank in range(2) for one in events(run, "stop", rank=rank)},
        [one["step"] for one in events(run, "resume")],
    ]


def requeue(user, run):
    user.cluster.run("scontrol", "requeue", job_id(run))


def warn(user, run):
    user.cluster.run("scancel", "--signal=USR2", job_id(run))


@pytest.mark.parametrize("interrupt", [requeue, warn], ids=["scontrol requeue", "USR2"])
def test_a_training_that_is_requeued_goes_on_exactly(user, uninterrupted, interrupt):
    run = train(user)
    interrupt(user, run)
    end_well(user, run, uninterrupted)
    stops, resumed = stopped_steps(run)
    assert stops == set(resumed)  # every rank stopped at one step, and went on from there


def test_a_preempted_training_goes_on_exactly(user, uninterrupted):
    run = train(user, "--partition", "low")
    urgent = user.cluster.submit("sleep 2", "--partition=high", "--nodes=4", "--exclusive")
    user.cluster.wait_for_state(urgent, "RUNNING", "COMPLETED")
    end_well(user, run, uninterrupted)


def test_a_preempted_training_uses_its_grace_period(user, uninterrupted):
    user.cluster.run("scontrol", "update", "PartitionName=low", "GraceTime=60")
    try:
        run = train(user, "--partition", "low")
        urgent = user.cluster.submit("sleep 2", "--partition=high", "--nodes=4", "--exclusive")
        user.cluster.wait_for_state(urgent, "RUNNING", "COMPLETED")
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=low", "GraceTime=0")
    end_well(user, run, uninterrupted)
    stops, resumed = stopped_steps(run)
    assert stops == set(resumed)


COUNT = """\
import os, sys, time
from pathlib import Path
from hpcdist import record
saved = Path(os.environ["HPCDIST_RUN_DIR"], f"saved-{os.environ['RANK']}")
begin = int(saved.read_text()) if saved.exists() else 0
record.start(first_step=begin)
for step in range(begin + 1, 301):
    time.sleep(0.1)
    record.step(samples=1)
    if record.should_stop():
        saved.write_text(str(step))
        print("stopped", step, flush=True)
        sys.exit(record.EXIT_STOPPED)
print("counted from", begin, flush=True)
"""


@pytest.mark.timeout(240)
def test_a_job_goes_on_after_its_time_limit(user):
    """Slurm looks at limits every 30 s: of a minute's limit it warns after less than half."""
    run = user.submit(user.write("count.py", COUNT), *TWO, "--time", "1")
    user.done(run, 200)
    first = run.read_attempt_verdict(0)
    assert (first.kind, first.exit_code_of_run) == ("time_limit", 75)
    stopped = [int((run.path / f"saved-{rank}").read_text()) for rank in range(2)]
    assert stopped[0] == stopped[1]
    for rank in range(2):
        assert f"stopped {stopped[0]}" in log(run, rank)
        assert f"counted from {stopped[0]}" in log(run, rank)


def test_a_part_of_a_sweep_is_requeued_by_itself(user):
    """The last element's own job id is that of the whole array."""
    script = user.write("count.py", COUNT.replace("301", "151"))
    done = user("submit", script, "--repeat", 3)
    assert done.returncode == 0, done.stderr
    runs = [Run(path) for path in sorted(user.folder.glob("runs/*-00?"))]
    for run in runs:
        user.cluster.wait_for(lambda run=run: events(run, "steps"), 60)
    last = max(runs, key=lambda run: int(job_id(run).partition("_")[2]))
    warn(user, last)
    for run in runs:
        user.done(run)
    assert [run.newest_attempt() for run in runs] == [int(run is last) for run in runs]


DEAF = """\
import signal, time
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1)
"""
SLEEP = "import time\ntime.sleep(600)\n"


@pytest.mark.timeout(240)
def test_scripts_that_do_not_stop_end_at_the_time_limit_and_say_so(user):
    runs = [
        user.submit(user.write(name, text), *options, "--time", "1")
        for name, text, options in (("deaf.py", DEAF, TWO), ("sleep.py", SLEEP, ()))
    ]
    for run in runs:
        verdict = user.verdict(run, 180)
        assert (verdict.kind, verdict.state, verdict.exit_code_of_run) == (
            "time_limit",
            "failed",
            1,
        ), verdict.message
        assert verdict.message.startswith("the time limit was reached: ended by SIGTERM")
        assert user.cluster.wait_for_end(job_id(run)) == "TIMEOUT"
        assert run.newest_attempt() == 0


def test_without_requeue_a_warned_training_ends_with_75(user):
    run = train(user, "--no-requeue")
    warn(user, run)
    verdict = user.verdict(run)
    assert (verdict.state, verdict.exit_code_of_run) == ("preempted", 75)
    assert user.cluster.wait_for_end(job_id(run)) == "FAILED"
    (stop,) = {one["step"] for one in events(run, "stop")}
    assert last_checkpoint(run)["position"]["step"] == stop


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
        user.cluster.wait_for(lambda count=start: is_up(run, count), 60)
        requeue(user, run)
    verdict = user.verdict(run)
    assert (verdict.kind, verdict.state) == ("no_progress", "failed")
    assert "2 starts" in verdict.message
    user.cluster.wait_for_end(job_id(run))


def is_up(run, attempt):
    """Its rank has said so."""
    path = run.log_file(0, attempt)
    return path.exists() and "up" in path.read_text()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("node", [0, 1])
def test_a_training_goes_on_exactly_after_the_loss_of_a_node(user, uninterrupted, node):
    run = train(user)
    name = hosts(user, run)[node]
    user.cluster.kill_node(name)
    user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
    end_well(user, run, uninterrupted)
    lost = run.read_attempt_verdict(0)
    assert lost.kind == "agent_lost"
    assert name in lost.message or f"node {node}" in lost.message
    assert name not in hosts(user, run)
    user.cluster.revive_node(name)


@pytest.mark.timeout(240)
def test_the_loss_of_the_only_node_is_told_by_the_next_life(user):
    script = "import os, time\ntime.sleep(0 if 'SLURM_RESTART_COUNT' in os.environ else 600)\n"
    run = user.submit(user.write("first_sleeps.py", script))
    user.cluster.wait_for(lambda: run.event_file(0).exists(), 60)
    (name,) = hosts(user, run)
    user.cluster.kill_node(name)
    user.done(run, 120)
    lost = run.read_attempt_verdict(0)
    assert (lost.kind, lost.host) == ("agent_lost", name)
    assert f"node 0 (host {name})" in lost.message
    user.cluster.revive_node(name)


def hosts(user, run):
    shown = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (nodes,) = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeList=")]
    return expand(nodes)


def test_a_killed_agent_costs_an_attempt_and_no_more(user, uninterrupted):
    run = train(user)
    os.kill(agent_pid(run, 1), signal.SIGKILL)
    user.cluster.wait_for(lambda: run.newest_attempt() == 1, 60)
    end_well(user, run, uninterrupted)


@pytest.mark.timeout(300)
def test_a_node_that_is_only_cut_off_can_spoil_nothing(slurm_netns, tmp_path):
    user = User(slurm_netns, tmp_path)
    expected = last_checkpoint(user.done(user.submit(*TRAIN, *TWO)))
    run = train(user)
    name = hosts(user, run)[1]
    slurm_netns.cut_link(name)
    try:
        user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
        end_well(user, run, expected)
    finally:
        slurm_netns.mend_link(name)
    assert run.read_verdict().state == "done"
