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


def test_the_number_of_workers_changes_no_weight(train_ranks, train_whole, make_job, photographs):
    sections = {"train": {**SECTIONS["train"], "epochs": 1}}
    plain = train_whole(make_job(data=photographs, **sections), WORLD)
    other = train_ranks(make_job(data={**photographs, "workers": 0}, **sections), WORLD)
    assert other.exit_codes == [0, 0], other.log()
    assert same_weights(other, plain)
    assert other.state()["identity"] == plain.state()["identity"]


def test_a_training_on_files_goes_on_in_the_middle_of_an_epoch(train_ranks, make_job, photographs):
    def job(max_steps, **checkpoint):
        train = {**SECTIONS["train"], "max_steps": max_steps}
        return make_job(data=photographs, train=train, checkpoint=checkpoint)

    whole = train_ranks(job(7), WORLD)
    assert whole.exit_codes == [0, 0], whole.log()
    begun = train_ranks(job(3, every_steps=3), WORLD)
    going_on = train_ranks(job(7, resume=str(begun.checkpoints()[0])), WORLD)
    assert going_on.exit_codes == [0, 0], going_on.log()
    [resume] = going_on.events("resume")
    assert resume["exact"]
    assert same_weights(going_on, whole)


@pytest.mark.parametrize("workload", ["train", "lightning"])
def test_files_that_are_no_images_are_named_and_the_training_goes_on(
    train_ranks, make_job, tmp_path, workload
):
    data = photographed(tmp_path / "photographs")
    for number in range(2, 12):
        folder = "cats" if number % 2 else "dogs"
        (tmp_path / "photographs" / folder / f"{number:02}.jpg").write_bytes(b"no picture")
    strategy = "ddp" if workload == "train" else "auto"
    sections = {"train": {**SECTIONS["train"], "epochs": 1}}
    training = train_ranks(make_job(strategy, workload, data=data, **sections), WORLD)
    assert training.exit_codes == [0, 0], training.log()
    notes = [note["message"] for rank in range(WORLD) for note in training.events("note", rank)]
    if workload == "lightning":
        assert (
            sum("files were skipped, with no part in the loss" in note for note in notes) == WORLD
        )
        return
    named = [note for note in notes if "is not an image, but text" in note]
    assert {note[note.rindex("/") :][:7] for note in named} == {
        f"/{number:02}.jpg" for number in range(2, 12)
    }
    assert all(event["loss"] == event["loss"] for event in training.events("evaluate"))


def test_a_data_set_in_memory_can_be_changed_image_by_image(train_ranks, make_job):
    sections = {
        "data": {"transform": ["RandomHorizontalFlip"], "train_samples": 64},
        "train": {"epochs": 1, "batch_size": 16},
    }
    alone = train_ranks(make_job(**sections), 1)
    sections["data"] |= {"workers": 2}
    again = train_ranks(make_job(**sections), 1)
    assert again.exit_codes == [0], again.log()
    assert same_weights(again, alone)
    sections["data"] |= {"transform": "none"}
    assert not same_weights(train_ranks(make_job(**sections), 1), alone)


def test_skipped_files_are_named_at_first_and_counted_then(train_ranks, make_job, tmp_path):
    data = photographed(tmp_path)
    for number in range(150):
        (tmp_path / "cats" / f"bad {number}.jpg").write_bytes(b"")
    sections = {"train": {"epochs": 1, "batch_size": 16, "num_threads": 1}}
    crop = [{"RandomCrop": {"size": 24}}]
    training = train_ranks(make_job(data={**data, "transform": crop}, **sections), 1)
    assert training.exit_codes == [0], training.log()
    notes = [event["message"] for event in training.events("note")]
    assert sum(note.endswith(".jpg is empty") for note in notes) == 20
    assert "more than 20 files are skipped; hpcdist data check names all of them" in notes
    assert "100 files are skipped so far" in notes
