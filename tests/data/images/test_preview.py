"""The pictures of a batch are those that a training begins with."""

import numpy as np
import pytest
import torch
from pictures import write_files

from hpcdist.data.catalog import find_images, load_data, open_images
from hpcdist.data.images.preview import Shown, draw_grid, load_preview
from hpcdist.data.order import epoch_order
from hpcdist.job.spec import Data

SEED, NUMBER = 0, 16


def test_photographs_are_the_first_batch_of_the_first_epoch_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        write_files(tmp_path / name, 5)
    data = Data(name="image_folder", root=str(tmp_path), transform="heavy", size=40)
    shown = load_preview(data)
    parts = find_images(data)
    samples = open_images(parts.train, data, SEED)
    indices = epoch_order(len(samples), seed=SEED, epoch=0)[:NUMBER]
    batch = samples.batch(indices.tolist(), epoch=0)
    for position, sample in enumerate(shown):
        assert sample.label == parts.train.classes[batch.labels[position]]
        assert np.array_equal(sample.after, batch.images[position].permute(1, 2, 0).numpy())
        assert sample.before.shape == (40, 40, 3)
        assert not np.array_equal(sample.before, sample.after)


def test_digits_are_the_first_batch_of_the_first_epoch():
    shown = load_preview(Data())
    train = load_data(Data()).train
    for index, sample in zip(epoch_order(len(train), seed=SEED, epoch=0), shown, strict=False):
        assert sample.label == str(int(train.labels[index]))
        theirs, ours = train.images[index].flatten(), torch.tensor(sample.before).flatten()
        assert torch.corrcoef(torch.stack((theirs, ours)))[0, 1] > 0.999
        assert np.array_equal(sample.before, sample.after)
    assert max(sample.before.max() for sample in shown) == 255


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_every_image_is_on_the_page_in_its_own_place(both):
    grey = np.arange(7) * 10 + 60
    label, title = "Müller caf\udce9 $x" * 9, "t" * 500
    shown = [
        Shown(
            label=label,
            before=np.full((8, 6, 1), level, np.uint8),
            after=np.full((8, 6, 3), level + 5, np.uint8),
        )
        for level in grey
    ]
    page = np.asarray(draw_grid(shown, title=title, both=both))[..., 0]
    for level in grey:
        assert (page == level + 5).sum() > 3_000
        assert ((page == level).sum() > 3_000) == both
