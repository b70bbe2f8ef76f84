"""A training that Slurm preempts goes on, and is bit for bit what it would have been."""

import pytest
from cluster_user import User, events, log
from interruptions import preempt
from trainings import CPU, TWO, end_well, stopped_steps, train, train_undisturbed


@pytest.mark.timeout(240)
def test_a_training_that_is_preempted_with_a_grace_period_goes_on_exactly(slurm, tmp_path):
    user = User(slurm, tmp_path)
    uninterrupted = train_undisturbed(user)
    run = train(user, "--partition", "low")
    try:
        user.cluster.run("scontrol", "update", "PartitionName=low", "GraceTime=60")
        preempt(user, run)
        user.cluster.wait_for(lambda: events(run, "resume"))
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=low", "GraceTime=0")
    end_well(user, run, uninterrupted)
    stops, resumed = stopped_steps(run)
    assert stops == set(resumed)  # every rank stopped at one step, and went on from there


KNOWS_SIGTERM = """\
import os, signal, sys, time
from pathlib import Path

saved = Path(os.environ["HPCDIST_RUN_DIR"], "saved-" + os.environ["RANK"])
if saved.exists():
    print("went on", flush=True)
    sys.exit()

def save(number, frame):
    saved.touch()
    if os.environ["RANK"] == "1":
        raise RuntimeError("terminated")
    sys.exit()

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_script_that_handles_sigterm_gets_it_at_a_preemption_as_from_torchrun(slurm, tmp_path):
    """However it ends then, it has stopped: Slurm starts the job again."""
    user = User(slurm, tmp_path)
    script = user.write("knows_sigterm.py", KNOWS_SIGTERM)
    run = user.submit(script, *CPU, *TWO, "--partition", "low")
    for rank in range(2):
        user.wait_for_line(run, "up", rank=rank)
    preempt(user, run)
    user.done(run)
    assert log(run, 0) == "up\nwent on\n"
    assert log(run, 1).count("RuntimeError: terminated") == 1
    assert log(run, 1).endswith("went on\n")
    assert (first := run.read_attempt_verdict(0)).state == "preempted"
    assert first.message.endswith("ended by SIGTERM")
