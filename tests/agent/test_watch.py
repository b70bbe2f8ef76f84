"""What an agent makes of the silence of its ranks."""

import os
import time
from types import SimpleNamespace

import pytest

from hpcdist.agent import watch
from hpcdist.agent.stacks import Stacks
from hpcdist.agent.watch import RankWatch
from hpcdist.job.spec import JobSpec, Launch, ScriptJob
from hpcdist.rank.board import ProgressBoard
from hpcdist.runs.run import Run


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to; ranks store those of the real clock."""
    clock = SimpleNamespace(ahead_s=0.0)
    seen = SimpleNamespace(
        monotonic=lambda: time.monotonic() + clock.ahead_s, time=lambda: time.time() + clock.ahead_s
    )
    monkeypatch.setattr(watch, "time", seen)
    return clock


SOON = Launch(hang_timeout_s=60)


def watched(tmp_path, job=None):
    """The watch over a rank that has begun, with 60 s to give a sign of life."""
    job = job or JobSpec(name="train", workload="check", launch=SOON)
    board = ProgressBoard(1)
    found = RankWatch(Run(tmp_path / "run"), job, board, Stacks(1))
    found.begin([SimpleNamespace(local_rank=0, rank=5, attempt=0)])
    found.pids[0] = 1
    board.slot(0).alive()
    return found


def pass_time(found, clock, seconds, *, every_s):
    """What the watch said while time went by; it looks every so many seconds."""
    said = []
    for _ in range(int(seconds / every_s)):
        clock.ahead_s += every_s
        said.append(found.most_silent())
    return said


def test_the_time_for_which_an_agent_was_suspended_is_no_silence_of_its_ranks(tmp_path, clock):
    found = watched(tmp_path)
    assert pass_time(found, clock, 3600, every_s=3600) == [None]
    said = pass_time(found, clock, 70, every_s=0.5)
    assert (said[0], said[-1]) == (None, 5)


@pytest.mark.parametrize("ahead_s", [-1200, 0, 1200])
def test_what_a_rank_prints_is_a_sign_of_life_whatever_clock_the_file_server_has(
    tmp_path, clock, ahead_s
):
    found = watched(tmp_path, ScriptJob(name="t", workload="script", script="t.py", launch=SOON))
    log = found.run.log_file(5, 0)
    log.parent.mkdir(parents=True)
    said = []
    for line in range(10):
        with log.open("a") as file:
            print(line, file=file)
        stamp = time.time() + clock.ahead_s + ahead_s
        os.utime(log, (stamp, stamp))
        said += pass_time(found, clock, 30, every_s=0.5)
    assert set(said) == {None}
    said = pass_time(found, clock, 70, every_s=0.5)
    assert (said[0], said[-1]) == (None, 5)
