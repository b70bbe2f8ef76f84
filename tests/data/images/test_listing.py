"""Folders of images: what is found in them, what is said of those that are none."""

import os

import pytest

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, find_images
from hpcdist.data.images.decoding import check_files

NOBODY = 65534


def all_paths(parts):
    return sorted((*parts.train.paths, *parts.test.paths))


def labelled(part):
    return [
        (part.classes[label], path) for path, label in zip(part.paths, part.labels, strict=True)
    ]


def test_each_image_is_in_one_part_under_the_name_of_its_folder(write_classes, folder_at):
    root = write_classes({"ant": 10, "bee": 5, "cat": 1})
    parts = find_images(folder_at(root))
    assert len(all_paths(parts)) == len(set(all_paths(parts))) == 16
    assert parts.train.classes == parts.test.classes == ("ant", "bee", "cat")
    for part in (parts.train, parts.test):
        assert all(path.startswith(f"{name}/") for name, path in labelled(part))
        assert list(part.paths) == sorted(part.paths)
        assert all((part.root / path).is_file() for path in part.paths)
    assert [name for name, _ in labelled(parts.test)] == ["ant", "ant", "bee"]
    assert parts.sizes == check_data(folder_at(root))
    first = find_images(folder_at(root, train_samples=3, test_samples=1))
    assert (len(first.train), len(first.test), first.train.classes) == (3, 1, parts.train.classes)


@pytest.mark.parametrize("test", ["test", "val"])
def test_parts_in_folders_of_their_own_are_taken_as_they_are(write_classes, folder_at, test):
    root = write_classes({"train/ant": 3, "train/bee": 2, f"{test}/bee": 1, f"{test}/cow": 1})
    parts = find_images(folder_at(root))
    assert parts.sizes.train == 5
    assert parts.train.classes == parts.test.classes == ("ant", "bee", "cow")
    assert labelled(parts.test) == [
        ("bee", f"{test}/bee/bee_0001.jpg"),
        ("cow", f"{test}/cow/cow_0001.jpg"),
    ]


def test_links_are_followed_and_those_that_lead_nowhere_are_found_when_they_are_read(
    write_classes, folder_at
):
    root = write_classes({"ant": 1, "bee": 2})
    (root / "ant/up").symlink_to(root)
    (root / "itself").symlink_to("itself")
    (root / "bee/._bee_0001.jpg").write_bytes(b"of another system")
    (root / "cow").symlink_to(write_classes({"cow": 2}, "elsewhere") / "cow")
    (root / "ant/gone.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(root / "ant/pipe.jpg")
    parts = find_images(folder_at(root))
    assert parts.train.classes == ("ant", "bee", "cow")
    ants = ["ant/ant_0001.jpg", "ant/gone.jpg", "ant/pipe.jpg"]
    others = [f"{name}/{name}_000{number}.jpg" for name in ("bee", "cow") for number in (1, 2)]
    assert all_paths(parts) == ants + others
    problems = check_files(parts)
    assert problems[f"{root}/ant/pipe.jpg"] == "cannot be read: it is not a regular file"
    assert len(problems) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "there is no folder"),
        (["ant/a.jpg"], "there are 1 images in"),
        (["train/ant/a.jpg", "test/"], "there are no images in"),
    ],
    ids=["missing", "one image", "empty test"],
)
def test_a_folder_without_images_is_refused_with_the_layout(tmp_path, folder_at, made, said):
    root = tmp_path / "root"
    for path in made or ():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).mkdir() if path.endswith("/") else (root / path).touch()
    with pytest.raises(JobError) as error:
        check_data(folder_at(root))
    assert said in error.value.message
    assert str(root) in error.value.message
    assert "<root>/<class>/<image>.jpg" in error.value.hint


def test_a_folder_that_may_not_be_read_is_named(write_classes, folder_at, tmp_path):
    root = write_classes({"ant": 2, "bee/inner": 2})
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and "pytest" in str(folder):
            folder.chmod(0o755)
    closed = root / "bee/inner"
    closed.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)  # whom permissions bind
    try:
        with pytest.raises(JobError, match="Permission denied") as error:
            check_data(folder_at(root))
    finally:
        os.seteuid(user)
        closed.chmod(0o755)
    assert str(closed) in error.value.message
