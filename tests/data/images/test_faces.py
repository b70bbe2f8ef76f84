"""Photographs in the layout of LFW, as folders and as an archive, and how they are split."""

import io
import os
import tarfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from PIL import Image

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, download_data, find_data_set, find_images
from hpcdist.data.images import faces
from hpcdist.data.images.made_faces import Plan, make_faces
from hpcdist.data.images.made_once import make_once
from hpcdist.job.spec import Data

PEOPLE = {"Ann_Lee": 10, "Bo_Ek": 5, "Cy_Roe": 2, "Di_Poe": 1}


def names(part):
    return {part.classes[label] for label in part.labels}


@pytest.mark.parametrize("top", [".", "lfw", "lfw_funneled", "lfw-deepfunneled", "deep/lfw/x"])
def test_people_are_found_in_the_root_or_in_a_folder_of_it(write_classes, faces_at, tmp_path, top):
    write_classes(PEOPLE, f"data/{top}")
    (tmp_path / "data/readme.txt").write_text("pictures")
    parts = find_images(faces_at(tmp_path / "data"))
    assert parts.train.classes == tuple(PEOPLE)
    assert (parts.train.root / parts.train.paths[0]).is_file()
    assert len(parts.train) + len(parts.test) == 18


def test_other_data_beside_the_faces_are_no_people(write_classes, faces_at, tmp_path):
    write_classes(PEOPLE, "data/lfw")
    write_classes({"holidays": 3}, "data")
    assert find_images(faces_at(tmp_path / "data")).train.classes == tuple(PEOPLE)


def test_several_variants_in_one_root_are_told_apart_by_the_user(write_classes, faces_at, tmp_path):
    for variant in ("lfw", "lfw_funneled"):
        write_classes(PEOPLE, f"data/{variant}")
    with pytest.raises(JobError, match="several variants of LFW: lfw, lfw_funneled") as error:
        check_data(faces_at(tmp_path / "data"))
    assert str(tmp_path / "data/lfw") in error.value.hint


def test_each_person_with_several_images_is_in_both_parts(write_classes, faces_at):
    parts = find_images(faces_at(write_classes(PEOPLE)))
    assert [parts.test.labels.count(label) for label in range(4)] == [2, 1, 1, 0]
    assert names(parts.train) == set(PEOPLE)


@pytest.mark.parametrize("name", ["root", "empty", "missing"])
def test_a_root_without_faces_says_where_to_get_them_and_how_to_lay_them_out(
    tmp_path, faces_at, name
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "root").write_text("no archive")
    with pytest.raises(JobError) as error:
        check_data(faces_at(tmp_path / name))
    assert str(tmp_path / name) in error.value.message
    assert "<root>/Person_Name/Person_Name_0001.jpg" in error.value.hint
    assert "https://ndownloader.figshare.com/" in error.value.hint


@pytest.fixture
def write_archive(write_classes, tmp_path):
    """Pack faces as LFW is packed; `add` may put more into the archive."""

    def write(name="lfw.tgz", add=lambda _archive: None):
        folder = write_classes(PEOPLE, "packed/lfw_funneled")
        with tarfile.open(tmp_path / name, "w:gz") as archive:
            archive.add(folder, "lfw_funneled")
            add(archive)
        return tmp_path / name

    return write


