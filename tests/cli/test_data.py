"""`hpcdist data`: data sets made, checked and shown."""

import io
import json
import os
import shutil

import numpy as np
import pytest
from harness import command_zygote
from PIL import Image


@pytest.fixture(scope="module")
def command_process():
    """Has imported what draws pictures, too."""
    with command_zygote("torchvision.transforms.v2") as process:
        yield process


@pytest.fixture(scope="module")
def made(hpcdist_in, tmp_path_factory):
    """A folder with a few faces; returns its path."""
    user = hpcdist_in(tmp_path_factory.mktemp("faces"))
    done = user("data", "faces", "--make", "made", "--people", 4, "--images", 12)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
    return user.folder / "made"


@pytest.fixture
def faces(hpcdist, made):
    """A copy of it in the folder of the test."""
    return shutil.copytree(made, hpcdist.folder / "made")


def refusal(done):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_faces_are_made_whole_and_only_in_a_new_folder(hpcdist, faces):
    assert len(list(faces.glob("Person_000[1-4]/Person_000?_00??.jpg"))) == 12
    again = refusal(hpcdist("data", "faces", "--make", "made"))
    assert "error: made exists already, and is not an empty folder" in again
    (hpcdist.folder / "empty").mkdir()
    other = hpcdist("data", "faces", "--make", "empty", "--people", 4, "--images", 12)
    assert other.returncode == 0, other.stderr
    assert sorted(os.listdir(hpcdist.folder)) == ["empty", "made"]
    for path in faces.rglob("*.jpg"):
        twin = hpcdist.folder / "empty" / path.relative_to(faces)
        assert twin.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--people", 3), "Missing option '--make'"),
        (("--make", "x", "--people", 3, "--images", 2), "--images is 2, for 3 people"),
        (("--make", "file/x"), "file cannot be written: File exists"),
        (("--make", "file"), "file exists already, and is not an empty folder"),
    ],
    ids=["numbers alone", "too few images", "below a file", "a file"],
)
def test_faces_that_cannot_be_made_are_refused(hpcdist, arguments, said):
    hpcdist.write("file", "")
    assert said in refusal(hpcdist("data", "faces", *arguments))
    assert os.listdir(hpcdist.folder) == ["file"]


def test_check_names_each_file_that_is_no_image_and_why(hpcdist, faces):
    good = (faces / "Person_0001/Person_0001_0001.jpg").read_bytes()
    huge = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(huge, "PNG")
    bad = {
        "zero.jpg": (b"", "is empty"),
        "text of é.jpg": (b"not a picture\n", "is not an image: it begins with b'not a picture"),
        "page.png": (b"<!DOCTYPE html><html>", "is not an image: it begins with b'<!DOCTYPE html>"),
        "pointer.jpg": (
            b"version https://git-lfs.github.com/spec/v1\n",
            "begins with b'version https://git-lfs",
        ),
        "cut.jpg": (good[: len(good) // 2], "is damaged: "),
        "huge.png": (huge.getvalue(), "is too large: 10,000 x 10,000 pixels"),
        "noise.jpg": (bytes(range(200, 256)), "begins with b'\\xc8\\xc9"),
    }
    for name, (content, _) in bad.items():
        (faces / "Person_0002" / name).write_bytes(content)
    png = io.BytesIO()
    Image.new("L", (30, 20)).save(png, "PNG")
    (faces / "Person_0002/png.jpg").write_bytes(png.getvalue())  # read by what is in it
    done = hpcdist("data", "check", "faces", "--root", "made")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(bad) + 1
    for name, (_, problem) in bad.items():
        (line,) = [line for line in lines if line.startswith(f"made/Person_0002/{name} ")]
        assert problem in line
    assert lines[-1] == "faces: 14 images for training, 6 for testing, of 4 classes"
    assert "7 files are not images" in done.stderr
    described = json.loads(hpcdist("data", "check", "faces", "--root", "made", "--json").stdout)
    assert described["train"] + described["test"] == 20
    assert described["problems"]["made/Person_0002/zero.jpg"] == "is empty"


def test_check_of_odd_names_of_missing_files_and_of_images_without_a_fault(hpcdist, faces):
    done = hpcdist("data", "check", "image_folder", "--root", faces)
    assert (done.returncode, done.stderr) == (0, "")
    assert "of 4 classes" in done.stdout
    assert "digits: 1,438 images for training" in hpcdist("data", "check", "digits").stdout
    with open(os.fsencode(faces / "Person_0001") + b"/\xff.jpg", "wb"):
        pass
    (faces / "Person_0001/gone.jpg").symlink_to("nowhere")
    done = hpcdist("data", "check", "faces", "--root", "made")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "made/Person_0001/\\udcff.jpg is empty" in lines
    assert "made/Person_0001/gone.jpg cannot be read: No such file or directory" in lines


@pytest.mark.parametrize("verb", ["check", "show"])
def test_a_data_set_that_is_not_there_is_refused(hpcdist, verb):
    out = ("--out", "x.png") if verb == "show" else ()
    unknown = refusal(hpcdist("data", verb, "facs", *out))
    assert "hint: the known ones are: faces" in unknown
    missing = refusal(hpcdist("data", verb, "faces", "--root", "nowhere", *out))
    assert "error: data.root is 'nowhere': there is no folder nowhere" in missing
    assert "https://ndownloader.figshare.com/" in missing
    whole = refusal(hpcdist("data", verb, "mnist", "--root", ".", *out))
    assert "train-images-idx3-ubyte cannot be read: No such file" in whole
    assert "hint: it needs <root>/MNIST/raw/" in whole


def test_show_writes_a_picture_of_the_first_batch(hpcdist, faces):
    options = ("--root", "made", "--transform", "heavy")
    done = hpcdist("data", "show", "faces", *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert "note: the picture is faces.png" in done.stderr
    with Image.open(hpcdist.folder / "faces.png") as picture:
        first = np.asarray(picture.convert("RGB"))
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 1000
    again = refusal(hpcdist("data", "show", "faces", *options, "--out", "faces.png"))
    assert "faces.png is already there" in again


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "batch.text"), "must be a .png"),
        (("--out", "nowhere/batch.png"), "in a folder that is there"),
        (
            ("--out", "x.png", "--transform", "hevy"),
            "data.transform is set, but digits is held in memory",
        ),
    ],
    ids=["ending", "folder", "transform"],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_read(hpcdist, options, said):
    assert said in refusal(hpcdist("data", "show", "digits", *options))
    assert os.listdir(hpcdist.folder) == []
