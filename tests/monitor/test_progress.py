"""Runs that go on: what their ranks recorded, read only once."""

import json
import os
import tracemalloc

import pytest

from hpcdist.base import files
from hpcdist.monitor.progress import RunningRun
from hpcdist.monitor.watch import RunView
from hpcdist.runs.events import EventWriter
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Condition

DAY_S = 86400
RUNNING = Condition(state="running")


def test_progress_and_rate_are_those_of_all_ranks(going):
    made = going(world_size=2)
    running = RunningRun(made.run)
    assert running.look(RUNNING) is None

    made.start(0)
    seen = running.look(RUNNING)
    assert (seen.num_alive, seen.world_size) == (1, 2)
    assert seen.progress.step is None

    made.start(1)
    made.window(0, 10, samples=100)
    assert running.look(RUNNING).progress.samples_per_s == pytest.approx(200)  # the other, too
    made.window(1, 10, samples=60)
    seen = running.look(RUNNING)
    assert seen.progress.samples_per_s == pytest.approx(160)
    assert (seen.progress.step, seen.progress.total_steps) == (10, 400)
    assert seen.progress.remaining_s == pytest.approx(39)
    assert seen.num_alive == 2
    assert not seen.troubles


def test_only_the_newest_windows_count(going):
    made = going(world_size=1)
    made.start(0)
    running = RunningRun(made.run)
    for number in range(1, 6):
        made.window(0, 10 * number, samples=100)
    assert running.look(RUNNING).progress.samples_per_s == pytest.approx(100)
    for number in range(6, 11):
        made.window(0, 10 * number, samples=300)
    assert running.look(RUNNING).progress.samples_per_s == pytest.approx(300)


def test_a_rank_that_ended_is_not_alive_and_a_failure_is_told(going):
    made = going(world_size=3)
    for rank in range(3):
        made.start(rank)
    made.end(1, "killed")
    made.end(2, "done")
    seen = RunningRun(made.run).look(RUNNING)
    assert seen.num_alive == 1
    assert seen.troubles == ["ended before the others: rank 1 (killed)"]


def test_a_slow_rank_is_named_though_all_ranks_step_together(going):
    made = going(world_size=3)
    for rank, waiting_s in enumerate((0.5, 0.0, 0.5)):
        made.start(rank)
        made.window(rank, 10, wall_s=1.0, waiting_s=waiting_s)
    (trouble,) = RunningRun(made.run).look(RUNNING).troubles
    assert trouble == "rank 1 is slow: its own part of a step takes 2.0 times as long"


def test_ranks_that_record_nothing_for_long_are_told(going):
    made = going(world_size=1)
    made.start(0)
    made.window(0, 10)
    path = made.run.event_file(0)
    age(path, DAY_S)
    (trouble,) = RunningRun(made.run).look(RUNNING).troubles
    assert trouble == "its ranks have recorded nothing for 1 day"

    made.window(0, 20, wall_s=DAY_S)  # its next window may take as long
    age(path, DAY_S)
    assert not RunningRun(made.run).look(RUNNING).troubles


def test_a_rank_that_records_nothing_while_others_do_is_named(going):
    made = going(world_size=2)
    for rank in range(2):
        made.start(rank)
        made.window(rank, 10)
    age(made.run.event_file(1), DAY_S)
    (trouble,) = RunningRun(made.run).look(RUNNING).troubles
    assert trouble == "rank 1 has recorded nothing for 1 day, while others have"


def test_ranks_that_have_fallen_silent_have_no_pace(going):
    """Long before that is said to be odd: 34 samples/s is no truth after 45 s without a step."""
    made = going(world_size=1)
    made.start(0)
    made.window(0, 10)
    assert RunningRun(made.run).look(RUNNING).progress.samples_per_s is not None
    age(made.run.event_file(0), 45)
    progress = RunningRun(made.run).look(RUNNING).progress
    assert (progress.step, progress.samples_per_s, progress.remaining_s) == (10, None, None)
    made.window(0, 20)
    assert RunningRun(made.run).look(RUNNING).progress.samples_per_s is not None
    made.end(0)  # the pace of the whole run
    age(made.run.event_file(0), 45)
    assert RunningRun(made.run).look(RUNNING).progress.samples_per_s is not None


@pytest.mark.parametrize("has_ended", [False, True], ids=["began just now", "was ended"])
def test_a_run_that_waits_has_a_pace_only_if_its_ranks_are_at_work(going, has_ended):
    """Ranks that a requeue has killed said nothing at their end."""
    made = going(world_size=1)
    made.start(0)
    made.window(0, 10)
    if has_ended:
        ended = Verdict(kind="preempted", state="preempted", message="", exit_code_of_run=75)
        made.run.write_attempt_verdict(ended)
    seen = RunningRun(made.run).look(Condition(state="pending", reason="it was requeued"))
    assert seen.is_at_work == (not has_ended)
    assert (seen.progress.samples_per_s is None) == has_ended
    suspended = Condition(state="running", is_suspended=True)
    assert RunningRun(made.run).look(suspended).progress.samples_per_s is None


