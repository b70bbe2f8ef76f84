"""From the lists of a job to the ways of loading that are measured."""

import msgspec
import pytest

from hpcdist.bench.dataload.figures import varied
from hpcdist.bench.dataload.settings import combine, combine_job, in_words, once_notes, several
from hpcdist.job.spec import DataloadJob, LoadedData


def data(**values):
    return msgspec.convert(values, LoadedData)


def chosen(combinations, *keys):
    return [tuple(getattr(setting, key) for key in keys) for setting in combinations]


def test_all_lists_multiply_and_workers_change_fastest():
    found = combine(data(workers=[1, 2], batch_size=[8, 16], decoder=["pil", "fast"]), in_memory=0)
    assert chosen(found, "decoder", "batch_size", "workers") == [
        *(("pil", 8, 1), ("pil", 8, 2), ("pil", 16, 1), ("pil", 16, 2)),
        *(("fast", 8, 1), ("fast", 8, 2), ("fast", 16, 1), ("fast", 16, 2)),
    ]


def test_each_way_is_said_as_a_training_job_would_say_it():
    given = data(name="image_folder", root="/data", size=64, workers=3, transform=["light", []])
    (_, first), (setting, second) = combine(given, in_memory=False).items()
    assert (first.name, first.root, first.size) == ("image_folder", "/data", 64)
    assert (first.workers, first.transform) == (3, "light")
    assert (second.transform, setting.transform) == ((), "none")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("prefetch_factor", [2, 4]),
        ("persistent_workers", [True, False]),
        ("multiprocessing_context", ["fork", "spawn"]),
    ],
)
def test_what_means_nothing_without_workers_is_measured_once_without(key, values):
    found = combine(data(workers=[0, 2], **{key: values}), in_memory=False)
    assert sorted(chosen(found, "workers")) == [(0,), (2,), (2,)]


def test_what_means_nothing_in_memory_is_measured_once_in_memory():
    given = data(workers=[0, 1], decoder=["pil", "exact"], reads=[1, 8], cache=[True, False])
    assert len(combine(given, in_memory=True)) == 2
    assert len(combine(given, in_memory=False)) == 16


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("light", 1),
        (["none", "light", "heavy"], 3),
        (["RandomHorizontalFlip", {"RandomAffine": {"degrees": 5}}], 1),
        (["RandomHorizontalFlip"], 1),
        (["light", "RandomHorizontalFlip"], 1),
        ([["RandomHorizontalFlip"]], 1),
        (["none", ["RandomHorizontalFlip", {"RandomAffine": {"degrees": 5}}]], 2),
    ],
    ids=["preset", "presets", "pipeline", "one-step", "preset-in-pipeline", "one", "both"],
)
def test_a_list_of_transforms_is_one_unless_all_in_it_are_whole(given, number):
    assert len(several(data(transform=given), "transform")) == number


def test_a_transform_is_told_by_names_and_arguments():
    (transform,) = several(
        data(transform=[["RandomHorizontalFlip", {"RandomAffine": {"degrees": 5, "shear": 1}}]]),
        "transform",
    )
    assert in_words(transform) == "RandomHorizontalFlip, RandomAffine(degrees=5, shear=1)"


def pinning(device, values, **others):
    """Return workers and pin_memory of what is measured on a device, and the notes on it."""
    job = DataloadJob(name="test", data=data(**{"workers": [0, 2], "pin_memory": values, **others}))
    return chosen(combine_job(job, device), "workers", "pin_memory"), [*once_notes(job, device)]


def test_without_a_gpu_pinned_and_other_batches_are_measured_once_and_a_note_says_so():
    found, notes = pinning("cpu", [True, False])
    assert found == [(0, "auto"), (2, "auto")]
    assert notes == [
        "data.pin_memory: true and false do not differ without a GPU, and are measured once"
    ]
    assert pinning("cpu", True) == ([(0, "auto"), (2, "auto")], [])


def test_on_a_gpu_auto_and_true_are_measured_once_and_what_differs_twice():
    found, notes = pinning("cuda:1", ["auto", True, False])
    assert found == [(0, "auto"), (2, "auto"), (0, False), (2, False)]
    assert notes == ["data.pin_memory: auto and true do not differ here, and are measured once"]
    assert pinning("cuda:0", [True, False]) == ([(0, True), (2, True), (0, False), (2, False)], [])


def test_without_any_workers_batches_that_are_cut_out_of_tensors_on_a_gpu_are_not_pinned():
    assert len(pinning("cuda:0", [True, False], name="digits")[0]) == 4  # each has its base line
    found, notes = pinning("cuda:0", [True, False], name="digits", workers=0, reads=[1, 2])
    assert found == [(0, "auto")]
    assert [note.split(":")[0] for note in notes] == ["data.reads", "data.pin_memory"]


def test_only_keys_that_differ_are_told_apart():
    found = combine(data(workers=[0, 2], pin_memory=[True, False]), in_memory=False)
    assert varied(list(found)) == ["pin_memory", "workers"]
