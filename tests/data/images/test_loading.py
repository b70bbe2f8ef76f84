import os
import pickle
import signal
from contextlib import suppress

import pytest
import torch
from pictures import encoded, picture, plain, write_files
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from hpcdist.base.errors import HpcdistError
from hpcdist.data import FastImages
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import open_images
from hpcdist.data.order import EpochPlan, Share, epoch_order
from hpcdist.job.spec import Data

CPU = torch.device("cpu")
NUMBER = 23


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("pictures"), NUMBER)


def load(files, *, world_size=1, batch_size=6, position=0, epoch=1, **keys):
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
        shares = [share for _, shares in plan.steps(position) for share in shares]
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


def same(found, expected):
    assert found.keys() == expected.keys()
    assert all(found[index][0].equal(expected[index][0]) for index in expected)
    assert all(found[index][1] == expected[index][1] for index in expected)


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


def test_a_transform_that_gives_images_of_several_sizes_is_refused_by_name(tmp_path):
    files = write_files(tmp_path / "pictures", NUMBER)
    (files.root / files.paths[4]).write_bytes(encoded(picture(4, size=(18, 60))))
    with pytest.raises(HpcdistError, match=r"26 x 68 pixels of .*picture \d+ é\.jpg") as caught:
        load(files, transform=[{"Pad": {"padding": 4}}], workers=1)
    assert "Resize" in caught.value.hint


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on few CPUs
@pytest.mark.parametrize(("world_size", "workers"), [(1, 4), (2, 2), (3, 0)])
def test_every_sample_comes_once_with_the_same_pixels_however_many_load(files, workers, world_size):
    expected = load(files, transform="light")
    assert len(expected) == NUMBER
    assert not load(files, transform="light", epoch=2)[0][0].equal(expected[0][0])
    same(load(files, transform="light", workers=workers, world_size=world_size), expected)


def test_an_epoch_that_goes_on_reads_nothing_of_what_was_seen(tmp_path):
    files = write_files(tmp_path / "pictures", NUMBER)
    whole = load(files, transform="light")
    order = epoch_order(NUMBER, seed=5, epoch=1)
    for index in order[:12].tolist():
        if index:  # the first one tells the size of all
            (files.root / files.paths[index]).unlink()
    rest = load(files, transform="light", position=12)
    same(rest, {index: whole[index] for index in order[12:NUMBER].tolist()})


def test_workers_read_several_files_at_once_also_where_the_rank_did_and_an_epoch_was_left(
    files, monkeypatch
):
    data = Data(workers=1, transform="light")
    samples = open_images(files, data, 5)
    expected = samples.batch(range(8), 0).images
    monkeypatch.setattr("hpcdist.data.images.samples._LATE_S", 0.0)  # all storage answers late
    for _ in range(2):
        assert samples.batch(range(8), 0).images.equal(expected)
    assert samples._threads is not None
    # Workers that are started anew get a copy.
    assert pickle.loads(pickle.dumps(samples)).batch(range(8), 0).images.equal(expected)
    batches = make_batches(samples, CPU, data)
    shares = [Share(begin=begin, end=begin + 2, filled_end=begin + 2) for begin in (0, 2, 4, 6)]
    begun = batches.epoch(torch.arange(8), shares, 1)
    next(begun)
    begun.close()  # in the middle, which does not disturb the next
    for share, batch in zip(shares, batches.epoch(torch.arange(8), shares, 0), strict=True):
        assert batch.images.equal(expected[share.begin : share.end])
    batches.close()


SMALL = encoded(picture(1, size=(18, 60)))
BAD = {
    "text": (b"no picture", "is not an image: it begins with b'no pic"),
    "gone": (None, "cannot be read: No such file"),
    "small": (SMALL, r"\(18 x 60 pixels\) fails in data.transform: Required crop"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_ends_the_loading_by_name(tmp_path, content, said):
    files = write_files(tmp_path / "pictures", NUMBER)
    (files.root / files.paths[8]).unlink()
    if content:
        (files.root / files.paths[8]).write_bytes(content)
    crop = [{"RandomCrop": {"size": 20}}]
    with pytest.raises(HpcdistError, match=f"picture 008 é.jpg {said}") as caught:
        load(files, transform=crop, workers=int("crop" in said))
    assert "hpcdist data check" in caught.value.hint


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


@pytest.mark.parametrize("workers", [0, 2])
def test_users_put_fast_images_into_their_own_loader(tmp_path, workers):
    for name, number in (("cats", 12), ("dogs", 11)):
        write_files(tmp_path / name, number)
    images = FastImages(tmp_path)
    assert (len(images), images.shape, images.files.classes) == (23, (3, 32, 40), ("cats", "dogs"))
    loader = DataLoader(images, 4, shuffle=True, num_workers=workers, collate_fn=images.collate)
    found = list(loader)
    assert [len(labels) for _, labels in found] == [4, 4, 4, 4, 4, 3]
    assert all(batch.dtype == torch.uint8 for batch, _ in found)
    assert torch.cat([labels for _, labels in found]).bincount().tolist() == [12, 11]
    image, label = images[15]
    assert (image.shape, label) == (images.shape, 1)


def test_fast_images_take_a_list_and_a_function_and_draw_anew_and_by_torch_s_seed(files):
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
