"""A training that Slurm preempts goes on, and is bit for bit what it would have been."""

import pytest
from cluster_user import User, events
from interruptions import preempt
from trainings import end_well, stopped_steps, train, train_undisturbed


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
