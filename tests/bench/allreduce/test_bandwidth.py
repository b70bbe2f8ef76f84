"""Rounds of a tournament, and which pairs are slow."""

from itertools import chain, combinations

import pytest

from hpcdist.bench.allreduce.bandwidth import (
    bus_bandwidth,
    common_node,
    next_to_confirm,
    pair_sentences,
    plan_rounds,
    size_sentence,
    slow_pairs,
    tournament,
)
from hpcdist.bench.cells import timed_cell


@pytest.mark.parametrize("num_nodes", range(1, 12))
def test_every_pair_meets_once_and_nobody_meets_two_at_a_time(num_nodes):
    rounds = tournament(num_nodes)
    met = list(chain.from_iterable(rounds))
    assert sorted(met) == list(combinations(range(num_nodes), 2))
    for one in rounds:
        nodes = list(chain.from_iterable(one))
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize(("num_nodes", "num_rounds"), [(2, 1), (3, 3), (4, 3), (7, 7), (64, 63)])
def test_a_tournament_takes_no_more_rounds_than_it_must(num_nodes, num_rounds):
    assert len(tournament(num_nodes)) == num_rounds


def test_nodes_of_one_machine_are_measured_one_pair_after_the_other():
    assert plan_rounds(["a", "b", "c", "d"]) == tournament(4)
    assert plan_rounds(["a", "b", "a"]) == [[(0, 1)], [(0, 2)], [(1, 2)]]


def test_pairs_below_half_of_what_the_best_quarter_reach_are_slow_the_slowest_first():
    bandwidths = dict.fromkeys(combinations(range(4), 2), 10.0)
    assert slow_pairs(bandwidths) == []
    bandwidths |= {(1, 2): 4.9, (0, 2): 1.0, (2, 3): 5.0}
    assert slow_pairs(bandwidths) == [(0, 2), (1, 2)]
    bandwidths[0, 1] = 1e6  # one alone is no measure for all
    assert slow_pairs(bandwidths) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("num_nodes", [3, 4, 5, 16])
def test_all_pairs_of_one_slow_node_are_slow(num_nodes):
    pairs = list(combinations(range(num_nodes), 2))
    bandwidths = {pair: 1.0 if 1 in pair else 10.0 for pair in pairs}
    assert common_node(slow_pairs(bandwidths)) == 1
    assert len(slow_pairs(bandwidths)) == num_nodes - 1


def test_of_fewer_than_three_pairs_none_is_the_odd_one():
    assert slow_pairs({(0, 1): 1.0}) == []


def test_the_node_that_all_slow_pairs_share_is_found():
    assert common_node([(0, 2), (1, 2), (2, 3)]) == 2
    assert common_node([(0, 1), (2, 3)]) is None
    assert common_node([(0, 1)]) is None


def test_a_pair_that_is_slow_only_beside_what_was_measured_again_is_measured_again_too():
    first = {(0, 1): 242, (0, 2): 1210, (0, 3): 668, (1, 2): 400, (1, 3): 184, (2, 3): 1440}
    second = {(1, 3): 1280, (0, 1): 1210, (1, 2): 1430, (0, 3): 680}
    asked = []
    while (pair := next_to_confirm(first, asked)) is not None:
        first[pair] = second[pair]
        asked.append(pair)
    assert asked == [(1, 3), (0, 1), (1, 2), (0, 3)]
    assert slow_pairs(first) == [(0, 3)]


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_counts_what_each_rank_must_send(ranks, factor):
    assert bus_bandwidth(1_000, 1e-3, ranks) == pytest.approx(factor * 1e6)


def test_no_time_gives_no_bandwidth():
    assert bus_bandwidth(1_000, 0.0, 4) == 0.0


def size(num_bytes, time_s, bandwidth):
    more = {"median_time_s": time_s, "p95_time_s": 2 * time_s}
    keys = {"size_bytes": num_bytes}
    return timed_cell("all_reduce", keys, [time_s], rate=bandwidth, more=more)


def test_the_sentence_has_latency_bandwidth_and_whether_sums_were_checked():
    cells = [size(1024, 20e-6, 77e6), size(1 << 20, 1e-3, 1.57e9)]
    assert size_sentence(cells, 4, checked=True) == (
        "all-reduce over 4 ranks: 20.0 µs with 1 KiB (p95 40.0 µs), at most 1.6 GB/s bus "
        "bandwidth, with 1 MiB; all sums right."
    )
    assert size_sentence([size(1024, 20e-6, 0.0)], 1, checked=False) == (
        "all-reduce over 1 rank: 20.0 µs with 1 KiB (p95 40.0 µs); sums not checked."
    )


HOSTS = ["n0", "n1", "n2", "n3"]
FAST = dict.fromkeys(combinations(range(4), 2), 10e9)


@pytest.mark.parametrize(
    ("changed", "hosts", "said"),
    [
        (
            {(0, 2): 1e9, (2, 3): 2e9},
            HOSTS,
            (
                "Slow pairs of nodes, below half of the 10 GB/s that the best quarter reach: "
                "0 and 2 (n0 and n2) 1 GB/s; 2 and 3 (n2 and n3) 2 GB/s. Node 2 (n2) is in all of "
                "them: look at its link first."
            ),
        ),
        (
            {(0, 2): 1e9, (2, 3): 2e9},
            ["vm"] * 4,
            (
                "Slow pairs of nodes, below half of the 10 GB/s that the best quarter reach: "
                "0 and 2 (vm and vm) 1 GB/s; 2 and 3 (vm and vm) 2 GB/s. Node 2 (vm) is in all of "
                "them: all nodes are simulated on one host, so no link is slow."
            ),
        ),
        (
            {},
            HOSTS,
            "No pair of nodes is slow: all of 6 reach 5 GB/s, half of what the best quarter reach.",
        ),
    ],
    ids=["one-node", "one-host", "none"],
)
def test_slow_pairs_are_named_with_their_hosts_and_the_node_they_share(changed, hosts, said):
    assert " ".join(pair_sentences(FAST | changed, hosts)) == said
    assert pair_sentences({}, hosts) == []
