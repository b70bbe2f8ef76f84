"""A copy of a run is no repeat of it."""

import shutil

import pytest

from hpcdist.runs.run import Run
from hpcdist.summary import summarize


@pytest.mark.parametrize("how", ["copied", "linked", "copied into another folder"])
def test_a_copy_of_a_run_is_no_repeat_of_it_and_that_is_told(add_run, tmp_path, how):
    made = [add_run(rate) for rate in (98.0, 102.0)]
    copy = tmp_path / "runs" / "best"
    if how == "linked":
        copy.symlink_to(made[0].path)
    else:
        if "folder" in how:
            copy = tmp_path / "archive" / made[0].id
        shutil.copytree(made[0].path, copy)
    summary = summarize([*made, Run(copy)], {})
    assert [run.run for run in summary.runs] == [run.id for run in made]
    assert summary.runs[0].cell.num_measured == 2
    (said,) = summary.skipped
    assert said.endswith(f"{copy.name}: skipped, it is run {made[0].id} once more: {made[0].path}")


def test_a_run_whose_folder_has_another_name_by_now_counts(add_run):
    run = add_run(98.0)
    moved = run.path.rename(run.path.with_name("best"))
    summary = summarize([Run(moved)], {})
    assert ([one.run for one in summary.runs], summary.skipped) == (["best"], [])
