import os
import signal
from multiprocessing import connection, get_context

import pytest
import torch

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


def test_a_worker_ends_with_its_rank():
    fork = get_context("fork")
    reading, writing = fork.Pipe(duplex=False)
    lives, is_alive = fork.Pipe(duplex=False)
    photographs = FastImages([("unread.jpg", 0)], shape=(3, 2, 2))

    def become_rank():
        loader = make_batches(photographs, torch.device("cpu"), Data(workers=1))._loader
        if os.fork():
            signal.pause()
        signal.alarm(2 * LIMIT_S)  # where it fails to end, it ends after the test has failed
        lives.close()
        loader.worker_init_fn(0)
        writing.send(os.getpid())
        signal.pause()

    rank = fork.Process(target=become_rank)
    rank.start()
    writing.close()
    is_alive.close()
    assert reading.poll(LIMIT_S)
    reading.recv()
    rank.kill()
    rank.join(LIMIT_S)
    [ended] = connection.wait([lives], LIMIT_S)  # the worker held its other end open
    with pytest.raises(EOFError):
        ended.recv()
