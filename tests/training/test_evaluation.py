import multiprocessing
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.job.spec import Data
from hpcdist.training.evaluation import evaluate

LIMIT_S = 100
CPU = torch.device("cpu")


@pytest.mark.parametrize("num_samples", [1, 128, 650])
def test_ranks_together_find_exactly_the_score_that_one_process_finds(tmp_path, num_samples):
    test = _make_samples(num_samples)
    [alone] = _score(test, 1, tmp_path)
    assert alone.samples == num_samples
    for world_size in (2, 4):
        assert _score(test, world_size, tmp_path) == [alone] * world_size


def _make_samples(num_samples):
    """Losses of all sizes: the sum of such depends on the order in which they are added up."""
    generator = torch.Generator().manual_seed(num_samples)
    images = torch.randn(num_samples, 1, 2, 5, generator=generator)
    images *= torch.logspace(-3, 3, num_samples)[:, None, None, None]
    labels = torch.randint(10, (num_samples,), generator=generator)
    return Samples(images=images, labels=labels)


def _score(test, world_size, folder):
    """What each rank finds."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(world_size)]
    store = folder / f"store-{world_size}"

    def become(rank):
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
        )
        score = evaluate(
            lambda images: images.flatten(1),
            make_batches(test, CPU, Data()),
            len(test),
            SimpleNamespace(
                rank=rank,
                world_size=world_size,
                device="cpu",
                progress=SimpleNamespace(alive=lambda: None),
            ),
        )
        pipes[rank][1].send(score)
        dist.barrier()
        dist.destroy_process_group()

    processes = [fork.Process(target=become, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    try:
        assert all(reading.poll(LIMIT_S) for reading, _ in pipes)
        return [reading.recv() for reading, _ in pipes]
    finally:
        for process in processes:
            process.join(LIMIT_S)
            process.kill()
