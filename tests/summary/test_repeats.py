"""Repeats: the interval of their mean, and what cannot be told apart."""

import io
import os
import re
import shutil

import pytest
from another_user import NOBODY, needs_root

from hpcdist.runs.run import Run
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.report.text import make_console


@pytest.mark.parametrize(
    ("rates", "differs"),
    [((180.0, 182.0, 184.0), True), ((103.0, 105.0, 101.0), False)],
    ids=["apart", "overlapping"],
)
def test_sizes_are_not_distinguishable_where_the_interval_of_their_ratio_holds_1(
    add_run, rates, differs
):
    made = [add_run(rate) for rate in (98.0, 100.0, 102.0)]
    made += [add_run(rate, gpus=2) for rate in rates]
    summary = summarize(made, {})
    assert [run.cell.differs_from_baseline for run in summary.runs] == [None] * 3 + [differs] * 3
    file = io.StringIO()
    print_summary(summary, make_console(file))
    conclusion, table = file.getvalue().split("\n\n", 1)
    assert re.search(r"1 x 1 +3 +100 ± 5 +100 +1 \* +100 +-", table)
    assert ("faster than 1 (1 x 1) is not certain" in conclusion.replace("\n", " ")) is not differs
    assert re.search(rf"1 x 2 +3 .* {'yes' if differs else 'no'}$", table, re.MULTILINE)


@pytest.mark.parametrize(
    "how",
    [
        "copied",
        "linked",
        "copied into another folder",
        pytest.param("copied into a folder by another user", marks=needs_root),
    ],
)
def test_a_copy_of_a_run_is_no_repeat_of_it_and_that_is_told(add_run, tmp_path, how):
    made = [add_run(rate) for rate in (98.0, 102.0)]
    copy = tmp_path / "runs" / "best"
    if how == "linked":
        copy.symlink_to(made[0].path)
    else:
        if "folder" in how:
            copy = tmp_path / "archive" / made[0].id
        shutil.copytree(made[0].path, copy)
    if "user" in how:
        os.chown(copy, NOBODY, NOBODY)
    found = [*made, Run(copy)] if how.endswith("folder") else [Run(copy), *made]
    summary = summarize(found, {})
    assert [run.run for run in summary.runs] == [run.id for run in made]
    assert summary.runs[0].cell.num_measured == 2
    (said,) = summary.skipped
    assert said.endswith(f"{copy.name}: skipped, it is run {made[0].id} once more: {made[0].path}")


def test_a_run_whose_folder_has_another_name_by_now_counts(add_run):
    run = add_run(98.0)
    moved = run.path.rename(run.path.with_name("best"))
    summary = summarize([Run(moved)], {})
    assert ([one.run for one in summary.runs], summary.skipped) == (["best"], [])
