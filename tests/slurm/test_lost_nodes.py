"""Nodes and agents that are lost, or seem to be: another attempt goes on, and the old one can spoil
nothing."""

import os
import signal

import pytest
from cluster_user import User, agent_pid
from interruptions import hosts
from trainings import end_well, train


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


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


def test_a_killed_agent_costs_an_attempt_and_no_more(user, uninterrupted):
    run = train(user)
    os.kill(agent_pid(run, 1), signal.SIGKILL)
    user.cluster.wait_for(lambda: run.newest_attempt() == 1, 60)
    end_well(user, run, uninterrupted)


@pytest.mark.timeout(300)
def test_a_node_that_is_only_cut_off_can_spoil_nothing(slurm_netns, tmp_path, uninterrupted):
    user = User(slurm_netns, tmp_path)
    run = train(user)
    name = hosts(user, run)[1]
    slurm_netns.cut_link(name)
    try:
        user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
        end_well(user, run, uninterrupted)
    finally:
        slurm_netns.mend_link(name)
    assert run.read_verdict().state == "done"
