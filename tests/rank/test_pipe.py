"""The pipe between a rank and its agent."""

import os

import msgspec

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


def test_what_the_program_writes_there_and_what_is_too_long_are_left_out():
    def does(found):
        for packet in (b"x", b"\xff", b"{}"):
            found._rank.send(packet)
        long = msgspec.structs.replace(REPORT, text="x" * (1 << 20))
        assert not found.say(Unwritten(report=long))

    found = rank_that(does)
    assert (found.account(), found.unwritten()) == (None, None)


def test_questions_that_nobody_reads_end_nothing_and_are_not_for_the_next_rank():
    found = RankPipe()
    for _ in range(5_000):
        found.ask()
    assert not found.is_attended
    found.clear()
    found.ask()
    assert int.from_bytes(found._rank.recv(8), "little") == 5_001
