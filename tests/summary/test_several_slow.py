"""Several slow ranks or nodes are all named, and so is a host that is slow in every repeat."""

import random

import pytest

from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.cells import common_straggler
from hpcdist.summary.figures.stragglers import Place, Stretch, find_straggler
from hpcdist.summary.values import Straggler

STEP_S = 0.1


def stretches(slow, *, num_ranks=8, more=1.2, spread=0.02, seed=0):
    draw = random.Random(seed)
    return [
        Stretch(
            10,
            [
                STEP_S * draw.gauss(more if rank in slow else 1.0, spread)
                for rank in range(num_ranks)
            ],
            [0.0] * num_ranks,
        )
        for _ in range(20)
    ]


def found(slow, *, ranks_per_node=8, **options):
    places = [
        Place(rank, rank // ranks_per_node, f"n{rank // ranks_per_node}") for rank in range(8)
    ]
    return find_straggler(stretches(slow, **options), places, STEP_S)


def test_two_slow_ranks_are_both_named_with_what_they_cost():
    straggler = found({1, 6})
    assert straggler_named(straggler) == "ranks 1 and 6"
    assert straggler.longer_s == pytest.approx(0.2 * STEP_S, rel=0.1)
    assert straggler.slowest_in == straggler.stretches == 20


def test_two_slow_nodes_of_four_are_both_named():
    straggler = found({2, 3, 6, 7}, ranks_per_node=2)
    assert straggler_named(straggler) == "all ranks of nodes 1 and 3"


def test_one_slow_rank_is_named_alone():
    assert straggler_named(found({5})) == "rank 5 (node 0, host n0)"


def test_equal_ranks_are_named_in_less_than_one_of_twenty_runs():
    named = [found((), spread=0.1, seed=seed) for seed in range(100)]
    assert sum(straggler is not None for straggler in named) < 5


def test_a_host_that_is_slow_at_other_node_numbers_is_named(measured_with):
    def run(node):
        found = Straggler(
            rank=None, node=node, host="n17", longer_s=0.1, slowest_in=9, stretches=10
        )
        return measured_with(straggler=found, num_hosts=4)

    straggler = common_straggler([run(node) for node in (0, 2, 3)])
    assert straggler_named(straggler) == "all ranks of host n17"
    assert straggler.slowest_in == 27


@pytest.fixture
def measured_with(make_run):
    from msgspec.structs import replace

    from hpcdist.summary.measuring import measure

    run = measure(make_run("run")).run
    return lambda **figures: replace(run, figures=replace(run.figures, **figures))
