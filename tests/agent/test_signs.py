"""What shows that a rank works, and what does not."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from waiting import wait_for

from hpcdist.agent import signs
from hpcdist.agent.signs import WorkSigns
from hpcdist.agent.stacks import Stacks
from hpcdist.rank.board import ProgressBoard

RANK = """
import os, subprocess, sys, time
SPIN = "import time\\nend = time.process_time() + 0.7\\nwhile time.process_time() < end: pass"
for number, line in enumerate(sys.stdin):
    exec(line)
    os.mkdir(f"done-{number}")  # nothing is written
"""
LOOK_S = 2.0


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """A process that does what it is told, under watch; the clock goes on by 2 s per look."""
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(signs, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    board, stacks = ProgressBoard(1), Stacks(1)
    found = WorkSigns(board, stacks, notice_s=20.0)
    with subprocess.Popen(
        [sys.executable, "-ESc", RANK, str(stacks.only(0))],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        pass_fds=[stacks.only(0)],
    ) as process:
        orders = 0

        def tell(line):
            nonlocal orders
            print(line, file=process.stdin, flush=True)
            wait_for((tmp_path / f"done-{orders}").exists)
            orders += 1

        def look(times=1):
            for _ in range(times):
                clock.now_s += LOOK_S
                assert found.look({0: process.pid})
            return found.quiet_s()

        tell("pass")
        look(3)
        yield SimpleNamespace(tell=tell, look=look, signs=found, board=board)


def test_steps_output_files_and_processes_below_are_signs_of_work_and_cpu_time_alone_is_not(rank):
    assert rank.look(2) == 4 * LOOK_S  # the first look is the begin
    rank.tell("pass")
    assert rank.look() == 5 * LOOK_S
    rank.tell("os.write(int(sys.argv[1]), b'where it is, as its agent has asked')")
    assert rank.look() == 6 * LOOK_S
    for works in (
        "open('file', 'a').write('x')",
        "open('/dev/zero', 'rb').read(10 << 20)",
        "subprocess.run([sys.executable, '-ESc', SPIN])",
    ):
        rank.tell(works)
        assert rank.look() == 0.0, works
        assert rank.look() == LOOK_S
    rank.board.slot(0).alive()
    assert rank.look() == 0.0
    rank.look(5)
    assert not rank.signs.spins(0)
    rank.tell("exec(SPIN)")
    assert rank.look() == 6 * LOOK_S
    assert rank.signs.spins(0)
    rank.signs.forgive()
    assert rank.look() == LOOK_S
