"""What shows an agent that its ranks work, and what does not."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from waiting import wait_for

from hpcdist.agent import watch
from hpcdist.agent.forkserver import StackMemory
from hpcdist.agent.watch import RankWatch
from hpcdist.job.spec import JobSpec, Launch
from hpcdist.rank.board import ProgressBoard
from hpcdist.runs.run import Run

RANK = """
import os, subprocess, sys, time
SPIN = "import time\\nend = time.process_time() + 0.3\\nwhile time.process_time() < end: pass"
for number, line in enumerate(sys.stdin):
    exec(line)
    os.mkdir(f"done-{number}")  # nothing is written
"""
LOOK_S = 2.0
LIMIT_S = 20.0


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """A process that does what it is told, under watch; the clock goes on by 2 s per look."""
    clock = SimpleNamespace(now_s=1000.0)
    seen = SimpleNamespace(monotonic=lambda: clock.now_s, time=lambda: clock.now_s)
    monkeypatch.setattr(watch, "time", seen)
    board, stacks = ProgressBoard(1), StackMemory(1)
    job = JobSpec(name="train", workload="check", launch=Launch(hang_timeout_s=LIMIT_S))
    found = RankWatch(Run(tmp_path / "run"), job, board, stacks)
    order = SimpleNamespace(local_rank=0, rank=5, attempt=0, node_rank=0, host="host", num_gpus=0)
    found.begin([order])
    with subprocess.Popen(
        [sys.executable, "-ESc", RANK, str(stacks.only(0))],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        pass_fds=[stacks.only(0)],
    ) as process:
        found.pids[0] = process.pid
        orders = 0

        def tell(line):
            nonlocal orders
            print(line, file=process.stdin, flush=True)
            wait_for((tmp_path / f"done-{orders}").exists)
            orders += 1

        def look(times=1, every_s=LOOK_S):
            """Return the news of each look."""
            said = []
            for _ in range(times):
                clock.now_s += every_s
                said.append(found.look())
            return said

        def report():
            return found.hang_report(found.living()[0], [], None)

        tell("pass")
        look(3)
        quiet_s = lambda: report().silent_s  # noqa: E731
        yield SimpleNamespace(tell=tell, look=look, report=report, quiet_s=quiet_s, board=board)


def test_steps_output_files_and_processes_below_are_signs_of_work_and_cpu_time_alone_is_not(rank):
    rank.look(2)
    assert rank.quiet_s() == 4 * LOOK_S  # the first look is the begin
    rank.tell("pass")
    rank.tell("os.write(int(sys.argv[1]), b'where it is, as its agent has asked')")
    rank.look(2)
    assert rank.quiet_s() == 6 * LOOK_S
    for works in (
        "open('file', 'a').write('x')",
        "open('/dev/zero', 'rb').read(10 << 20)",
        "subprocess.run([sys.executable, '-ESc', SPIN])",
    ):
        rank.tell(works)
        rank.look()
        assert rank.quiet_s() == 0.0, works
        rank.look()
        assert rank.quiet_s() == LOOK_S
    rank.board.slot(0).alive()
    rank.look()
    assert rank.quiet_s() == 0.0
    rank.look(5)
    assert not rank.report().spins
    rank.tell("exec(SPIN)")
    rank.look()
    assert rank.quiet_s() == 6 * LOOK_S
    assert rank.report().spins


def test_ranks_that_do_not_work_are_news_after_the_limit_again_after_as_much_and_when_they_work(
    rank,
):
    assert rank.look(every_s=3600.0) == [None]  # the agent was suspended, and its ranks with it
    said = rank.look(30)
    assert [quiet_s for quiet_s in said if quiet_s is not None] == [20.0, 40.0, 60.0]
    rank.tell("print('works', flush=True)")
    assert rank.look(2) == [0.0, None]
    rank.look(12)
    assert rank.look(every_s=3600.0) == [0.0]  # it was suspended with its agent
    assert rank.look() == [None]
