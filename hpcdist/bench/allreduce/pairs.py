"""Which pairs of nodes are measured when, and which of them are slow; pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import combinations

from hpcdist.bench.allreduce.bandwidth import bus_bandwidth

Pair = tuple[int, int]
"""Two nodes, the smaller number first."""

SLOW_SHARE = 0.5
"""A pair is slow below this share of what the best quarter of all pairs reach."""

_LEAST_PAIRS = 3  # of two, none can be told to be the odd one


def tournament(num_nodes: int) -> list[list[Pair]]:
    """All pairs of nodes in rounds, in each of which every node has at most one partner.

    A round-robin tournament by the circle method: one node stays, the others go round. It takes
    about as many rounds as there are nodes, where one pair after the other takes half the square.
    """
    circle: list[int | None] = [*range(num_nodes), *([None] if num_nodes % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append(sorted(_pair(a, b) for a, b in meetings if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def one_by_one(num_nodes: int) -> list[list[Pair]]:
    """All pairs of nodes, a round each."""
    return [[pair] for pair in combinations(range(num_nodes), 2)]


def plan_rounds(machines: list[str]) -> list[list[Pair]]:
    """How the nodes' pairs are measured; `machines` tells, by node, where it runs.

    Pairs of different machines use links of their own, and are measured at once: with 64 nodes, 63
    measurements last as long as 2,016 otherwise would. Simulated nodes on one machine would take
    each other's CPUs.
    """
    shares = len(set(machines)) < len(machines)
    return one_by_one(len(machines)) if shares else tournament(len(machines))


def pair_bandwidth(num_bytes: int, median_time_s: float) -> float:
    """Bus bandwidth in bytes per second that a pair is judged by: a slow link is slow each time,
    while one stall of a busy node would pull the mean of a few all-reduces below any limit."""
    return bus_bandwidth(num_bytes, median_time_s, 2)


def slow_pairs(bandwidths: Mapping[Pair, float]) -> list[Pair]:
    """Pairs below half of what the best quarter reach, the slowest first; none where there are too
    few to tell."""
    if len(bandwidths) < _LEAST_PAIRS:
        return []
    limit = SLOW_SHARE * usual_bandwidth(bandwidths.values())
    slow = [pair for pair, bandwidth in bandwidths.items() if bandwidth < limit]
    return sorted(slow, key=lambda pair: (bandwidths[pair], pair))


def next_to_confirm(bandwidths: Mapping[Pair, float], confirmed: Container[Pair]) -> Pair | None:
    """The slowest of the slow pairs that were measured only once; None where there is none.

    Asked after each measurement: what is measured again may raise the limit, below which there may
    then be others.
    """
    return next((pair for pair in slow_pairs(bandwidths) if pair not in confirmed), None)


def usual_bandwidth(bandwidths: Iterable[float]) -> float:
    """What the best quarter of pairs reach.

    One slow node slows all of its pairs: with 4 nodes half of all pairs, with 3 nodes two of three,
    so that their median would itself be slow.
    """
    ordered = sorted(bandwidths, reverse=True)
    return ordered[(len(ordered) - 1) // 4]


def common_node(pairs: Iterable[Pair]) -> int | None:
    """The one node that belongs to all of several pairs; None where there is none."""
    found = [set(pair) for pair in pairs]
    if len(found) < 2:  # of a single pair, either could be the cause
        return None
    common = set.intersection(*found)
    return common.pop() if len(common) == 1 else None


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)
