import torch

from hpcdist.data.arrays import ToUnitRange
from hpcdist.data.batches import BufferedNormalizer


class Watched(ToUnitRange):
    """Sees with how many threads it is asked."""

    def __init__(self):
        self.threads = set()

    def into(self, out, image):
        self.threads.add(torch.get_num_threads())
        super().into(out, image)


def test_a_batch_is_converted_in_one_thread_and_the_others_are_there_again():
    watched = Watched()
    images = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).reshape(2, 3, 5, 4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = BufferedNormalizer(watched, torch.channels_last)(images)
        assert (watched.threads, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
    assert found.equal(ToUnitRange()(images))
    assert found.is_contiguous(memory_format=torch.channels_last)
