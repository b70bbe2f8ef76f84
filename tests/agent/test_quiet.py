"""When nodes that show no sign of work are said to hang, and when no more."""

from dataclasses import dataclass, field

import pytest

from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome.quiet import QuietRun
from hpcdist.rank.collectives import Collectives, GroupRecord, Operation
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

    now: float = 1000.0
    asked: int = 0
    said: list = field(default_factory=list)

    def __post_init__(self):
        self.quiet = QuietRun(
            attempt=3,
            world_size=2,
            now=lambda: self.now,
            unix_now=lambda: self.now,
            ask=self.ask,
            note=self.said.append,
        )

    def ask(self):
        self.asked += 1

    def be_quiet(self, *nodes):
        for node in nodes:
            self.quiet.on_quiet(node, 900.0, NODES)

    def answer(self, *reports):
        for one in reports:
            self.quiet.on_reports(one.end.node, [one], NODES, {})

    def wait(self):
        """Until the next look."""
        self.now, asked = self.quiet.deadline, self.asked
        self.quiet.on_time()
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
    run.quiet.on_quiet(1, 0.0, NODES)
    assert run.said[1].recovered_s == run.now
    run.be_quiet(1)
    run.answer(report(0), report(1))
    assert len(run.said) == 3


IN_NCCL = {"spins": True, "pending": 7}


@pytest.mark.parametrize(
    ("first", "second", "is_said"),
    [
        # NCCL's ranks spin in one operation; rank 1 sits elsewhere and does nothing
        (
            (report(0, **IN_NCCL), report(1, at="b")),
            (report(0, **IN_NCCL), report(1, at="b")),
            True,
        ),
        # ... and all in one that does not end
        ((report(0, **IN_NCCL), report(1, **IN_NCCL)),) * 2 + (True,),
        # rank 1 evaluates or compiles meanwhile, and is in no operation
        ((report(0, **IN_NCCL), report(1, spins=True)),) * 2 + (False,),
        # ... and has begun one before, which does not wait for its end
        (
            (report(0, **IN_NCCL), report(1, **IN_NCCL, at="layer1")),
            (report(0, **IN_NCCL), report(1, **IN_NCCL, at="layer2")),
            False,
        ),
        # training goes on
        (
            (report(0, spins=True, pending=7), report(1, spins=True, pending=7)),
            (report(0, spins=True, pending=8), report(1, spins=True, pending=8)),
            False,
        ),
        # a rank that computes in C code, and does not answer
        ((report(0, **IN_NCCL), HangReport(end=report(1).end, silent_s=0, spins=True)),) * 2
        + (False,),
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
    for _ in range(3):
        run.wait()
        run.answer(*second)
    assert run.quiet.deadline - run.now == 900.0


def test_a_hang_that_was_said_of_ranks_that_spin_ends_with_the_operation():
    run = Run()
    run.be_quiet(*NODES)
    for number in (7, 7, 8):
        run.answer(*(report(rank, spins=True, pending=number) for rank in NODES))
        run.wait()
    assert [hang.recovered_s is None for hang in run.said] == [True, False]
