import os
import signal
from multiprocessing import forkserver

import pytest
import torch
from pictures import encoded, picture, plain, write_files
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from hpcdist.base.errors import HpcdistError
from hpcdist.data import FastImages
from hpcdist.data.arrays import to_unit_range
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


@pytest.mark.parametrize("spec", ["none", "light", "heavy"])
def test_pixels_are_bit_for_bit_those_of_pil_and_torchvision(files, spec):
    found = load(files, transform=spec, workers=1)
    for index in range(NUMBER):
        image, label = found[index]
        assert image.equal(plain(files, index, spec=spec, seed=5, epoch=1))
        assert label == index % 2


def test_pixels_are_those_of_torchvision_at_another_size_too(files):
    found = load(files, transform="light", size=24)
    assert all(
        found[index][0].equal(plain(files, index, spec="light", seed=5, epoch=1, size=24))
        for index in found
    )


CROP = [{"RandomResizedCrop": {"size": [20, 24]}}]


@pytest.mark.parametrize("keys", [{"workers": 1}, {"size": 30}], ids=str)
def test_a_transform_may_change_the_size_of_all_images_alike(files, keys):
    found = load(files, transform=CROP, **keys)
    for index, (image, _) in found.items():
        assert image.shape == (3, 20, 24)
        expected = plain(files, index, spec=CROP, seed=5, epoch=1, size=keys.get("size"))
        assert image.equal(expected)


def mixed_files(folder):
    """Images of two sizes, the first of which most have."""
    files = write_files(folder, NUMBER)
    for index in (4, 7):
        (files.root / files.paths[index]).write_bytes(encoded(picture(index, size=(18, 60))))
    return files


def test_images_of_other_sizes_are_cropped_as_they_are(tmp_path):
    files = mixed_files(tmp_path / "pictures")
    samples = open_images(files, Data(transform=CROP), 5)
    images = samples.batch(range(NUMBER), epoch=1).images
    for index in (0, 4, 7):
        expected = plain(files, index, spec=CROP, seed=5, epoch=1)
        assert to_unit_range(images[index]).equal(expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_gives_images_of_several_sizes_is_refused_by_name(tmp_path, workers):
    files = mixed_files(tmp_path / "pictures")
    with pytest.raises(HpcdistError, match=r"26 x 68 pixels of .*picture \d+ é\.jpg") as caught:
        load(files, transform=[{"Pad": {"padding": 4}}], workers=workers)
    assert "Resize" in caught.value.hint


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on few CPUs
@pytest.mark.parametrize(("world_size", "workers"), [(1, 1), (1, 4), (2, 2), (3, 0), (3, 4)])
def test_every_sample_comes_once_with_the_same_pixels_however_many_load(files, workers, world_size):
    expected = load(files, transform="light")
    assert len(expected) == NUMBER
    same(load(files, transform="light", workers=workers, world_size=world_size), expected)


def test_workers_that_are_started_anew_give_the_same_pixels(files):
    try:
        found = load(files, transform="light", workers=1, multiprocessing_context="forkserver")
    finally:
        forkserver._forkserver._stop()  # it would live as long as the tests do
    same(found, load(files, transform="light"))


def test_another_epoch_has_other_pixels(files):
    first, second = (load(files, transform="light", epoch=epoch) for epoch in (1, 2))
    assert not first[0][0].equal(second[0][0])


def test_an_epoch_that_goes_on_reads_nothing_of_what_was_seen(tmp_path):
    files = write_files(tmp_path / "pictures", NUMBER)
    whole = load(files, transform="light")
    order = epoch_order(NUMBER, seed=5, epoch=1)
    for index in order[:12].tolist():
        if index:  # the first one tells the size of all
            (files.root / files.paths[index]).unlink()
    rest = load(files, transform="light", position=12)
    same(rest, {index: whole[index] for index in order[12:NUMBER].tolist()})


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_several_files_at_once_also_where_the_rank_did_so_before(
    files, context, monkeypatch
):
    data = Data(workers=1, transform="light", multiprocessing_context=context)
    samples = open_images(files, data, 5)
    expected = samples.batch(range(8), 0).images
    monkeypatch.setattr("hpcdist.data.images.samples._LATE_S", 0.0)  # all storage answers late
    for _ in range(2):
        assert samples.batch(range(8), 0).images.equal(expected)
    assert samples._threads is not None
    batches = make_batches(samples, CPU, data)
    shares = [Share(begin=begin, end=begin + 2, filled_end=begin + 2) for begin in (0, 2, 4, 6)]
    for share, batch in zip(shares, batches.epoch(torch.arange(8), shares, 0), strict=True):
        assert batch.images.equal(expected[share.begin : share.end])
    batches.close()


def test_an_epoch_left_in_the_middle_does_not_disturb_the_next(files):
    data = Data(workers=2)
    samples = open_images(files, data, 5)
    batches = make_batches(samples, CPU, data)
    order = epoch_order(NUMBER, seed=5, epoch=1)
    plan = EpochPlan(num_samples=NUMBER, batch_size=2, accumulate=1, rank=0, world_size=1)
    shares = [share for _, shares in plan.steps() for share in shares]
    begun = batches.epoch(order, shares, 0)
    next(begun)
    begun.close()
    for share, batch in zip(shares, batches.epoch(order, shares, 1), strict=True):
        indices = order[share.begin : share.filled_end]
        assert batch.images.equal(samples.batch(indices.tolist(), 1).images)
    batches.close()


BAD = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (
        lambda path: path.write_text("no picture"),
        "is not an image: it begins with b'no pic",
    ),
    "gone": (lambda path: path.unlink(), "cannot be read: No such file"),
    "too small for the crop": (
        lambda path: path.write_bytes(encoded(picture(1, size=(18, 60)))),
        r"\(18 x 60 pixels\) fails in data.transform: Required crop",
    ),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("spoil", "said"), BAD.values(), ids=BAD)
