"""Limits of open files: what a run needs, and who gets how many."""

import math
import resource
import subprocess
import sys

import pytest

from hpcdist.machine.descriptors import (
    most_ranks,
    needs_of_node,
    needs_of_node_0,
    shortage,
)


@pytest.mark.parametrize(
    ("nodes", "ranks", "is_gloo", "limit", "named"),
    [
        (1, 1, True, 1024, None),
        (1000, 1000, False, 1024, "the agent of node 0, which has a connection to each node"),
        (125, 1000, False, 1024, "the store of node 0, which has a connection to each rank"),
        (125, 1000, False, 4096, None),
        (20_000, 160_000, True, math.inf, None),
    ],
)
def test_the_largest_need_is_named_with_the_limit_and_what_to_do(
    nodes, ranks, is_gloo, limit, named
):
    needs = needs_of_node_0(nodes, ranks) + needs_of_node(8, ranks, is_gloo=is_gloo)
    found = shortage(needs, limit)
    assert (found is None) == (named is None)
    if found is not None:
        assert found.startswith(named)
        assert "needs 1,064 open files, and the hard limit is 1,024 (raise it" in found


def test_each_rank_needs_room_for_all_others_with_gloo_alone():
    assert shortage(needs_of_node(8, 1000, is_gloo=False), 1000) is None
    assert "each rank" in shortage(needs_of_node(8, 1000, is_gloo=True), 1000)
    assert "the agent, which has a file for each rank" in shortage(
        needs_of_node(128, 256, is_gloo=False), 190
    )


def test_a_limit_allows_the_ranks_whose_need_it_meets():
    limit = 4096
    assert shortage(needs_of_node_0(1, int(most_ranks(limit))), limit) is None
    assert shortage(needs_of_node_0(1, int(most_ranks(limit)) + 1), limit) is not None


SHOW = """\
import resource
from hpcdist.machine import descriptors
descriptors.{call}
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("call", "before", "after"),
    [
        ("use_all_descriptors()", (40, 900), (900, 900)),
        ("settle_for_rank(1024, 2)", (4096, 4096), (1024, 4096)),  # enough: as the user has it
        ("settle_for_rank(44, 40)", (4096, 4096), (352, 4096)),
        ("settle_for_rank(1024, 2000)", (4096, 4096), (4096, 4096)),
    ],
)
def test_limits_are_raised_where_a_process_needs_more_and_a_rank_keeps_its_own_where_not(
    call, before, after
):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    command = [sys.executable, "-c", SHOW.format(call=call)]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=True)
    assert tuple(map(int, done.stdout.split())) == after
