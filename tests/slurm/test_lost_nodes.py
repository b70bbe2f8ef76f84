"""Nodes that are lost, or seem to be: another attempt goes on, and the old one can spoil
nothing."""

import pytest
from cluster_user import User, events
from interruptions import hosts
from trainings import end_well, train


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@pytest.mark.timeout(300)
def test_a_training_that_loses_a_node_and_then_its_first_goes_on_exactly(user, uninterrupted):
    run = train(user)
    killed = []
    for attempt, node in enumerate((1, 0), 1):
        killed.append(hosts(user, run)[node])
        user.cluster.kill_node(killed[-1])
        user.cluster.wait_for(lambda n=attempt: run.read_attempt_verdict(n - 1))
        user.cluster.give_up_node(killed[-1])
        user.cluster.wait_for(lambda n=attempt: len(events(run, "resume")) == n, 120)
    assert not set(killed) & set(hosts(user, run))
    end_well(user, run, uninterrupted, attempts=3)
    for attempt, (name, node) in enumerate(zip(killed, (1, 0), strict=True)):
        lost = run.read_attempt_verdict(attempt)
        assert lost.kind == "agent_lost"
        assert name in lost.message or f"node {node}" in lost.message
    for name in killed:
        user.cluster.revive_node(name)


@pytest.mark.timeout(240)
def test_the_loss_of_the_only_node_is_told_by_the_next_life(user):
    """Slurm finds out about it, after half a minute; elsewhere it is told."""
    script = "import os, time\ntime.sleep(0 if 'SLURM_RESTART_COUNT' in os.environ else 600)\n"
    run = user.submit(user.write("first_sleeps.py", script))
    user.cluster.wait_for(run.event_file(0).exists)
    (name,) = hosts(user, run)
    user.cluster.kill_node(name)
    user.done(run, 120)
    lost = run.read_attempt_verdict(0)
    assert (lost.kind, lost.host) == ("agent_lost", name)
    assert f"node 0 (host {name})" in lost.message
    user.cluster.revive_node(name)


@pytest.mark.timeout(300)
def test_a_node_that_is_only_cut_off_can_spoil_nothing(slurm_netns, tmp_path, uninterrupted):
    user = User(slurm_netns, tmp_path)
    run = train(user)
    name = hosts(user, run)[1]
    slurm_netns.cut_link(name)
    try:
        user.cluster.wait_for(lambda: run.read_attempt_verdict(0))
        user.cluster.give_up_node(name)
        user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
        end_well(user, run, uninterrupted)
    finally:
        slurm_netns.mend_link(name)
    assert run.read_verdict().state == "done"
