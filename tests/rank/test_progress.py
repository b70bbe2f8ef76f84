"""The board on which ranks tell their agent how far they are."""

import os
import time

from hpcdist.rank.board import ProgressBoard


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
