"""A job of Slurm that loses a node goes on with the others."""

import pytest
from cluster_user import CPU, events, job_id
from counting import ELASTIC_COUNT, await_counting
from interruptions import hosts


def test_a_run_goes_on_without_its_first_node_and_ends_its_job_itself(user):
    """The job's script is lost: Slurm would keep the job until its time limit."""
    script = user.write("count.py", ELASTIC_COUNT)
    size = ("--nodes", 3, "--gpus", 1, "--set", "launch.min_nodes=2")
    run = user.submit(script, *CPU, *size)
    await_counting(user, run, num_ranks=3)
    name = hosts(user, run)[0]
    user.cluster.order("kill_node", name)
    await_counting(user, run, 1)
    user.cluster.give_up_node(name)
    assert "goes on with 2 of 3 nodes since " in user("status", run.id).stdout
    user.cluster.wait_for(lambda: name not in hosts(user, run))
    assert user.cluster.job_state(job_id(run)) == "RUNNING"
    user.write("gate", "")
    verdict = user.verdict(run)
    assert verdict.state == "done"
    assert "went on with 2 of 3 nodes since " in verdict.message
    assert [one["node"] for one in events(run, "start", rank=0)] == [0, 1]
    assert user.cluster.wait_for_end(job_id(run)) == "CANCELLED"
    assert "done" in user("status", run.id).stdout
    assert "was lost" in user("cluster", "nodes").stdout


@pytest.mark.timeout(240)
def test_a_training_grows_again_by_a_requeue(user):
    keys = ("launch.min_nodes=1", "launch.regrow_after=0.1", "train.epochs=100000")
    keys += ("checkpoint.every_steps=20", "train.evaluate_every_epochs=0")
    sets = [word for key in keys for word in ("--set", key)]
    run = user.submit("ddp", "--nodes", 3, "--gpus", 1, *CPU, *sets)
    await_counting(user, run, num_ranks=3)
    user.cluster.wait_for(lambda: [*run.checkpoints_folder.glob("step-*")])
    name = hosts(user, run)[1]
    user.cluster.order("kill_node", name)
    await_counting(user, run, 1)
    user.cluster.give_up_node(name)
    stopped = user.cluster.wait_for(lambda: run.read_attempt_verdict(1), 90)
    assert "to start again with all nodes; a checkpoint is saved; it went on" in stopped.message
    user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", "StartTime=now", check=False)
    await_counting(user, run, 2)
    resumed = user.cluster.wait_for(lambda: (found := events(run, "resume"))[1:] and found)
    assert resumed[0]["step"] <= resumed[1]["step"]
    assert len(events(run, "start", rank=2)) == 2
    user("cancel", run.id)
