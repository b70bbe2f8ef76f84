"""A job of Slurm that loses a node goes on with the others."""

import pytest
from cluster_user import COUNT, User, events, job_id
from interruptions import hosts

ELASTIC = COUNT.replace("record.start(", "record.elastic()\nrecord.start(")
THREE = ("--nodes", 3, "--gpus", 1, "--set", "launch.min_nodes=2", *("--set", "launch.device=cpu"))


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


def counting(user, run, attempt, ranks):
    """Wait until these ranks of an attempt have taken a step."""

    def have_begun():
        files = [run.event_file(rank, attempt) for rank in ranks]
        return all(file.exists() and '"steps"' in file.read_text() for file in files)

    user.cluster.wait_for(have_begun, 90)


def test_a_run_goes_on_without_a_node_that_slurm_has_lost(user):
    run = user.submit(user.write("count.py", ELASTIC), *THREE)
    counting(user, run, 0, range(3))
    nodes = hosts(user, run)
    user.cluster.kill_node(nodes[1])
    counting(user, run, 1, range(2))
    user.cluster.give_up_node(nodes[1])
    size = "goes on with 2 of 3 nodes since "
    assert size in user("status", run.id).stdout
    counting_on = [one["node"] for one in events(run, "start", rank=1)]
    assert counting_on == [1, 2]
    user.cluster.wait_for(lambda: nodes[1] not in hosts(user, run))
    assert user.cluster.job_state(job_id(run)) == "RUNNING"
    user.write("gate", "")
    user.done(run)
    assert user.cluster.wait_for_end(job_id(run)) == "COMPLETED"
    assert "went on with 2 of 3 nodes since " in user.verdict(run).message
    assert "was lost" in user("cluster", "nodes").stdout
