"""Training on image files: with workers and without, resumed, and with files that are none."""

import pytest
import torch
from pictures import encoded, picture

WORLD = 2


@pytest.fixture(scope="module", autouse=True)
def images_are_imported_before_ranks_are_forked(import_for_ranks, lightning_is_imported):
    import_for_ranks("torchvision.transforms.v2", "hpcdist.data.batches")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """`data` of a job: a folder of two classes, which no test changes."""
    return photographed(tmp_path_factory.mktemp("photographs"))


def photographed(root):
    for number in range(44):
        folder = root / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(encoded(picture(number)))
    return {"name": "image_folder", "root": str(root), "transform": "light", "workers": 1}


SECTIONS = {"train": {"epochs": 2, "batch_size": 4, "num_threads": 1}}


def same_weights(found, expected):
    found, expected = found.weights(), expected.weights()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_training_on_files_goes_on_in_the_middle_of_an_epoch(
    train_ranks, train_whole, make_job, photographs
):
    def job(**checkpoint):
        sections = {"train": {**SECTIONS["train"], "epochs": 1}}
        return make_job(data=photographs, checkpoint=checkpoint, **sections)

    begun = train_ranks(job(every_steps=3), WORLD, kill_at_step=4)
    going_on = train_ranks(job(resume=str(begun.checkpoints()[0])), WORLD)
    assert going_on.exit_codes == [0, 0], going_on.log()
    [resume] = going_on.events("resume")
    assert resume["exact"]
    assert same_weights(going_on, train_whole(job(), WORLD))


def test_a_file_that_is_no_image_ends_the_training_by_name(train_ranks, make_job, tmp_path):
    data = photographed(tmp_path / "photographs")
    (tmp_path / "photographs/cats/03.jpg").write_bytes(b"no picture")
    train = {**SECTIONS["train"], "epochs": 1}
    training = train_ranks(make_job("auto", "lightning", data=data, train=train), 1)
    assert training.exit_codes == [1], training.log()
    assert "cats/03.jpg is not an image" in training.log()
