"""`hpcdist data`: data sets made, checked and shown."""

import io
import json
import os

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def faces(hpcdist):
    """A folder with a few faces."""
    done = hpcdist("data", "faces", "--make", "made", "--people", 4, "--images", 12)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr
    return hpcdist.folder / "made"


def refusal(done):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("verb", "arguments", "said"),
    [
        ("faces", ("--make", "x", "--people", 3, "--images", 2), "--images is 2, for 3 people"),
        ("faces", ("--make", "file/x"), "file cannot be written: File exists"),
        ("check", ("faces", "--root", "no"), "data.root is 'no': there is no folder no"),
        ("show", ("faces", "--root", "no"), "https://ndownloader.figshare.com/"),
        ("show", ("digits", "--out", "no/batch.png"), "in a folder that is there"),
        ("show", ("digits", "--transform", "light"), "but digits is held in memory"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(hpcdist, verb, arguments, said):
    hpcdist.write("file", "")
    assert said in refusal(hpcdist("data", verb, *arguments))
    assert os.listdir(hpcdist.folder) == ["file"]


def test_check_names_each_file_that_is_no_image_and_why(hpcdist, faces):
    good = (faces / "Person_0001/Person_0001_0001.jpg").read_bytes()
    huge = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(huge, "PNG")
    bad = {
        "zero.jpg": (b"", "is empty"),
        "text of é.jpg": (b"not a picture\n", "is not an image: it begins with b'not a picture"),
        "cut.jpg": (good[: len(good) // 2], "is damaged: "),
        "huge.png": (huge.getvalue(), "is too large: 10,000 x 10,000 pixels"),
    }
    for name, (content, _) in bad.items():
        (faces / "Person_0002" / name).write_bytes(content)
    with open(os.fsencode(faces / "Person_0001") + b"/\xff.jpg", "wb"):
        pass
    done = hpcdist("data", "check", "faces", "--root", "made")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(bad) + 2
    assert "made/Person_0001/\\udcff.jpg is empty" in lines
    for name, (_, problem) in bad.items():
        (line,) = [line for line in lines if line.startswith(f"made/Person_0002/{name} ")]
        assert problem in line
    assert lines[-1] == "faces: 12 images for training, 5 for testing, of 4 classes"
    assert "5 files are not images" in done.stderr
    described = json.loads(hpcdist("data", "check", "faces", "--root", "made", "--json").stdout)
    assert described["train"] + described["test"] == 17
    assert described["problems"]["made/Person_0002/zero.jpg"] == "is empty"


def test_check_of_images_without_a_fault(hpcdist, faces):
    assert len(list(faces.glob("Person_000[1-4]/Person_000?_00??.jpg"))) == 12
    done = hpcdist("data", "check", "image_folder", "--root", faces)
    assert (done.returncode, done.stderr) == (0, "")
    assert "of 4 classes" in done.stdout
    assert "digits: 1,438 images for training" in hpcdist("data", "check", "digits").stdout
    again = refusal(hpcdist("data", "faces", "--make", "made"))
    assert "error: made exists already, and is not an empty folder" in again


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
