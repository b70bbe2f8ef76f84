"""From the lists of a job to the ways of loading that are measured."""

import msgspec
import pytest

from hpcdist.bench.dataload.ways import combine, in_words, several
from hpcdist.job.spec import DataloadJob, LoadedData


def data(**values):
    return msgspec.convert(values, LoadedData)


def ways(**values):
    return combine(DataloadJob(name="test", data=data(**values)))


def test_all_lists_multiply_and_workers_change_fastest():
    found = ways(workers=[1, 2], batch_size=[8, 16], transform=["none", "light"])
    assert [(each.transform, each.batch_size, each.workers) for each in found] == [
        *(("none", 8, 1), ("none", 8, 2), ("none", 16, 1), ("none", 16, 2)),
        *(("light", 8, 1), ("light", 8, 2), ("light", 16, 1), ("light", 16, 2)),
    ]


def test_each_way_is_said_as_a_training_job_would_say_it():
    given = {"name": "image_folder", "root": "/data", "size": 64, "decoder": "fast"}
    (_, first), (setting, second) = ways(**given, workers=3, transform=["light", []]).items()
    assert (first.name, first.root, first.size) == ("image_folder", "/data", 64)
    assert (first.workers, first.transform, first.decoder) == (3, "light", "fast")
    assert (second.transform, setting.transform) == ((), "none")


AFFINE = {"RandomAffine": {"degrees": 5, "shear": 1}}
TOLD = "RandomHorizontalFlip, RandomAffine(degrees=5, shear=1)"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("light", ["light"]),
        (["none", "light", "heavy"], ["none", "light", "heavy"]),
        (["RandomHorizontalFlip", AFFINE], [TOLD]),
        (["light", "RandomHorizontalFlip"], ["light, RandomHorizontalFlip"]),
        (["none", ["RandomHorizontalFlip", AFFINE]], ["none", TOLD]),
    ],
    ids=["preset", "presets", "pipeline", "preset-in-pipeline", "both"],
)
def test_a_list_of_transforms_is_one_unless_all_in_it_are_whole(given, told):
    found = several(data(transform=given), "transform")
    assert [one if isinstance(one, str) else in_words(one) for one in found] == told
