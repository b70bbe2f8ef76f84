"""Images as samples: loaded, transformed and shown, beside PIL and torchvision."""

import os
import pickle
import signal
from contextlib import suppress

import numpy as np
import pytest
import torch
from pictures import encoded, picture, plain, write_files
from torch.utils.data import DataLoader

from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.data import FastImages
from hpcdist.data.arrays import to_unit_range
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import find_images, open_images
from hpcdist.data.images.preview import Shown, draw_grid, load_preview
from hpcdist.data.images.transforms import build_transform, try_transform
from hpcdist.data.order import EpochPlan, Share, epoch_order
from hpcdist.job.spec import Data

CPU = torch.device("cpu")
NUMBER = 23


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("pictures"), NUMBER)


def load(files, *, world_size=1, batch_size=6, epoch=1, **keys):
    """Index in the epoch's order -> (image, label), as all ranks together have it."""
    data = Data(**keys)
    order = epoch_order(len(files), seed=5, epoch=epoch)
    found = {}
    for rank in range(world_size):
        plan = EpochPlan(
            num_samples=len(files),
            batch_size=batch_size // world_size,
            accumulate=1,
            rank=rank,
            world_size=world_size,
        )
        shares = [share for _, shares in plan.steps() for share in shares]
        samples = open_images(files, data, 5)
        batches = make_batches(samples, CPU, data)
        for share, batch in zip(shares, batches.epoch(order, shares, epoch), strict=True):
            brought = batches.bring(batch)
            assert brought.images.dtype == torch.float32
            for at, place in enumerate(range(share.begin, share.end)):
                index = int(order[place])
                assert index not in found
                found[index] = (brought.images[at].clone(), int(brought.labels[at]))
        batches.close()
    return found


CROP = [{"RandomResizedCrop": {"size": [20, 24]}}]


@pytest.mark.parametrize(
    ("spec", "keys"),
    [("none", {"workers": 1}), ("light", {"size": 24}), ("heavy", {}), (CROP, {"size": 30})],
    ids=["none", "light", "heavy", "crop"],
)
def test_pixels_are_bit_for_bit_those_of_pil_and_torchvision(files, spec, keys):
    found = load(files, transform=spec, **keys)
    for index in range(NUMBER):
        image, label = found[index]
        size = keys.get("size")
        assert image.equal(plain(files, index, spec=spec, seed=5, epoch=1, size=size))
        assert label == index % 2


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on few CPUs
@pytest.mark.parametrize(("world_size", "workers"), [(2, 2), (3, 0)])
def test_every_sample_comes_once_with_the_same_pixels_however_many_load(files, workers, world_size):
    expected = load(files, transform="light")
    assert len(expected) == NUMBER
    assert not load(files, transform="light", epoch=2)[0][0].equal(expected[0][0])
    found = load(files, transform="light", workers=workers, world_size=world_size)
    assert found.keys() == expected.keys()
    for index, (image, label) in expected.items():
        assert found[index][0].equal(image)
        assert found[index][1] == label


def test_files_are_read_several_at_once_where_storage_answers_late(files, monkeypatch):
    samples = open_images(files, Data(transform="light"), 5)
    expected = samples.batch(range(8), 0).images
    monkeypatch.setattr("hpcdist.data.images.samples._LATE_S", 0.0)  # all storage answers late
    for _ in range(2):
        assert samples.batch(range(8), 0).images.equal(expected)
    assert samples._threads is not None
    # Workers that are started anew get a copy.
    assert pickle.loads(pickle.dumps(samples)).batch(range(8), 0).images.equal(expected)


