from __future__ import annotations

import os

import pytest

from hpcdist.base import files
from hpcdist.summary import summarize


@pytest.fixture
def stepped_run(make_run, events):
    """One rank with eleven windows at 100 samples/s."""
    run = make_run("one")
    events.write(run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 11)])
    return run


def test_a_torn_last_line_is_counted_and_the_rest_is_used(stepped_run):
    with stepped_run.event_file(0).open("ab") as file:
        file.write(b'{"event":"steps","time_s":1')
    summary = summarize([stepped_run], {})
    assert summary.skipped == [f"{stepped_run.event_file(0)}: 1 torn line skipped"]
    assert summary.runs[0].samples_per_s.mean == pytest.approx(100)


def test_a_line_that_is_nested_deep_is_a_torn_line(stepped_run):
    with stepped_run.event_file(0).open("ab") as file:
        file.write(b'{"event":"start","x":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n")
    summary = summarize([stepped_run], {})
    assert summary.skipped == [f"{stepped_run.event_file(0)}: 1 torn line skipped"]
    assert summary.runs[0].samples_per_s.mean == pytest.approx(100)


def test_an_event_file_beyond_all_size_is_skipped_and_told(stepped_run):
    os.truncate(stepped_run.event_file(0), 2_000_000_000)
    (fault,) = summarize([stepped_run], {}).skipped
    assert fault == (
        f"{stepped_run.event_file(0)}: skipped, it cannot be read: "
        "it has 2 GB, and no more than 250 MB are read"
    )


def test_a_folder_of_events_that_is_flooded_is_told_once(stepped_run, monkeypatch):
    monkeypatch.setattr(files, "MOST_ENTRIES", 3)
    for number in range(4):
        (stepped_run.events_folder / f"x{number}").touch()
    (fault,) = summarize([stepped_run], {}).skipped
    assert fault == f"{stepped_run.events_folder}: no events, it holds more than 3 entries"


def test_paths_below_the_working_directory_are_shown_relative_to_it(stepped_run, monkeypatch):
    monkeypatch.chdir(stepped_run.path.parent.parent)
    stepped_run.event_file(0).write_bytes(b"\x00\xff\n{}\n[1]\nnull\n")
    assert summarize([stepped_run], {}).skipped == [
        "runs/one/events/rank-00000.jsonl: 4 torn lines skipped"
    ]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"wall_s": "long"}, id="text for a time"),
        pytest.param({"steps": -1}, id="negative steps"),
        pytest.param({"samples": None}, id="null samples"),
        pytest.param({"step_time_s": {}}, id="no sums"),
        pytest.param({"histogram": {"99999": [1]}}, id="a bucket beyond all time"),
        pytest.param({"histogram": {"9": [1] * 9999}}, id="more counts than there are buckets"),
        pytest.param({"phases_s": {"data_wait": "long"}}, id="text for the time of a phase"),
        pytest.param({"wall_s": 1e300}, id="a time beyond all time"),
    ],
)
def test_events_with_odd_fields_are_counted_and_left_out(stepped_run, events, change):
    (odd,) = events.steady([1.0], first_step=110)
    run = stepped_run
    events.write(
        run, 0, [events.start(0, world_size=1), *events.steady([100.0] * 11), odd | change]
    )
    summary = summarize([run], {})
    assert summary.skipped == [
        f"{run.event_file(0)}: 1 event skipped, fields are missing or of the wrong type"
    ]
    assert summary.runs[0].samples_per_s.mean == pytest.approx(100)


def test_events_of_unknown_kinds_are_no_fault(stepped_run):
    with stepped_run.event_file(0).open("ab") as file:
        file.write(b'{"event":"weather","time_s":1,"sky":"blue"}\n')
    assert summarize([stepped_run], {}).skipped == []


def test_an_empty_event_file_is_told(make_run, events):
    run = make_run("empty")
    events.write(run, 0, [])
    summary = summarize([run], {})
    assert summary.skipped == [f"{run.event_file(0)}: skipped, it is empty"]
    assert summary.runs[0].samples_per_s is None


def test_an_event_file_that_cannot_be_read_is_told(stepped_run):
    stepped_run.event_file(1).mkdir()
    summary = summarize([stepped_run], {})
    assert summary.skipped == [
        f"{stepped_run.event_file(1)}: skipped, it cannot be read: it is not a regular file"
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("", "it is torn, or not JSON: Expecting value", id="empty"),
        pytest.param('{"job": {"na', "it is torn, or not JSON: Unterminated string", id="torn"),
        pytest.param("[1, 2]", "expected `object`, got `array`", id="a list"),
        pytest.param("[" * 9999, "it is nested more than 64 levels deep", id="deep"),
        pytest.param("[" * 70 + "]" * 70, "it is nested more than 64 levels deep", id="70 levels"),
        pytest.param(" " * 16_000_001, "it has 16 MB, and no more than 16 MB are read", id="large"),
        pytest.param(b"\xed\xa0\x80", "it is not UTF-8 text", id="no text"),
    ],
)
def test_a_run_with_a_broken_spec_is_skipped_and_told(stepped_run, content, reason):
    stepped_run.spec_file.write_bytes(content if isinstance(content, bytes) else content.encode())
    summary = summarize([stepped_run], {})
    assert summary.runs == []
    (fault,) = summary.skipped
    assert fault.startswith(f"{stepped_run.path}: skipped, spec.json cannot be read: {reason}")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="no job"),
        pytest.param({"job": {"name": "ddp"}}, id="no resources"),
        pytest.param({"job": {"name": 3, "resources": {"nodes": 1, "gpus": 1}}}, id="odd name"),
    ],
)
def test_a_run_whose_job_is_not_as_expected_is_skipped_and_told(stepped_run, spec):
    files.write_json(stepped_run.spec_file, spec)
    (told,) = summarize([stepped_run], {}).skipped
    assert told.startswith(f"{stepped_run.spec_file}: run skipped, its job is not as expected: ")


def test_torn_small_files_are_told_and_their_values_unknown(stepped_run):
    stepped_run.submission_file.write_text("[")
    stepped_run.verdict_file.write_text('{"kind": "done"}')
    summary = summarize([stepped_run], {"one": "lost"})
    why = "Expecting value: line 1 column 2 (char 1)"
    assert summary.skipped == [
        f"{stepped_run.submission_file}: skipped, it is torn, or not JSON: {why}",
        f"{stepped_run.verdict_file}: skipped, object missing required field `message`",
    ]
    (run,) = summary.runs
    assert (run.scheduler, run.verdict, run.state) == (None, None, "lost")


def test_a_run_directory_without_its_folders_is_still_a_run(stepped_run):
    os.unlink(stepped_run.event_file(0))
    stepped_run.events_folder.rmdir()
    for folder in stepped_run.attempts_folder.iterdir():
        folder.rmdir()
    stepped_run.attempts_folder.rmdir()
    summary = summarize([stepped_run], {})
    assert summary.runs[0].restarts == 0
    assert summary.skipped == [f"{stepped_run.events_folder}: no events, No such file or directory"]
