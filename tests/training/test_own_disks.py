"""Nodes without a file system in common: the others get the checkpoint that node 0 goes on from."""

import multiprocessing
import os
from types import SimpleNamespace

import torch.distributed as dist

from hpcdist.runs.run import Run
from hpcdist.training.checkpoint import resume

CONTENT = os.urandom(100_000)


def be_rank(rank, folder):
    resume._CHUNK_BYTES = 30_000
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    run = Run(folder / f"node-{rank}")
    context = SimpleNamespace(
        rank=rank,
        local_rank=0,
        world_size=2,
        num_nodes=2,
        attempt=1,
        run=run,
        is_current=lambda: True,
    )
    job = SimpleNamespace(checkpoint=SimpleNamespace(resume=None))
    resume.checkpoint.newest_intact = lambda candidates, _: candidates[0] if candidates else None
    path = resume.find_start(context, job, has_group=True)
    assert path == run.checkpoints_folder / "step-00000007.pt"
    assert path.read_bytes() == CONTENT
    assert [one.name for one in run.checkpoints_folder.iterdir()] == [path.name]
    dist.destroy_process_group()


def test_a_checkpoint_that_only_the_first_node_has_is_brought_to_the_others(tmp_path):
    for node in range(2):
        Run(tmp_path / f"node-{node}").make()
    (tmp_path / "node-0" / "checkpoints" / "step-00000007.pt").write_bytes(CONTENT)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=be_rank, args=(rank, tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
