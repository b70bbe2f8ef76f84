"""The pictures of a batch are those that a training begins with."""

import numpy as np
import pytest
import torch
from pictures import write_files
from PIL import Image

from hpcdist.data.catalog import find_images, load_data, open_images
from hpcdist.data.images.preview import Shown, draw_grid, load_preview
from hpcdist.data.order import epoch_order
from hpcdist.job.spec import Data

SEED, NUMBER = 3, 5


def test_photographs_are_the_first_batch_of_the_first_epoch_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        write_files(tmp_path / name, 5)
    data = Data(name="image_folder", root=str(tmp_path), transform="heavy", size=40)
    shown = load_preview(data, seed=SEED, number=NUMBER)
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
    shown = load_preview(Data(), seed=SEED, number=NUMBER)
    train = load_data(Data()).train
    for index, sample in zip(epoch_order(len(train), seed=SEED, epoch=0), shown, strict=False):
        assert sample.label == str(int(train.labels[index]))
        theirs, ours = train.images[index].flatten(), torch.tensor(sample.before).flatten()
        assert torch.corrcoef(torch.stack((theirs, ours)))[0, 1] > 0.999
        assert np.array_equal(sample.before, sample.after)
    assert max(sample.before.max() for sample in shown) == 255


def test_a_crop_is_shown_beside_the_whole_image():
    data = Data(transform=[{"RandomCrop": {"size": 6}}])
    shown = load_preview(data, seed=SEED, number=NUMBER)
    assert {(sample.before.shape, sample.after.shape) for sample in shown} == {
        ((8, 8, 1), (6, 6, 1))
    }


def test_a_file_that_is_no_image_is_shown_as_such(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / f"x/{name}.jpg").write_text("none")
    write_files(tmp_path / "y", 2)
    shown = load_preview(Data(name="image_folder", root=str(tmp_path)), seed=0, number=9)
    assert {(sample.label, sample.after is None) for sample in shown} == {("x", True), ("y", False)}
    (bad,) = [sample for sample in shown if sample.problem]
    assert bad.problem.startswith(str(tmp_path / "x"))
    assert bad.problem.endswith(".jpg is not an image, but text")


def test_an_image_that_is_too_large_is_shown_as_such_without_a_warning(tmp_path):
    folder = tmp_path / "x"
    folder.mkdir()
    Image.new("RGB", (40, 30)).save(folder / "0.png")
    for name in ("1.png", "2.png"):
        Image.new("1", (10_000, 10_000)).save(folder / name)
    shown = load_preview(Data(name="image_folder", root=str(tmp_path)), seed=0, number=9)
    assert any("is too large: 10,000 x 10,000 pixels" in sample.problem for sample in shown)


@pytest.mark.parametrize("number", [1, 7, 16])
@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
def test_every_image_is_on_the_page_in_its_own_place(number, both):
    grey = np.arange(number) * 10 + 60
    shown = [
        Shown(
            label="Müller " * 9,
            before=np.full((8, 6, 1), level, np.uint8),
            after=np.full((8, 6, 3), level + 5, np.uint8),
        )
        for level in grey
    ]
    page = np.asarray(draw_grid(shown, title="t" * 500, both=both))[..., 0]
    for level in grey:
        assert (page == level + 5).sum() > 3_000
        assert ((page == level).sum() > 3_000) == both


def test_names_that_are_no_text_and_files_that_are_no_images_are_drawn():
    shown = [
        Shown(label="caf\udce9 $x", before=None, after=np.full((1000, 500, 3), 77, np.uint8)),
        Shown(label="x", before=None, after=None),
    ]
    page = np.asarray(draw_grid(shown, title="", both=True))[..., 0]
    assert 3_000 < (page == 77).sum() < page.size / 4
