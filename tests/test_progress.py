"""The board on which ranks tell their agent how far they are."""

import os
import time

from hpcdist.progress import ProgressBoard


def test_a_forked_rank_is_seen_by_its_parent():
    board = ProgressBoard(3)
    assert board.read(1).alive_s == 0.0
    begin_s = time.monotonic()
    if (pid := os.fork()) == 0:
        slot = board.slot(1)
        slot.start()
        slot.step(41)
        slot.alive()
        os._exit(0)
    os.waitpid(pid, 0)
    seen = board.read(1)
    assert begin_s <= seen.alive_s <= time.monotonic()
    assert (seen.step, seen.finished) == (41, False)
    assert [board.read(rank).step for rank in (0, 2)] == [None, None]


def test_no_step_is_told_from_step_0():
    board = ProgressBoard(1)
    slot = board.slot(0)
    slot.start()
    assert board.read(0).step is None
    slot.step(0)
    assert board.read(0).step == 0
    slot.finish()
    assert (board.read(0).step, board.read(0).finished) == (0, True)


def test_a_cleared_board_has_forgotten():
    board = ProgressBoard(2)
    for rank in range(2):
        board.slot(rank).step(5)
    board.clear()
    for rank in range(2):
        seen = board.read(rank)
        assert (seen.alive_s, seen.step, seen.finished) == (0.0, None, False)
