import os
import signal
from multiprocessing import connection, get_context, resource_sharer

import pytest
import torch

from hpcdist.base.errors import HpcdistError
from hpcdist.data import FastImages
from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.order import Share
from hpcdist.job.spec import Data

SHARES = [
    Share(begin=0, end=3, filled_end=3),
    Share(begin=3, end=4, filled_end=5),
]

LIMIT_S = 30


def test_a_batch_of_samples_in_memory_is_cut_out_of_them():
    images = torch.randn(6, 1, 5, 4)
    samples = Samples(images=images, labels=torch.arange(6))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    batches = make_batches(samples, torch.device("cpu"), Data())
    found = list(batches.epoch(order, SHARES, 0))
    assert [batch.labels.tolist() for batch in found] == [[3, 1, 5], [0, 2]]
    for batch in found:
        assert batch.images.equal(images[batch.labels])


@pytest.mark.parametrize("rank_ends", ["before", "after"])
def test_a_worker_ends_with_its_rank_also_when_that_ends_before_it_starts(rank_ends):
    fork = get_context("fork")
    reading, writing = fork.Pipe(duplex=False)
    lives, is_alive = fork.Pipe(duplex=False)
    photographs = FastImages([("unread.jpg", 0)], shape=(3, 2, 2))

    def become_rank():
        loader = make_batches(photographs, torch.device("cpu"), Data(workers=1))._loader
        rank_pid = os.getpid()
        if os.fork():
            if rank_ends == "after":
                signal.pause()
            os._exit(0)
        signal.alarm(2 * LIMIT_S)  # where it fails to end, it ends after the test has failed
        lives.close()
        while rank_ends == "before" and os.getppid() == rank_pid:
            os.sched_yield()
        loader.worker_init_fn(0)
        writing.send(os.getpid())
        signal.pause()

    rank = fork.Process(target=become_rank)
    rank.start()
    writing.close()
    is_alive.close()
    if rank_ends == "after":
        assert reading.poll(LIMIT_S)
        reading.recv()
        rank.kill()
    rank.join(LIMIT_S)
    [ended] = connection.wait([lives], LIMIT_S)  # the worker held its other end open
    with pytest.raises(EOFError):
        ended.recv()
    if rank_ends == "before":
        with pytest.raises(EOFError):  # it never got as far as its work
            reading.recv()


class HangingUp:
    """Samples whose worker hangs up when the rank asks it for a batch that it has announced, as one
    does that is being killed and is not dead yet."""

    def batch(self, indices, _epoch):
        resource_sharer._ResourceSharer._serve = _hang_up
        return Samples(images=torch.zeros(len(indices), 3, 2, 2), labels=torch.zeros(len(indices)))


def _hang_up(sharer):
    while True:
        sharer._listener.accept().close()


def test_a_worker_that_hangs_up_is_said_to_be_lost():
    data = Data(workers=1, multiprocessing_context="fork")
    batches = make_batches(HangingUp(), torch.device("cpu"), data)
    with pytest.raises(HpcdistError, match="a worker that loads data was lost: "):
        list(batches.epoch(torch.arange(6), SHARES, 0))
    batches.close()
