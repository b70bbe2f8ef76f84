"""A run that loses a node goes on with the others, from what it has saved."""

import os
import signal

import pytest

from hpcdist.base.errors import JobError
from hpcdist.job.load import load_job
from hpcdist.submission.plan import plan_run
from hpcdist.summary.compare.cells import contrast
from hpcdist.summary.measuring import measure

SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist
from hpcdist import record

world = record.elastic()
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "LOCAL_RANK")
print(json.dumps({"total": total.item(), "world": world, **{n: int(os.environ[n]) for n in names}}),
      flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
dist.barrier()
"""


def kill_agent(launched, node):
    os.kill(launched.agent_pid(node), signal.SIGKILL)


def worlds(launched, size, attempt):
    """What the ranks of an attempt print, once all have."""
    ranks = range(size)
    launched.wait(lambda: all(launched.said(rank, attempt) for rank in ranks))
    return [launched.said(rank, attempt)[0] for rank in ranks]


def test_a_run_goes_on_without_a_node_that_was_killed(launch, write_script, tmp_path):
    go = tmp_path / "go"
    launched = launch(write_script(SCRIPT), go, nodes=3, gpus=2, min_nodes=2)
    assert [one["world"] for one in worlds(launched, 6, 0)] == [[rank, 6, 6] for rank in range(6)]
    kill_agent(launched, 1)
    for rank, one in enumerate(worlds(launched, 4, 1)):
        assert (one["total"], one["world"]) == (4.0, [rank, 4, 6])
        assert (one["GROUP_RANK"], one["GROUP_WORLD_SIZE"]) == (rank // 2, 2)
        assert (one["RANK"], one["NODE_RANK"], one["LOCAL_RANK"]) == (rank, rank // 2, rank % 2)
    failed = launched.run.read_attempt_verdict(0)
    assert (failed.kind, failed.node, failed.num_nodes_left) == ("agent_lost", 1, 2)
    assert "; the run goes on with 2 of 3 nodes since " in failed.message
    go.touch()
    verdict = launched.verdict()
    assert (verdict.kind, verdict.restarts) == ("done", 1)
    assert "it went on with 2 of 3 nodes since " in verdict.message
    assert [launched.events(2 * place, 1)[0]["node"] for place in range(2)] == [0, 2]


def test_one_node_is_left_of_three_and_leads_in_the_end(launch, write_script, tmp_path):
    go = tmp_path / "go"
    launched = launch(write_script(SCRIPT), go, nodes=3, gpus=1, min_nodes=1)
    worlds(launched, 3, 0)
    kill_agent(launched, 0)
    worlds(launched, 2, 1)
    kill_agent(launched, 1)
    (left,) = worlds(launched, 1, 2)
    assert (left["world"], left["total"]) == ([0, 1, 3], 1.0)
    go.touch()
    verdict = launched.verdict()
    assert (verdict.kind, verdict.restarts) == ("done", 2)
    assert "it went on with 1 of 3 nodes since " in verdict.message
    begun = launched.run.read_beginnings()
    assert [begun[attempt].leader for attempt in range(3)] == [0, 1, 2]


def test_a_training_goes_on_in_the_same_steps(submit_job):
    keys = ["train.epochs=4", "train.batch_size=16", "checkpoint.every_steps=3"]
    launched = submit_job("ddp", *keys, "launch.min_nodes=1", nodes=3)
    files = [launched.run.event_file(rank) for rank in range(3)]
    launched.wait(lambda: all(each.exists() and '"steps"' in each.read_text() for each in files))
    launched.wait(lambda: [*launched.run.checkpoints_folder.glob("step-*")])
    kill_agent(launched, 2)
    verdict = launched.verdict()
    assert verdict.kind == "done", verdict.message
    (resumed,) = [one for one in launched.events(0, 1) if one["event"] == "resume"]
    windows = [one for rank in range(2) for one in launched.events(rank, 1)]
    windows = [one for one in windows if one["event"] == "steps"]
    assert max(one["step"] for one in windows) == 4 * 30
    assert sum(one["samples"] for one in windows) == 4 * 1438 - resumed["step"] * 48
    measured = measure(launched.run).run
    figures = measured.figures
    assert (figures.nodes, [one.nodes for one in figures.attempts]) == (3, [3, 2])
    assert 2 < figures.mean_gpus < 3
    assert any("its size changed: of the time that it" in note for note in figures.notes)
    (cell,) = contrast([[measured]], [measured])
    assert (cell.mean_gpus, cell.ideal) == (figures.mean_gpus, 1.0)


@pytest.mark.parametrize(
    ("job", "scheduler", "problem"),
    [
        ("ddp", "local", "resources.nodes is 2"),
        ("lightning", "local", "only train with ddp or fsdp, and your own code, go on with"),
        ("ddp", "azure", "the nodes of Azure have no run directory in common"),
    ],
)
def test_a_job_that_cannot_go_on_with_fewer_nodes_is_refused(job, scheduler, problem):
    least = 3 if problem == "resources.nodes is 2" else 1
    flag = f"launch.min_nodes={least}"
    loaded = load_job(job, overrides=[flag, "resources.nodes=2"])
    with pytest.raises(JobError) as refused:
        plan_run(loaded, scheduler=scheduler)
    assert f"--set {flag}: launch.min_nodes is {least}, but {problem}" in refused.value.message


def test_a_job_that_would_not_be_started_again_with_all_nodes_is_refused():
    slurm, least = {"scheduler": "slurm"}, "launch.min_nodes=1"
    keys = ["launch.regrow_after=60", "resources.nodes=2", least]
    cases = [(slurm, ["launch.requeue=false"]), ({"scheduler": "local"}, [])]
    for where, more in cases:
        loaded = load_job("ddp", overrides=[*keys, *more])
        with pytest.raises(JobError, match="60, but the job would not be"):
            plan_run(loaded, **where)
    assert plan_run(load_job("ddp", overrides=keys), **slurm).loaded.job.launch.regrow_after == 60
