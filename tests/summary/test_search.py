from __future__ import annotations

import shutil

import pytest

from hpcdist.base.errors import RunNotFoundError
from hpcdist.summary.read.collect import search_named


def names(runs):
    return sorted(run.id for run in runs)


def test_without_a_name_the_runs_of_the_folder_are_found(make_run):
    runs = make_run("sweep-000").path.parent
    (runs / "sweep").mkdir()
    (runs / "sweep" / "sweep.json").write_text("{}")
    (runs / "old-results").mkdir()
    (runs / "notes.txt").write_text("mine")
    assert names(search_named(runs, [])) == ["sweep-000"]


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
    assert [found.path for found in search_named(tmp_path / "runs", ["one"])] == [run.path]


def test_a_folder_without_runs_is_an_error_that_says_what_a_run_is(tmp_path):
    with pytest.raises(RunNotFoundError, match="there is no run in") as caught:
        search_named(tmp_path / "runs", [str(tmp_path)])
    assert "spec.json" in caught.value.hint