def add_file(archive, name, content=b"x", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in fields.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


def cached(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCDIST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_archive_is_unpacked_once_where_the_job_is_prepared(
    write_archive, faces_at, tmp_path, monkeypatch
):
    cache = cached(monkeypatch, tmp_path)
    data = faces_at(write_archive())
    assert check_data(data) is None
    assert not find_data_set(data).is_complete(data)
    assert not cache.exists()
    download_data(data)
    assert find_data_set(data).is_complete(data)
    assert check_data(data).train == 14
    parts = find_images(data)
    assert parts.train.classes == tuple(PEOPLE)
    assert (parts.train.root / parts.train.paths[0]).read_bytes().startswith(b"\xff\xd8")
    before = os.stat(parts.train.root / parts.train.paths[0])
    assert os.stat(find_images(data).train.root / parts.train.paths[0]) == before
    assert len(os.listdir(cache)) == 1


def test_an_archive_that_was_replaced_is_unpacked_anew(
    write_archive, faces_at, tmp_path, monkeypatch
):
    cached(monkeypatch, tmp_path)
    data = faces_at(write_archive())
    first = find_images(data)
    content = (tmp_path / "packed/lfw_funneled/Di_Poe/Di_Poe_0001.jpg").read_bytes()
    write_archive(
        add=lambda archive: add_file(archive, "lfw_funneled/Ed_Zed/Ed_Zed_0001.jpg", content)
    )
    assert "Ed_Zed" not in first.train.classes
    assert "Ed_Zed" in find_images(data).train.classes


@pytest.mark.parametrize("name", ["../out.jpg", "lfw_funneled/../../out.jpg", "/tmp/out-of-it.jpg"])
def test_an_archive_that_writes_elsewhere_is_refused_and_leaves_nothing(
    write_archive, faces_at, tmp_path, monkeypatch, name
):
    cache = cached(monkeypatch, tmp_path)
    data = faces_at(write_archive(add=lambda archive: add_file(archive, name)))
    with pytest.raises(JobError, match="which is not below its folder"):
        find_images(data)
    assert os.listdir(cache) == []
    assert not Path("/tmp/out-of-it.jpg").exists()


def test_links_and_devices_in_an_archive_are_left_out(
    write_archive, faces_at, tmp_path, monkeypatch
):
    cached(monkeypatch, tmp_path)

    def add(archive):
        add_file(archive, "lfw_funneled/out", b"", type=tarfile.SYMTYPE, linkname="/etc")
        add_file(archive, "lfw_funneled/Ann_Lee/pipe.jpg", b"", type=tarfile.FIFOTYPE)
        add_file(archive, "lfw_funneled/Ann_Lee/p.jpg", b"", type=tarfile.LNKTYPE, linkname="/x")

    parts = find_images(faces_at(write_archive(add=add)))
    assert len(parts.train) + len(parts.test) == 18
    assert not os.path.lexists(parts.train.root / "out")


def test_an_archive_that_unpacks_to_more_than_any_data_set_is_refused(
    write_archive, faces_at, tmp_path, monkeypatch
):
    cache = cached(monkeypatch, tmp_path)

    def claim(archive):
        member = tarfile.TarInfo("lfw_funneled/bomb.jpg")
        member.size = 9 * 10**9
        archive.fileobj.write(member.tobuf())

    with pytest.raises(JobError, match="more than 8 GB"):
        find_images(faces_at(write_archive(add=claim)))
    assert os.listdir(cache) == []


def test_an_archive_whose_names_take_gigabytes_is_refused(
    write_archive, faces_at, tmp_path, monkeypatch
):
    cache = cached(monkeypatch, tmp_path)

    def claim(archive):
        member = tarfile.TarInfo("PaxHeaders/x")
        member.type, member.size = tarfile.XHDTYPE, 7 * 10**9
        archive.fileobj.write(member.tobuf())

    with pytest.raises(JobError, match="cannot be unpacked: a header has 7,000,000,000 bytes"):
        find_images(faces_at(write_archive(add=claim)))
    assert os.listdir(cache) == []


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9, 0.99])
def test_an_archive_that_was_cut_off_is_refused_and_leaves_nothing(
    write_archive, faces_at, tmp_path, monkeypatch, kept
):
    cache = cached(monkeypatch, tmp_path)
    archive = write_archive()
    content = archive.read_bytes()
    archive.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(JobError, match="cannot be unpacked"):
        find_images(faces_at(archive))
    assert os.listdir(cache) == []


def listing(_number):
    return find_images(Data(name="faces")).train.paths


def test_many_processes_that_ask_at_once_get_the_same_stand_in(tmp_path, monkeypatch):
    cache = cached(monkeypatch, tmp_path)
    monkeypatch.setattr(faces, "_STAND_IN", Plan(people=40, images=200))
    sizes = check_data(Data(name="faces"))
    assert not cache.exists()  # what can be known before is known without making it
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as processes:
        listings = list(processes.map(listing, range(4)))
    assert all(found == listings[0] for found in listings)
    assert len(listings[0]) == sizes.train
    (folder,) = cache.iterdir()
    assert sum(len(files) for _, _, files in os.walk(folder)) == 200
    assert len(list(folder.iterdir())) == 40


def test_the_same_plan_makes_the_same_files_and_another_seed_others(tmp_path):
    plans = {"a": Plan(people=5, images=12), "b": Plan(people=5, images=12)}
    plans["c"] = Plan(people=5, images=12, seed=1)
    for name, plan in plans.items():
        (tmp_path / name).mkdir()
        make_faces(tmp_path / name, plan)
    contents = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.jpg")}
        for name in plans
    }
    assert len(contents["a"]) == 12
    assert contents["a"] == contents["b"]
    assert not set(contents["a"].values()) & set(contents["c"].values())
    with Image.open(tmp_path / "a/Person_0001/Person_0001_0001.jpg") as image:
        assert (image.size, image.mode, image.format) == ((250, 250), "RGB", "JPEG")


def test_a_few_people_have_many_images_and_most_have_few():
    counts = sorted(Plan().counts())
    assert (len(counts), sum(counts)) == (400, 2000)
    assert (counts[0], counts[200] <= 3, counts[-1] > 200) == (1, True, True)
    assert Plan(people=3, images=3).counts() == [1, 1, 1]


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HPCDIST_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(JobError, match="cannot be made: Not a directory") as error:
        find_images(Data(name="faces"))
    assert "HPCDIST_CACHE" in error.value.hint


def test_what_a_killed_process_left_a_day_ago_is_removed(tmp_path):
    old, new = (tmp_path / f".made.{name}.aside" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir()
        (folder / "half").touch()
    os.utime(old, (0, 0))
    make_once(tmp_path / "made", lambda folder: (folder / "whole").touch())
    assert sorted(os.listdir(tmp_path)) == [".made.new.aside", "made"]


def test_what_fails_while_it_is_made_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise JobError("no photographs")

    with pytest.raises(JobError, match="no photographs"):
        make_once(tmp_path / "made", fail)
    assert os.listdir(tmp_path) == []
