"""Photographs in the layout of LFW, how they are split, and the stand-in for them."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from PIL import Image

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, find_images
from hpcdist.data.images import faces
from hpcdist.data.images.faces import Plan, make_faces
from hpcdist.job.spec import Data

PEOPLE = {"Ann_Lee": 10, "Bo_Ek": 5, "Cy_Roe": 2, "Di_Poe": 1}


@pytest.mark.parametrize("top", [".", "deep/lfw/x"])
def test_people_are_found_in_the_root_or_in_a_folder_of_it(write_classes, faces_at, tmp_path, top):
    write_classes(PEOPLE, f"data/{top}")
    (tmp_path / "data/readme.txt").write_text("pictures")
    parts = find_images(faces_at(tmp_path / "data"))
    assert parts.train.classes == tuple(PEOPLE)
    assert (parts.train.root / parts.train.paths[0]).is_file()
    # Each person with several images is in both parts.
    assert [parts.test.labels.count(label) for label in range(4)] == [2, 1, 1, 0]
    assert {*parts.train.labels} == {*range(4)}


def test_a_root_that_is_not_one_set_of_faces_is_refused_with_the_layout_and_the_source(
    write_classes, faces_at, tmp_path
):
    for variant in ("lfw", "lfw_funneled"):
        write_classes(PEOPLE, f"two/{variant}")
    said = "holds several folders without images of their own: lfw, lfw_f"
    for name, words, hint in (("two", said, "two/lfw"), ("missing", "", "figshare.com/")):
        with pytest.raises(JobError, match=rf"{tmp_path / name}.*{words}") as error:
            check_data(faces_at(tmp_path / name))
        assert hint in error.value.hint


def listing(_number):
    return find_images(Data(name="faces")).train.paths


def test_many_processes_that_ask_at_once_get_the_same_stand_in(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("HPCDIST_CACHE", str(cache))
    monkeypatch.setattr(faces, "_STAND_IN", Plan(people=20, images=60))
    sizes = check_data(Data(name="faces"))
    assert not cache.exists()  # what can be known before is known without making it
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as processes:
        listings = list(processes.map(listing, range(4)))
    assert all(found == listings[0] for found in listings)
    assert len(listings[0]) == sizes.train
    (folder,) = cache.iterdir()
    assert sum(len(files) for _, _, files in os.walk(folder)) == 60
    assert len(list(folder.iterdir())) == 20


def test_the_same_plan_makes_the_same_files_and_another_seed_others(tmp_path):
    contents = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        make_faces(tmp_path / name, Plan(people=5, images=12, seed=seed))
        contents.append({path.read_bytes() for path in (tmp_path / name).rglob("*.jpg")})
    assert len(contents[0]) == 12
    assert contents[0] == contents[1]
    assert not contents[0] & contents[2]
    with Image.open(tmp_path / "a/Person_0001/Person_0001_0001.jpg") as image:
        assert (image.size, image.mode, image.format) == ((250, 250), "RGB", "JPEG")
