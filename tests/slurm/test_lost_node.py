"""A job of Slurm that loses a node goes on with the others."""

import pytest
from cluster_user import User, events, job_id
from counting import ELASTIC_COUNT
from interruptions import hosts

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


def run_without(user, index):
    """A run that loses one of its three nodes, and goes on with the others to its end."""
    run = user.submit(user.write("count.py", ELASTIC_COUNT), *THREE)
    counting(user, run, 0, range(3))
    name = hosts(user, run)[index]
    user.cluster.kill_node(name)
    counting(user, run, 1, range(2))
    user.cluster.give_up_node(name)
    assert "goes on with 2 of 3 nodes since " in user("status", run.id).stdout
    user.cluster.wait_for(lambda: name not in hosts(user, run))
    assert user.cluster.job_state(job_id(run)) == "RUNNING"
    user.write("gate", "")
    return run


def test_a_run_goes_on_without_its_first_node_and_ends_its_job_itself(user):
    """The job's script is lost: Slurm would keep the job until its time limit."""
    run = run_without(user, 0)
    assert [one["node"] for one in events(run, "start", rank=0)] == [0, 1]
    assert user.verdict(run).state == "done"
    assert user.cluster.wait_for_end(job_id(run)) == "CANCELLED"
    assert "done" in user("status", run.id).stdout


def test_a_run_that_loses_its_first_node_and_too_many_others_is_requeued(user):
    run = user.submit(user.write("count.py", ELASTIC_COUNT), *THREE, "--set", "launch.min_nodes=3")
    counting(user, run, 0, range(3))
    name = hosts(user, run)[0]
    user.cluster.kill_node(name)
    user.cluster.wait_for(lambda: run.read_attempt_verdict(run.newest_attempt()))
    user.cluster.give_up_node(name)
    user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", "StartTime=now", check=False)
    counting(user, run, run.newest_attempt() + 1, range(3))
    user.write("gate", "")
    user.done(run)


def test_a_run_goes_on_without_a_node_that_slurm_has_lost(user):
    run = run_without(user, 1)
    assert [one["node"] for one in events(run, "start", rank=1)] == [1, 2]
    user.done(run)
    assert user.cluster.wait_for_end(job_id(run)) == "COMPLETED"
    assert "went on with 2 of 3 nodes since " in user.verdict(run).message
    assert "was lost" in user("cluster", "nodes").stdout


@pytest.mark.timeout(240)
def test_a_training_grows_again_by_a_requeue(user):
    keys = ("launch.min_nodes=1", "launch.regrow_after=0.1", "train.epochs=100000")
    keys += ("launch.device=cpu", "checkpoint.every_steps=20", "train.evaluate_every_epochs=0")
    sets = [word for key in keys for word in ("--set", key)]
    run = user.submit("ddp", "--nodes", 3, "--gpus", 1, *sets)
    counting(user, run, 0, range(3))
    user.cluster.wait_for(lambda: [*run.checkpoints_folder.glob("step-*")])
    name = hosts(user, run)[1]
    user.cluster.kill_node(name)
    counting(user, run, 1, range(2))
    user.cluster.give_up_node(name)
    stopped = user.cluster.wait_for(lambda: run.read_attempt_verdict(1), 90)
    assert "to start again with all nodes; a checkpoint is saved; it went on" in stopped.message
    user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", "StartTime=now", check=False)
    counting(user, run, 2, range(3))
    resumed = events(run, "resume")
    assert [one["step"] for one in resumed] == sorted(one["step"] for one in resumed)
    assert len(resumed) == 2
    user("cancel", run.id)
