from __future__ import annotations

import shutil

import pytest

from hpcdist.base.errors import RunDirectoryError, RunNotFoundError
from hpcdist.summary import summarize
from hpcdist.summary.read.search import search_named, search_runs


def names(found):
    return sorted(run.id for run in found.runs)


def test_runs_in_folders_below_are_found_and_folders_without_runs_are_told(make_run, tmp_path):
    make_run("one")
    make_run("two").path.rename(tmp_path / "two")
    runs = tmp_path / "runs"
    (runs / "group" / "of-may").mkdir(parents=True)
    (tmp_path / "two").rename(runs / "group" / "of-may" / "two")
    (runs / "empty" / "inside").mkdir(parents=True)
    found = search_runs(runs)
    assert names(found) == ["one", "two"]
    assert [entry.id for entry in found.foreign] == ["empty"]


def test_links_that_lead_in_circles_give_each_run_once(make_run):
    runs = make_run("one").path.parent
    (runs / "group").mkdir()
    (runs / "one").rename(runs / "group" / "one")
    (runs / "again").symlink_to(runs)
    (runs / "group" / "self").symlink_to(runs / "group")
    assert names(search_runs(runs)) == ["one"]


def test_links_that_lead_out_of_the_folder_are_followed_to_runs_only(make_run, tmp_path):
    runs = make_run("one").path.parent
    away = tmp_path / "away" / "deeper"
    shutil.copytree(runs / "one", away / "two")
    (runs / "root").symlink_to("/")
    (runs / "itself").symlink_to("itself")
    (runs / "beside").symlink_to(runs.parent / "away")
    (runs / "two").symlink_to(away / "two")
    found = search_runs(runs)
    assert names(found) == ["one", "two"]
    assert [entry.id for entry in found.foreign] == ["beside", "itself", "root"]
    assert summarize(found.foreign, {}).skipped == [
        f"{runs / name}: skipped, a link is followed to a run, or within the folder: name the "
        "folder it leads to"
        for name in ("beside", "itself", "root")
    ]


def test_a_folder_flooded_with_folders_is_refused_by_name(make_run, monkeypatch):
    runs = make_run("one").path.parent
    monkeypatch.setattr("hpcdist.summary.read.search._MOST_FOLDERS", 4)
    for number in range(5):
        (runs / "flood" / str(number)).mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"flood/.*: more than 4 folders are there"):
        search_runs(runs)


def test_the_folder_of_a_sweep_is_neither_a_run_nor_foreign(make_run):
    runs = make_run("sweep-000").path.parent
    (runs / "sweep").mkdir()
    (runs / "sweep" / "sweep.json").write_text("{}")
    assert names(search_runs(runs)) == ["sweep-000"]
    assert search_runs(runs).foreign == []


def test_a_folder_that_was_copied_from_elsewhere_can_be_named(make_run, tmp_path, monkeypatch):
    run = make_run("one")
    shutil.copytree(run.path, tmp_path / "elsewhere" / "copied")
    monkeypatch.chdir(tmp_path)
    for name in ("elsewhere", "./elsewhere/", str(tmp_path / "elsewhere"), "elsewhere/copied"):
        assert names(search_named(tmp_path / "runs", [name])) == ["copied"]
    assert names(search_named(tmp_path / "runs", ["one", "elsewhere", "one"])) == ["copied", "one"]


def test_a_name_is_a_run_of_the_folder_before_it_is_a_folder(make_run, tmp_path, monkeypatch):
    run = make_run("one")
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [found.path for found in search_named(tmp_path / "runs", ["one"]).runs] == [run.path]


def test_a_folder_without_runs_is_an_error_that_says_what_a_run_is(tmp_path):
    with pytest.raises(RunNotFoundError, match="there is no run in") as caught:
        search_named(tmp_path / "runs", [str(tmp_path)])
    assert "spec.json" in caught.value.hint