SMALL, WIDE = (encoded(picture(1, size=size)) for size in ((18, 60), (60, 32)))
CROP_20, PAD = [{"RandomCrop": {"size": 20}}], [{"Pad": {"padding": 4}}]
BAD = {
    "text": (b"no picture", CROP_20, " is not an image: it begins with b'no pic", "data check"),
    "gone": (None, CROP_20, " cannot be read: No such file", "data check"),
    "small": (SMALL, CROP_20, r" \(18 x 60 pixels\) fails in data.transform: Req", "data check"),
    "another size": (WIDE, PAD, "", "Resize"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_ends_the_loading_by_name(tmp_path, kind):
    content, transform, said, hint = BAD[kind]
    files = write_files(tmp_path / "pictures", NUMBER)
    (files.root / files.paths[8]).unlink()
    if content:
        (files.root / files.paths[8]).write_bytes(content)
    with pytest.raises(HpcdistError, match=rf"picture \d+ é.jpg{said}") as caught:
        load(files, transform=transform, workers=int(kind == "small"))
    assert hint in caught.value.hint


def test_a_worker_that_is_killed_is_said_to_be(files):
    data = Data(workers=1, prefetch_factor=1)
    batches = make_batches(open_images(files, data, 5), CPU, data)
    shares = [Share(begin=at, end=at + 1, filled_end=at + 1) for at in range(NUMBER)]

    def kill_and_go_on():
        for number, _ in enumerate(batches.epoch(torch.arange(NUMBER), shares, 0)):
            if number == 0:
                os.kill(batches._loader._iterator._workers[0].pid, signal.SIGKILL)

    # torch raises wherever the signal arrives: here, or within the loop over batches.
    lost = "a worker that loads data was lost|is killed by signal"
    with pytest.raises((HpcdistError, RuntimeError), match=lost):
        kill_and_go_on()
    with suppress(RuntimeError):  # where the signal comes as late as this
        batches.close()


def test_users_put_fast_images_into_their_own_loader(tmp_path):
    for name, number in (("cats", 12), ("dogs", 11)):
        write_files(tmp_path / name, number)
    images = FastImages(tmp_path)
    assert (len(images), images.shape, images.files.classes) == (23, (3, 32, 40), ("cats", "dogs"))
    loader = DataLoader(images, 4, shuffle=True, num_workers=2, collate_fn=images.collate)
    found = list(loader)
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 3]
    assert all(batch.dtype == torch.uint8 for batch, _ in found)
    assert torch.cat([labels for _, labels in found]).bincount().tolist() == [12, 11]
    first, second = (images.normalize(batch) for batch, _ in found[:2])
    assert first.equal(to_unit_range(found[0][0]))
    assert second.equal(to_unit_range(found[1][0]))
    image, label = images[15]
    assert (image.shape, label) == (images.shape, 1)


def test_fast_images_take_a_list_and_a_function_and_draw_anew_and_by_torch_s_seed(files):
    from torchvision.transforms import v2  # with torch._dynamo, seconds of each collection

    listed = [(str(files.root / path), number) for number, path in enumerate(files.paths[:3])]
    images = FastImages(listed, transform=v2.Resize([8, 8]))
    batch, labels = images.__getitems__([2, 0])
    assert (batch.shape, labels.tolist()) == ((2, 3, 8, 8), [2, 0])
    images = FastImages(listed, transform="light")
    torch.manual_seed(1)
    first, second = (images.__getitems__([0, 1])[0] for _ in range(2))
    torch.manual_seed(1)
    assert images.__getitems__([0, 1])[0].equal(first)
    assert not second.equal(first)


def test_classes_and_order_are_those_of_image_folder_of_torchvision(write_classes, folder_at):
    from torchvision.datasets import ImageFolder

    root = write_classes({"train/b/inner": 2, "train/a": 3, "train/b": 2, "train/é ü": 1})
    write_classes({"test/a": 1})
    (root / "train/a/UPPER.JPG").write_bytes((root / "train/a/a_0001.jpg").read_bytes())
    (root / "train/a/notes.txt").write_text("no image")
    theirs = ImageFolder(root / "train")
    ours = find_images(folder_at(root)).train
    assert ours.classes == tuple(theirs.classes)
    assert [
        (str(root / path), label) for path, label in zip(ours.paths, ours.labels, strict=True)
    ] == theirs.samples


# Transforms.


def test_a_list_names_transforms_with_and_without_arguments_and_may_end_as_for_torchvision():
    try_transform(["RandomHorizontalFlip", {"RandomRotation": {"degrees": 10}}, "light"])
    spec = ["light", "ToTensor"]
    try_transform(spec)
    found, expected = (build_transform(one).apply(picture(1), 7) for one in (spec, "light"))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("hevy", "'hevy'", "heavy"),
        (["RandomAfine"], "'RandomAfine'", "RandomAffine"),
        ([{"RandomAffine": {"degree": 5}}], "'degree'", "torchvision"),
        ([{"RandomAffine": {}, "light": {}}], "one name", "RandomAffine"),
        (["os.system"], "'os.system'", ""),
    ],
)
def test_a_wrong_transform_is_refused_with_what_is_near(spec, message, hint):
    with pytest.raises(JobError, match=message) as caught:
        try_transform(spec)
    assert hint in caught.value.hint


def test_a_trial_tells_the_shape_that_images_get_and_draws_nothing_or_why_it_fails():
    before = torch.default_generator.get_state()
    crop = [{"RandomResizedCrop": {"size": [24, 48]}}]
    assert build_transform(crop).try_on(picture(1)) == (3, 24, 48)
    assert build_transform("light").try_on(picture(1)) == (3, 32, 40)
    assert torch.default_generator.get_state().equal(before)
    with pytest.raises(JobError, match="images of 40 x 32 pixels: Required crop size"):
        build_transform([{"RandomCrop": {"size": 50}}]).try_on(picture(1))


# The pictures of a batch are those that a training begins with.


def test_photographs_are_the_first_batch_of_the_first_epoch_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        write_files(tmp_path / name, 5)
    data = Data(name="image_folder", root=str(tmp_path), transform="heavy", size=40)
    shown = load_preview(data)
    parts = find_images(data)
    samples = open_images(parts.train, data, 0)
    indices = epoch_order(len(samples), seed=0, epoch=0)[:16]
    batch = samples.batch(indices.tolist(), epoch=0)
    for position, sample in enumerate(shown):
        assert sample.label == parts.train.classes[batch.labels[position]]
        assert np.array_equal(sample.after, batch.images[position].permute(1, 2, 0).numpy())
        assert sample.before.shape == (40, 40, 3)
        assert not np.array_equal(sample.before, sample.after)


def test_every_image_is_on_the_page_in_its_own_place():
    grey = np.arange(5) * 10 + 60
    shown = [
        Shown(
            label="Müller caf\udce9 $x" * 9,
            before=np.full((8, 6, 1), level, np.uint8),
            after=np.full((8, 6, 3), level + 5, np.uint8),
        )
        for level in grey
    ]
    page = np.asarray(draw_grid(shown, title="t" * 500, both=True))[..., 0]
    for level in grey:
        assert (page == level).sum() > 3_000
        assert (page == level + 5).sum() > 3_000
