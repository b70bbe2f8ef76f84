"""What is read of runs, and what is said of what cannot be."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from hpcdist.base import files
from hpcdist.base.errors import RunNotFoundError
from hpcdist.runs.run import HOLDER, Run
from hpcdist.summary import summarize
from hpcdist.summary.read.collect import search_named
from hpcdist.summary.read.event_file import EVENT_TYPES, OTHER_KINDS

EVENTS_PAGE = Path(__file__).parents[2] / "docs" / "events.md"


@pytest.fixture
def stepped_run(make_run, events):
    """One rank with eleven windows at 100 samples/s."""
    run = make_run("one")
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 11)])
    return run


def append(run, text):
    with run.event_file(0).open("ab") as file:
        file.write(text)


DEEP = b'{"event":"start","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
EVENTS = "runs/one/events"
FAULTS = {
    "an unknown kind": (lambda run: append(run, b'{"event":"weather","sky":"blue"}\n'), []),
    "torn and deep lines": (
        lambda run: append(run, DEEP + b'{"event":"steps","time_s":1'),
        [f"{EVENTS}/rank-00000.jsonl: 2 torn lines skipped"],
    ),
    "no folder": (
        lambda run: shutil.rmtree(run.events_folder),
        [f"{EVENTS}: no events, No such file or directory"],
    ),
    "torn small files": (
        lambda run: (
            run.submission_file.write_text("["),
            run.verdict_file.write_text('{"kind": "done"}'),
        ),
        [
            "runs/one/submission.json: skipped, it is torn, or not JSON: Expecting value: "
            "line 1 column 2 (char 1)",
            "runs/one/verdict.json: skipped, object missing required field `message`",
        ],
    ),
    "a torn spec": (
        lambda run: run.spec_file.write_text('{"job": {"na'),
        ["runs/one: skipped, spec.json cannot be read: it is torn, or not JSON: Unterminated"],
    ),
    "another spec": (
        lambda run: files.write_json(run.spec_file, {"job": {"name": "ddp"}}),
        ["runs/one/spec.json: run skipped, its job is not as expected: "],
    ),
}


@pytest.mark.parametrize(("spoil", "faults"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_read_is_told_and_the_rest_is_used(
    stepped_run, monkeypatch, tmp_path, spoil, faults
):
    monkeypatch.chdir(tmp_path)
    spoil(stepped_run)
    summary = summarize([stepped_run], {"one": "lost"})
    assert len(summary.skipped) == len(faults)
    assert all(map(str.startswith, summary.skipped, faults)), summary.skipped
    assert len(summary.runs) == ("spec.json" not in "".join(faults))
    assert {round(run.samples_per_s.mean) for run in summary.runs if run.samples_per_s} <= {100}
    if "verdict" in "".join(faults):
        assert [(run.state, run.scheduler) for run in summary.runs] == [("lost", None)]


ODD = {
    "text for a time": {"wall_s": "long"},
    "negative steps": {"steps": -1},
    "a bucket beyond all time": {"histogram": {"99999": [1]}},
    "a time beyond all time": {"wall_s": 1e300},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_events_with_odd_fields_are_counted_and_left_out(stepped_run, events, change):
    (odd,) = events.steady([1.0], first_step=110)
    append(stepped_run, json.dumps(odd | change).encode() + b"\n")
    summary = summarize([stepped_run], {})
    assert summary.skipped == [
        f"{stepped_run.event_file(0)}: 1 event skipped, fields are missing or of the wrong type"
    ]
    assert summary.runs[0].samples_per_s.mean == pytest.approx(100)


def test_the_summary_knows_the_kinds_of_events_that_are_documented():
    documented = re.findall(r"^\| `(\w+)` \|", EVENTS_PAGE.read_text(), flags=re.MULTILINE)
    assert {*documented} == {*EVENT_TYPES, *OTHER_KINDS}


# Which runs there are.


@pytest.mark.parametrize("make", [shutil.copytree, os.symlink], ids=["copied", "linked"])
def test_a_copy_of_a_run_is_no_repeat_of_it_and_that_is_told(add_run, tmp_path, make):
    made = [add_run(rate) for rate in (98.0, 102.0)]
    copy = tmp_path / "runs" / "best"
    make(made[0].path, copy)
    summary = summarize([*made, Run(copy)], {})
    assert [run.run for run in summary.runs] == [run.id for run in made]
    (said,) = summary.skipped
    assert said.endswith(f"{copy.name}: skipped, it is run {made[0].id} once more: {made[0].path}")


def names(runs):
    return sorted(run.id for run in runs)


def test_runs_are_found_in_their_folder_by_name_or_in_a_folder_that_is_named(
    make_run, tmp_path, monkeypatch
):
    run = make_run("one")
    runs = run.path.parent
    (runs / "sweep").mkdir()
    (runs / "sweep" / "sweep.json").write_text("{}")
    (runs / "notes.txt").write_text("mine")
    assert names(search_named(runs, [])) == ["one"]
    shutil.copytree(run.path, tmp_path / "elsewhere" / "copied")
    (tmp_path / "one").mkdir()  # a run of the folder comes before a folder
    monkeypatch.chdir(tmp_path)
    for name in ("elsewhere", "./elsewhere/", str(tmp_path / "elsewhere"), "elsewhere/copied"):
        assert names(search_named(runs, [name])) == ["copied"]
    assert names(search_named(runs, ["one", "elsewhere", "one"])) == ["copied", "one"]
    with pytest.raises(RunNotFoundError, match="there is no run in") as caught:
        search_named(runs, [str(tmp_path / "one")])
    assert "spec.json" in caught.value.hint


def test_a_dev_run_is_summarized_only_where_it_is_named(make_run):
    run, dev = make_run("one"), make_run("dev-20260101-120000-abcd", job="dev")
    spec = files.read_json(dev.spec_file)
    spec["job"]["args"] = ["-c", f"{HOLDER}; main()"]
    files.write_json(dev.spec_file, spec)
    assert [each.id for each in search_named(run.path.parent, [])] == ["one"]
    assert [each.id for each in search_named(run.path.parent, [dev.id])] == [dev.id]