def test_a_bad_file_ends_the_loading_by_name(tmp_path, spoil, said, workers):
    files = write_files(tmp_path / "pictures", NUMBER)
    spoil(files.root / files.paths[8])
    crop = [{"RandomCrop": {"size": 20}}]
    with pytest.raises(HpcdistError, match=f"picture 008 é.jpg {said}") as caught:
        load(files, transform=crop, workers=workers)
    assert "hpcdist data check" in caught.value.hint


def test_a_batch_is_converted_in_one_thread_and_the_others_are_there_again(files, monkeypatch):
    seen = set()

    def watched(images, out=None):
        seen.add(torch.get_num_threads())
        return to_unit_range(images, out)

    monkeypatch.setattr("hpcdist.data.batches.to_unit_range", watched)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        load(files)
        assert (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_a_worker_that_is_killed_is_said_to_be(files):
    data = Data(workers=1, prefetch_factor=1)
    batches = make_batches(open_images(files, data, 5), CPU, data)
    order = epoch_order(NUMBER, seed=5, epoch=1)
    plan = EpochPlan(num_samples=NUMBER, batch_size=1, accumulate=1, rank=0, world_size=1)
    shares = [share for _, shares in plan.steps() for share in shares]

    def kill_and_go_on():
        for number, _ in enumerate(batches.epoch(order, shares, 0)):
            if number == 0:
                os.kill(batches._loader._iterator._workers[0].pid, signal.SIGKILL)

    with pytest.raises(HpcdistError, match="a worker that loads data was lost"):
        kill_and_go_on()
    batches.close()


def test_transforms_draw_nothing_from_the_generator_of_the_training(files):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load(files, transform="heavy", workers=0)
    assert torch.rand(4).equal(expected)


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


def test_fast_images_take_a_list_of_files_and_a_function(files):
    listed = [(str(files.root / path), number) for number, path in enumerate(files.paths[:3])]
    images = FastImages(listed, transform=v2.Resize([8, 8]))
    batch, labels = images.__getitems__([2, 0])
    assert (batch.shape, labels.tolist()) == ((2, 3, 8, 8), [2, 0])


def test_random_transforms_of_fast_images_draw_anew_and_by_torch_s_seed(files):
    listed = [(str(files.root / path), 0) for path in files.paths]
    images = FastImages(listed, transform="light")
    torch.manual_seed(1)
    first, second = (images.__getitems__([0, 1])[0] for _ in range(2))
    torch.manual_seed(1)
    again = images.__getitems__([0, 1])[0]
    assert again.equal(first)
    assert not second.equal(first)
