"""What shows an agent that its ranks work, and what does not."""

import itertools
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


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """A process that does what it is told, under watch; the clock goes on by 2 s per look."""
    clock = SimpleNamespace(now_s=1000.0)
    seen = SimpleNamespace(monotonic=lambda: clock.now_s, time=lambda: clock.now_s)
    monkeypatch.setattr(watch, "time", seen)
    board, stacks = ProgressBoard(1), StackMemory(1)
    job = JobSpec(name="train", workload="check", launch=Launch(hang_timeout_s=20.0))
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
        found.pids[0], done = process.pid, itertools.count()

        def tell(line):
            print(line, file=process.stdin, flush=True)
            wait_for((tmp_path / f"done-{next(done)}").exists)

        def look(times=1):
            """Look so often; where the rank is then."""
            for _ in range(times):
                clock.now_s += LOOK_S
                found.look()
            return found.hang_report(found.living()[0], [], None)

        tell("pass")
        look(3)
        yield SimpleNamespace(tell=tell, look=look, alive=board.slot(0).alive)


def test_steps_output_files_and_processes_below_are_signs_of_work_and_cpu_time_alone_is_not(rank):
    assert rank.look(2).silent_s == 4 * LOOK_S  # the first look is the begin
    rank.tell("os.write(int(sys.argv[1]), b'where it is, as its agent has asked')")
    assert rank.look(2).silent_s == 6 * LOOK_S
    for works in (
        "open('file', 'a').write('x')",
        "open('/dev/zero', 'rb').read(10 << 20)",
        "subprocess.run([sys.executable, '-ESc', SPIN])",
    ):
        rank.tell(works)
        assert rank.look().silent_s == 0.0, works
        assert rank.look().silent_s == LOOK_S
    rank.alive()
    assert rank.look().silent_s == 0.0
    assert not rank.look(5).spins
    rank.tell("exec(SPIN)")
    report = rank.look()
    assert (report.silent_s, report.spins) == (6 * LOOK_S, True)