def age(path, seconds):
    """Make the file older, and what is in it."""
    stat = path.stat()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    aged = [event | {"time_s": event["time_s"] - seconds} for event in events]
    path.write_text("".join(json.dumps(event) + "\n" for event in aged))
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def test_a_file_server_whose_clock_is_behind_makes_no_rank_quiet(going):
    made = going(world_size=1)
    made.start(0)
    made.window(0, 10)
    stat = made.run.event_file(0).stat()
    os.utime(made.run.event_file(0), (stat.st_atime - DAY_S, stat.st_mtime - DAY_S))
    assert RunningRun(made.run).look(RUNNING).troubles == []


def test_a_restart_begins_with_the_new_attempt(going):
    made = going(world_size=1)
    running = RunningRun(made.run)
    made.start(0)
    made.window(0, 50)
    assert running.look(RUNNING).progress.step == 50
    made.attempt(1)
    assert running.look(RUNNING) is None
    made.start(0)
    made.window(0, 30)
    seen = running.look(RUNNING)
    assert (seen.progress.attempt, seen.progress.step) == (1, 30)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"step": "many"},
        {"step": 7, "steps": None, "wall_s": "long", "step_time_s": 3},
        {"step": 7, "phases_s": {"exposed_communication": [1]}},
    ],
    ids=str,
)
def test_windows_of_another_version_do_not_stop_the_view(going, odd):
    made = going(world_size=1)
    made.start(0)
    made.writers[0].write({"event": "setup", "total_steps": "some"})
    made.writers[0].write({"event": "steps", **odd})
    assert RunningRun(made.run).look(RUNNING).num_alive == 1


# Files.


def test_half_a_line_waits_for_its_end_and_nonsense_is_left_out(going):
    made = going(world_size=1)
    running, path = RunningRun(made.run), made.run.event_file(0)
    made.start(0)
    with path.open("ab") as appended:
        appended.write(b'nonsense\n[]\n\xff\n{"event":"steps",')
        appended.flush()
        assert running.look(RUNNING).progress.step is None
        appended.write(b'"step":2}\n')
    assert running.look(RUNNING).progress.step == 2


@pytest.mark.parametrize("num_windows", [*range(30, 60), 20_000])
def test_of_a_long_file_the_begin_and_the_newest_windows_count(going, num_windows):
    made = going(world_size=1)
    made.start(0, total_steps=10**6)
    for number in range(1, num_windows + 1):
        made.window(0, 10 * number, samples=number)
    progress = RunningRun(made.run).look(RUNNING).progress
    assert (progress.step, progress.total_steps) == (10 * num_windows, 10**6)
    assert progress.samples_per_s == pytest.approx(num_windows - 2)  # of the last five


def test_a_line_without_an_end_does_not_fill_the_memory(going):
    made = going(world_size=1)
    made.start(0)
    with made.run.event_file(0).open("ab") as appended:
        appended.truncate(1 << 34)
    running = RunningRun(made.run)
    tracemalloc.start()
    assert running.look(RUNNING).num_alive == 1
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_file_that_does_not_grow_is_not_opened(going, monkeypatch):
    made = going(world_size=1)
    made.start(0)
    running = RunningRun(made.run)
    running.look(RUNNING)
    monkeypatch.setattr("hpcdist.monitor.progress.open_regular", None)
    assert running.look(RUNNING).num_alive == 1


def test_of_thousands_of_ranks_some_are_looked_at_evenly(going, drawn, monkeypatch):
    made = going(world_size=0)
    job = {"name": "ddp", "resources": {"nodes": 256, "gpus": 8}}
    files.write_json(made.run.spec_file, {"id": made.run.id, "created_s": 1.7e9, "job": job})
    made.world_size = 2048
    for rank in (0, 1, 4, 2044, 2047):
        made.writers[rank] = EventWriter(made.run.event_file(rank))
        made.start(rank)
        made.window(rank, 10, samples=100)
    opened = []
    opens = files.open_regular
    note = lambda path, **options: opened.append(path.name) or opens(path, **options)  # noqa: E731
    running = RunningRun(made.run)
    monkeypatch.setattr("hpcdist.monitor.progress.open_regular", note)
    seen = running.look(RUNNING)
    assert {*opened} == {f"rank-{rank:05d}.jsonl" for rank in (0, 4, 2044)}
    assert (seen.num_alive, seen.num_looked_at, seen.world_size) == (3, 512, 2048)
    assert seen.progress.samples_per_s == pytest.approx(2048 * 100)
    (*_, row) = drawn([RunView(run="ddp-1", state="running", ranks=seen)], title="")
    assert "3/512 of 2048" in row
