"""The board on which ranks tell their agent how far they are, and the pipe between both."""

import os
import time

from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.pipe import Profiled, RankPipe, Unwritten
from hpcdist.runs.requests import StepReport
from hpcdist.runs.verdict import ErrorReport

REPORT = ErrorReport(exception="E", text="x", traceback=None, time_s=1.0)


def rank_that(does):
    """A pipe, of which a process of its own has done this with the rank's end."""
    found = RankPipe()
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        return found
    does(found)
    os._exit(0)


def test_what_a_rank_tells_is_there_until_the_next_attempt():
    def does(found):
        assert found.say(Profiled(wish=3, report=StepReport(steps=2)))
        assert found.say(Unwritten(report=REPORT))

    found = rank_that(does)
    assert found.report_on(3).steps == 2
    assert found.report_on(4) is None
    assert found.unwritten() == REPORT
    found.clear()
    assert (found.report_on(3), found.unwritten(), found.account()) == (None, None, None)


def test_questions_that_nobody_reads_end_nothing_and_are_not_for_the_next_rank():
    found = RankPipe()
    for _ in range(5_000):
        found.ask()
    assert not found.is_attended
    found.clear()
    found.ask()
    assert int.from_bytes(found._rank.recv(8), "little") == 5_001


def rank_that_stops(board, rank, step_s, says):
    """Fork a rank whose steps take `step_s`; it says when it has begun, and in the end the boundary
    at which it stopped."""
    if pid := os.fork():
        return pid
    slot = board.slot(rank)
    slot.alive()
    while not slot.should_stop():
        if slot.last_step is None:
            os.write(says, b"up\n")
        slot.step(1)
        time.sleep(step_s)
    os.write(says, b"%d\n" % board.read(rank).boundary)
    os._exit(0)


def test_ranks_that_run_apart_stop_at_the_same_boundary():
    """Two boards are two nodes; nothing but the boards holds the ranks together."""
    boards = [ProgressBoard(2), ProgressBoard(2)]
    reading, writing = os.pipe()
    said = os.fdopen(reading, "rb", buffering=0)
    steps_s = [0.001, 0.001, 0.002, 0.004]
    pids = [
        rank_that_stops(boards[rank // 2], rank % 2, step_s, writing)
        for rank, step_s in enumerate(steps_s)
    ]
    assert {said.readline() for _ in steps_s} == {b"up\n"}
    for board in boards:
        board.pause()
    time.sleep(0.01)
    last = max(board.last_boundary() for board in boards)
    for board in boards:
        board.stop_at(last + 1)
    assert {os.waitpid(pid, 0)[1] for pid in pids} == {0}
    os.close(writing)
    with said:
        assert {int(line) for line in said if line != b"up\n"} == {last + 1}


def test_without_an_order_nothing_stops_and_a_cleared_board_has_none():
    board = ProgressBoard(1)
    assert not board.slot(0).should_stop()
    board.stop_at(1)
    board.pause()  # too late: the boundary is agreed upon
    assert board.slot(0).should_stop()
    board.clear()
    assert board.last_boundary() == 0
    assert not board.slot(0).should_stop()
