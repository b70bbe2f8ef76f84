"""Bandwidths of all-reduces, which pairs of nodes are slow, and what that means; pure.

By the definitions of nccl-tests (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests), the algorithm
bandwidth is the size over the time. Of n ranks, each must send and receive at least 2 (n - 1) / n
of the size, whatever the algorithm. The bus bandwidth is the algorithm bandwidth times that, so it
can be compared with the speed of the hardware for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations

from hpcdist.base.text import format_time, number_of, show_binary, show_bytes, shown
from hpcdist.bench.cells import CellTable, TimedCell

Pair = tuple[int, int]
"""Two nodes, the smaller number first."""

SLOW_SHARE = 0.5
"""A pair is slow below this share of what the best quarter of all pairs reach."""

_LEAST_PAIRS = 3  # of two, either could be the slow one
_SHOWN_PAIRS = 3


def size_table(dtype: str, num_ranks: int) -> CellTable:
    """Return the table of all-reduces of several sizes over all ranks."""
    return CellTable(
        name="all_reduce",
        caption=f"all-reduce of {dtype} by size, slowest of {number_of(num_ranks, 'rank')}",
        rate="bus_bytes_per_s",
        x="size_bytes",
    )


def bus_bandwidth(num_bytes: int, time_s: float, num_ranks: int) -> float:
    """Return bytes per second over each rank's link; 0 for one rank, which sends nothing."""
    return num_bytes / time_s * 2 * (num_ranks - 1) / num_ranks if time_s > 0 else 0.0


def tournament(num_nodes: int) -> list[list[Pair]]:
    """Arrange all pairs of nodes in rounds, in which every node has at most one partner.

    A round-robin tournament by the circle method: one node stays, the others go round. It takes
    about as many rounds as there are nodes, where one pair after the other takes half the square.
    """
    circle: list[int | None] = [*range(num_nodes), *([None] if num_nodes % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        pairs = [(a, b) for a, b in meetings if a is not None and b is not None]
        rounds.append(sorted((min(pair), max(pair)) for pair in pairs))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def plan_rounds(machines: list[str]) -> list[list[Pair]]:
    """Plan the rounds in which pairs are measured; `machines` has the machine of each node.

    Pairs of different machines use links of their own, and are measured at once: with 64 nodes, 63
    measurements last as long as 2,016 otherwise would. Simulated nodes on one machine would take
    each other's CPUs.
    """
    if len(set(machines)) == len(machines):
        return tournament(len(machines))
    return [[pair] for pair in combinations(range(len(machines)), 2)]


def slow_pairs(bandwidths: Mapping[Pair, float]) -> list[Pair]:
    """Return the pairs below half of what the best quarter reach, the slowest first; none where
    there are too few."""
    if len(bandwidths) < _LEAST_PAIRS:
        return []
    limit = SLOW_SHARE * usual_bandwidth(bandwidths.values())
    slow = [pair for pair, bandwidth in bandwidths.items() if bandwidth < limit]
    return sorted(slow, key=lambda pair: (bandwidths[pair], pair))


def next_to_confirm(bandwidths: Mapping[Pair, float], confirmed: Container[Pair]) -> Pair | None:
    """Return the slowest of the slow pairs that were measured only once; None where there is none.

    Call it after each measurement: a pair that is measured again may raise the limit, so that
    others are below it.
    """
    return next((pair for pair in slow_pairs(bandwidths) if pair not in confirmed), None)


def usual_bandwidth(bandwidths: Iterable[float]) -> float:
    """Return the bandwidth that the best quarter of pairs reach.

    One slow node slows all of its pairs: with 4 nodes half of all pairs, with 3 nodes two of three,
    so that their median would itself be slow.
    """
    ordered = sorted(bandwidths, reverse=True)
    return ordered[(len(ordered) - 1) // 4]


def common_node(pairs: Iterable[Pair]) -> int | None:
    """Return the node that belongs to all of several pairs; None where there is none."""
    nodes = [set(pair) for pair in pairs]
    if len(nodes) < 2:  # of a single pair, either could be the cause
        return None
    common = set.intersection(*nodes)
    return common.pop() if len(common) == 1 else None


def size_sentence(cells: Sequence[TimedCell], num_ranks: int, *, checked: bool) -> str:
    """Say the latency, of the smallest size, and the largest bandwidth."""
    smallest = min(cells, key=lambda cell: cell.keys["size_bytes"])
    best = max(cells, key=lambda cell: cell.rate or 0.0)
    bandwidth = ""
    if best.rate:  # one rank sends nothing
        bandwidth = f", at most {show_bytes(best.rate)}/s bus bandwidth, with {_size(best)}"
    return (
        f"all-reduce over {number_of(num_ranks, 'rank')}: "
        f"{format_time(smallest.more['median_time_s'])} with {_size(smallest)} "
        f"(p95 {format_time(smallest.more['p95_time_s'])}){bandwidth}; "
        f"{'all sums right' if checked else 'sums not checked'}."
    )


def _size(cell: TimedCell) -> str:
    return show_binary(int(cell.keys["size_bytes"]))


def pair_sentences(bandwidths: Mapping[Pair, float], hosts: Sequence[str]) -> list[str]:
    """Name the slow pairs, and the node that they share; `hosts` has the host of each node."""
    if not bandwidths:
        return []
    usual, slow = usual_bandwidth(bandwidths.values()), slow_pairs(bandwidths)
    if not slow:
        limit = f"{show_bytes(SLOW_SHARE * usual)}/s, half of what the best quarter reach"
        return [f"No pair of nodes is slow: all of {len(bandwidths):,} reach {limit}."]
    named = [
        f"{a} and {b} ({shown(hosts[a])} and {shown(hosts[b])}) {show_bytes(bandwidths[a, b])}/s"
        for a, b in slow[:_SHOWN_PAIRS]
    ]
    named += [f"and {len(slow) - _SHOWN_PAIRS:,} more"] if len(slow) > _SHOWN_PAIRS else []
    sentence = (
        f"Slow pairs of nodes, below half of the {show_bytes(usual)}/s that the best quarter "
        f"reach: {'; '.join(named)}."
    )
    node = common_node(slow)
    if node is None:
        return [sentence]
    look = "look at its link first"
    if len(set(hosts)) == 1:
        look = "all nodes are simulated on one host, so no link is slow"
    return [sentence, f"Node {node} ({shown(hosts[node])}) is in all of them: {look}."]
