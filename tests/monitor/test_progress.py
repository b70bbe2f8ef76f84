"""Runs that go on: what their ranks recorded, read only once."""

import json
import os

import pytest

from hpcdist.monitor.progress import RunningRun
from hpcdist.schedulers.base import Condition

RUNNING = Condition(state="running")


def test_the_rate_is_that_of_all_ranks_as_if_they_were_as_fast_as_the_first(going):
    made = going(world_size=2)
    running = RunningRun(made.run)
    assert running.look(RUNNING) is None
    made.start(0)
    assert running.look(RUNNING).step is None
    made.window(0, 10, samples=100)
    seen = running.look(RUNNING)
    assert seen.samples_per_s == pytest.approx(200)
    assert (seen.step, seen.total_steps) == (10, 400)
    assert seen.remaining_s == pytest.approx(39)


def test_ranks_that_have_fallen_silent_have_no_pace(going):
    """Long before that is said to be odd: 34 samples/s is no truth after 45 s without a step."""
    made = going(world_size=1)
    made.start(0)
    made.window(0, 10)
    assert RunningRun(made.run).look(RUNNING).samples_per_s is not None
    age(made.run.event_file(0), 45)
    progress = RunningRun(made.run).look(RUNNING)
    assert (progress.step, progress.samples_per_s, progress.remaining_s) == (10, None, None)
    made.window(0, 20)
    file = made.run.event_file(0)
    os.utime(file, (1e9, 1e9))  # by a file server whose clock is behind
    assert RunningRun(made.run).look(RUNNING).samples_per_s is not None


def age(path, seconds):
    """Make the file older, and what is in it."""
    stat = path.stat()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    aged = [event | {"time_s": event["time_s"] - seconds} for event in events]
    path.write_text("".join(json.dumps(event) + "\n" for event in aged))
    os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def test_a_restart_begins_with_the_new_attempt(going):
    made = going(world_size=1)
    running = RunningRun(made.run)
    made.start(0)
    made.window(0, 50)
    assert running.look(RUNNING).step == 50
    made.attempt(1)
    made.start(0)
    made.writers[0].write({"event": "resume", "step": 40, "epoch": 0})
    seen = running.look(RUNNING)
    assert (seen.attempt, seen.step, seen.samples_per_s) == (1, 40, None)


def test_half_a_line_waits_for_its_end_and_nonsense_is_left_out(going):
    made = going(world_size=1)
    running, path = RunningRun(made.run), made.run.event_file(0)
    made.start(0)
    with path.open("ab") as appended:
        appended.write(b'nonsense\n[]\n\xff\n{"event":"steps",')
        appended.flush()
        assert running.look(RUNNING).step is None
        appended.write(b'"step":2}\n')
    assert running.look(RUNNING).step == 2


def test_of_a_long_file_the_begin_and_the_newest_windows_count(going):
    num_windows = 20_000
    made = going(world_size=1)
    made.start(0, total_steps=10**6)
    for number in range(1, num_windows + 1):
        made.window(0, 10 * number, samples=number)
    progress = RunningRun(made.run).look(RUNNING)
    assert (progress.step, progress.total_steps) == (10 * num_windows, 10**6)
    assert progress.samples_per_s == pytest.approx(num_windows - 2)  # of the last five
