import pytest
import torch

from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.order import Share

SHARES = [
    Share(begin=0, end=3, filled_end=3),
    Share(begin=3, end=4, filled_end=5),
]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [1, 3])
def test_batches_have_the_memory_format_of_the_data_set(num_workers, memory_format, channels):
    images = torch.randn(6, channels, 5, 4).contiguous(memory_format=memory_format)
    samples = Samples(images=images, labels=torch.arange(6))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    batches = make_batches(samples, torch.device("cpu"), num_workers)
    found = list(batches.epoch(order, SHARES, 0))
    assert [batch.labels.tolist() for batch in found] == [[3, 1, 5], [0, 2]]
    for batch in found:
        assert batch.images.equal(images[batch.labels])
        assert batch.images.is_contiguous(memory_format=memory_format)
