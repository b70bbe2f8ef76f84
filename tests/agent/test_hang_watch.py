"""When nodes that show no sign of work are said to hang, and when no more."""

import math
from dataclasses import dataclass, field

import pytest

from hpcdist.agent.messages import Dump, HangReport
from hpcdist.agent.outcome.hang import HangWatch
from hpcdist.runs.requests import Collectives, GroupRecord, Operation
from hpcdist.runs.verdict import RankEnd

NODES = (0, 1)


def report(rank, *, spins=False, pending=None, at="a", **fields):
    """Of the rank of a node, in an operation that is pending, or in none."""
    operation = Operation(number=pending or 1, name="all_reduce", is_done=pending is None)
    return HangReport(
        end=RankEnd(rank=rank, local_rank=0, node=rank, host=f"n{rank}", time_s=1.0),
        silent_s=0.0,
        where=f"{at}.py:1 (f)",
        stack=at,
        spins=spins,
        collectives=Collectives(groups=[GroupRecord(name="0", operations=[operation])]),
        **fields,
    )


@dataclass
class Run:
    """A run of two nodes with a rank each."""

    timeout_s: float = math.inf
    now: float = 1000.0
    asked: int = 0
    said: list = field(default_factory=list)

    def __post_init__(self):
        of_run = {"attempt": 3, "nodes": NODES, "world_size": 2, "ends": {}}
        self.watch = HangWatch(**of_run, timeout_s=self.timeout_s)

    def take(self, found):
        self.asked += sum(isinstance(one, Dump) for one in found)
        self.said += [one for one in found if not isinstance(one, Dump)]

    def be_quiet(self, *nodes, quiet_s=900.0):
        for node in nodes:
            self.take(self.watch.on_quiet(node, quiet_s, now=self.now, unix_now=self.now))

    def answer(self, *reports):
        for one in reports:
            found = self.watch.on_reports(one.end.node, [one], now=self.now, unix_now=self.now)
            self.take(found)

    def wait(self):
        """Until the next look."""
        self.now, asked = self.watch.deadline, self.asked
        self.take(self.watch.on_time(now=self.now))
        assert self.asked == asked + 1


def test_a_run_whose_ranks_do_nothing_is_said_to_hang_once_all_nodes_are_quiet_and_then_no_more():
    run = Run()
    run.be_quiet(0)
    assert run.asked == 0
    run.be_quiet(1)
    run.answer(report(0, pending=2, is_waiting=True), report(1, at="data"))
    (hang,) = run.said
    assert (hang.attempt, hang.rank, hang.recovered_s) == (3, 1, None)
    assert hang.message.startswith(
        "rank 1 (node 1, host n1) seems to hang, in data.py:1 (f); rank 1 never reached "
        "all_reduce, number 2 (at a.py:1 (f)), in which rank 0 waits since "
    )
    assert "; no rank has worked since " in hang.message
    run.wait()
    run.answer(report(0, pending=2, is_waiting=True), report(1, at="data"))
    assert len(run.said) == 1
    run.be_quiet(1, quiet_s=0.0)
    assert run.said[1].recovered_s == run.now
    run.be_quiet(1)
    run.answer(report(0), report(1))
    assert len(run.said) == 3


IN_NCCL = {"spins": True, "pending": 7}
SPINS = [report(rank, **IN_NCCL) for rank in NODES]
AT_LAYERS = [[SPINS[0], report(1, **IN_NCCL, at=f"layer{number}")] for number in (1, 2)]


@pytest.mark.parametrize(
    ("first", "second", "is_said"),
    [
        # NCCL's ranks spin in one operation; rank 1 sits elsewhere and does nothing
        (*[[SPINS[0], report(1, at="b")]] * 2, True),
        # ... and all in one that does not end
        (SPINS, SPINS, True),
        # rank 1 evaluates or compiles meanwhile, and is in no operation
        (*[[SPINS[0], report(1, spins=True)]] * 2, False),
        # ... and has begun one before, which does not wait for its end
        (*AT_LAYERS, False),
        # training goes on
        (SPINS, [report(rank, spins=True, pending=8) for rank in NODES], False),
    ],
)
def test_ranks_that_use_cpus_hang_where_two_looks_find_them_in_one_operation(
    first, second, is_said
):
    run = Run()
    run.be_quiet(*NODES)
    run.answer(*first)
    assert not run.said  # one look proves nothing
    run.wait()
    run.answer(*second)
    assert bool(run.said) is is_said
    pauses = []
    for _ in range(3):
        pauses.append(run.watch.deadline - run.now)
        run.wait()
        run.answer(*second)
    assert 225.0 < pauses[0] < pauses[1] < pauses[2]  # a look takes each rank a moment


WAITS = [report(0, pending=2, is_waiting=True), report(1, at="data")]


@pytest.mark.parametrize(
    ("reports", "kinds", "first"),
    [([report(rank, spins=True) for rank in NODES], [], None), (WAITS, ["Hang"], 1)],
    ids=["that use CPUs", "that do nothing"],
)
def test_a_run_of_ranks_is_ended_after_a_last_look_at_the_time_out(reports, kinds, first):
    run = Run(timeout_s=2000.0)
    run.be_quiet(*NODES)
    while run.now < 2100.0:  # 900 s had passed before
        run.answer(*reports)
        assert [type(one).__name__ for one in run.said] == kinds
        run.wait()
    run.answer(*reports)
    verdict = run.said[-1]
    assert (verdict.kind, len(run.said)) == ("hang", len(kinds) + 1)
    if first is not None:
        assert (verdict.first.rank, verdict.victims) == (first, [0])
        assert "rank 1 never reached all_reduce, number 2" in verdict.message
