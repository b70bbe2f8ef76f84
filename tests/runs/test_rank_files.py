"""Files of thousands of ranks lie in folders of some hundreds; older runs are read all the same."""

from pathlib import Path

import pytest

from hpcdist.remote.bring import is_brought
from hpcdist.runs import rank_files
from hpcdist.runs.run import Run
from hpcdist.summary.read import collect
from hpcdist.summary.read.cache import take_fingerprint

RANKS = (0, 499, 500, 612, 8191, 123456)


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path, "ddp")
    run.make_rank_folders(RANKS)
    return run


def test_no_folder_gets_more_files_than_some_hundreds_of_ranks_write(run):
    folders = {run.event_file(rank).parent for rank in range(8192)}
    most = max(sum(run.log_file(rank).parent == run.logs_folder for rank in range(8192)), 0)
    assert len(folders) == 17
    assert most == 500
    assert run.event_file(7, 2) == run.events_folder / "rank-00007.attempt-2.jsonl"
    assert run.event_file(612) == run.events_folder / "00500" / "rank-00612.jsonl"


def test_files_of_all_ranks_are_listed_in_order_wherever_they_are(run):
    for rank in RANKS:
        run.event_file(rank).write_text("")
        run.log_file(rank).write_text("")
    run.log_file(612, 3).write_text("")
    run.usage_file(612).write_text("")
    older = run.events_folder / "rank-00700.jsonl"  # as versions before had them
    older.write_text("")
    assert [number for number, *_ in run.event_files()] == sorted([*RANKS, 700])
    assert (700, 0, older) in run.event_files()
    assert (612, 3, run.log_file(612, 3)) in run.log_files()
    assert run.usage_files() == [(612, 0, run.usage_file(612))]


def test_a_change_of_any_of_these_files_is_seen(run):
    run.event_file(612).write_text("{}\n")
    before = take_fingerprint(run)
    run.event_file(612).write_text("{}\n{}\n")
    after = take_fingerprint(run)
    assert before.digest != after.digest
    assert (before.event_bytes, after.event_bytes) == (3, 6)


def test_a_fault_names_the_inner_folder_and_so_does_what_is_no_event_file(run):
    run.event_file(612).write_text("")
    (run.events_folder / "00500" / "notes.txt").write_text("")
    (run.events_folder / "01000").write_text("a file in the place of a folder")
    faults = collect.read_rank(run.event_file(612), rank=612, attempt=0).faults
    assert [fault.path for fault in faults] == ["events/00500/rank-00612.jsonl"]
    foreign = collect._foreign_event_files(run)
    assert [fault.path for fault in foreign] == ["events/00500/notes.txt", "events/01000"]


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("logs/rank-00007.log", True),
        ("logs/rank-00612.log", True),
        ("logs/00500/rank-00612.attempt-1.log", True),
        ("logs/../rank-00007.log", False),
        ("logs/00500/../rank-00007.log", False),
        ("events/rank-00007.log", False),
        ("logs/00500/00500/rank-00612.log", False),
        ("rank-00007.log", False),
    ],
)
def test_a_verdict_names_logs_of_ranks_only(run, name, is_log):
    assert (run.named_log(name) is not None) == is_log
    assert rank_files.is_place(name, "logs", rank_files.LOG_FILE) == is_log


def test_events_in_inner_folders_are_brought_from_a_host(run):
    assert is_brought("events/00500/rank-00612.jsonl")
    assert is_brought("events/node-00003.attempt-1.jsonl")
    assert not is_brought("events/../rank-00612.jsonl")
    assert not is_brought("logs/00500/rank-00612.jsonl")


def test_a_folder_with_too_many_files_is_refused_and_not_held_in_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_files, "_MOST_FILES", 5)
    for rank in range(6):
        Path(tmp_path, f"rank-{rank:05d}.log").write_text("")
    with pytest.raises(OSError, match="more than 5 files"):
        rank_files.list_places(tmp_path)
    assert rank_files.list_numbered(tmp_path, rank_files.LOG_FILE) == []
