"""Bandwidths of all-reduces, which pairs of nodes are slow, and what that means; pure.

By the definitions of nccl-tests (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests), the algorithm
bandwidth is the size over the time. Of n ranks, each must send and receive at least 2 (n - 1) / n
of the size, whatever the algorithm. The bus bandwidth is the algorithm bandwidth times that, so it
can be compared with the speed of the hardware for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from hpcdist.base.statistics import Measure, spread_measure
from hpcdist.base.text import format_time, number_of, show_binary, show_bytes, shown
from hpcdist.bench.benchmark import PerSecond
from hpcdist.runs.events import Count, Seconds

Pair = tuple[int, int]
"""Two nodes, the smaller number first."""

SLOW_SHARE = 0.5
"""A pair is slow below this share of what the best quarter of all pairs reach."""

_LEAST_PAIRS = 3  # of two, either could be the slow one
_SHOWN_PAIRS = 3


class SizeFigures(Struct, frozen=True, kw_only=True):
    """All-reduces of one size; times are those of the slowest rank."""

    bytes: Count = 0
    iterations: Count = 0
    mean_time_s: Seconds = 0.0
    blocks: Count = 0
    """Blocks of iterations in a row that the sd is over."""
    sd_time_s: Seconds | None = None
    """Standard deviation of the blocks' mean times."""
    median_time_s: Seconds = 0.0
    p95_time_s: Seconds = 0.0
    min_time_s: Seconds = 0.0
    algorithm_bytes_per_s: PerSecond = 0.0
    bus_bytes_per_s: PerSecond = 0.0
    checked: bool = False
    """The sums were checked, and are right."""

    @property
    def time_s(self) -> Measure:
        """The mean time, with its spread over blocks of iterations."""
        return spread_measure(self.mean_time_s, self.sd_time_s, self.blocks, over="windows")


class Collective(SizeFigures, frozen=True, kw_only=True, tag_field="event", tag="collective"):
    """The event of all-reduces of one size over all ranks."""

    ranks: Annotated[int, Meta(ge=1, le=10**9)] = 1
    dtype: str | None = None


class NodePair(Struct, frozen=True, kw_only=True, tag_field="event", tag="pair"):
    """The event of all-reduces between two nodes."""

    nodes: tuple[int, int]
    hosts: tuple[str, str]
    bytes: Count
    mean_time_s: Seconds
    median_time_s: Seconds
    alone: bool = False


class PairFigures(Struct, frozen=True, kw_only=True):
    """All-reduces between one rank of each of two nodes, as its event, and the bandwidth."""

    nodes: tuple[int, int]
    hosts: tuple[str, str]
    bytes: int
    mean_time_s: float
    median_time_s: float
    bus_bytes_per_s: float
    """By the median time."""
    alone: bool
    """No other pair was measured at the same time."""


class Latency(Struct, frozen=True, kw_only=True):
    """Time of an all-reduce of the smallest size."""

    bytes: int
    median_time_s: float
    p95_time_s: float


class AllreduceSummary(Struct, frozen=True, kw_only=True):
    """The result of the benchmark: all-reduces over all ranks, and between pairs of nodes."""

    ranks: int
    dtype: str | None
    latency: Latency
    sizes: list[SizeFigures]
    pairs: list[PairFigures] = []
    slow_pairs: list[PairFigures] = []
    """Below half of what the best quarter of all pairs reach, the slowest first."""


def algorithm_bandwidth(num_bytes: int, time_s: float) -> float:
    """Return bytes per second; 0 where no time passed."""
    return num_bytes / time_s if time_s > 0 else 0.0


def bus_bandwidth(num_bytes: int, time_s: float, num_ranks: int) -> float:
    """Return bytes per second over each rank's link; 0 for one rank, which sends nothing."""
    return algorithm_bandwidth(num_bytes, time_s) * 2 * (num_ranks - 1) / num_ranks


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


def pair_bandwidth(num_bytes: int, median_time_s: float) -> float:
    """Return the bus bandwidth that a pair is judged by, in bytes per second.

    A slow link is slow each time, while a single stall of a busy node would pull the mean of a few
    all-reduces below any limit.
    """
    return bus_bandwidth(num_bytes, median_time_s, 2)


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


def summarize(
    collectives: Sequence[Collective], pairs: Sequence[NodePair]
) -> AllreduceSummary | None:
    """Return the figures of one rank's events; None where it measured no all-reduce."""
    measured = {event.bytes: event for event in collectives if event.bytes and event.iterations}
    if not measured:
        return None
    sizes = [
        SizeFigures(**{name: getattr(event, name) for name in SizeFigures.__struct_fields__})
        for _, event in sorted(measured.items())
    ]
    by_nodes = {  # a later event corrects an earlier
        event.nodes: PairFigures(
            **asdict(event), bus_bytes_per_s=pair_bandwidth(event.bytes, event.median_time_s)
        )
        for event in pairs
    }
    slow = slow_pairs({nodes: pair.bus_bytes_per_s for nodes, pair in by_nodes.items()})
    first = next(iter(measured.values()))
    return AllreduceSummary(
        ranks=first.ranks,
        dtype=first.dtype,
        latency=Latency(
            bytes=sizes[0].bytes,
            median_time_s=sizes[0].median_time_s,
            p95_time_s=sizes[0].p95_time_s,
        ),
        sizes=sizes,
        pairs=[by_nodes[nodes] for nodes in sorted(by_nodes)],
        slow_pairs=[by_nodes[nodes] for nodes in slow],
    )


def allreduce_sentences(summary: AllreduceSummary) -> list[str]:
    """Return sentences on latency and bandwidth, then on slow pairs."""
    best = max(summary.sizes, key=lambda size: size.bus_bytes_per_s)
    latency = summary.latency
    checked = all(size.checked for size in summary.sizes)
    bandwidth = ""
    if best.bus_bytes_per_s:  # one rank sends nothing
        bandwidth = (
            f", at most {show_bytes(best.bus_bytes_per_s)}/s bus bandwidth, "
            f"with {show_binary(best.bytes)}"
        )
    sentence = (
        f"all-reduce over {number_of(summary.ranks, 'rank')}: "
        f"{format_time(latency.median_time_s)} with {show_binary(latency.bytes)} "
        f"(p95 {format_time(latency.p95_time_s)}){bandwidth}; "
        f"{'all sums right' if checked else 'sums not checked'}."
    )
    return [sentence, *_pair_sentences(summary)]


def _pair_sentences(summary: AllreduceSummary) -> list[str]:
    if not summary.pairs:
        return []
    usual = usual_bandwidth(pair.bus_bytes_per_s for pair in summary.pairs)
    if not summary.slow_pairs:
        limit = f"{show_bytes(SLOW_SHARE * usual)}/s, half of what the best quarter reach"
        return [f"No pair of nodes is slow: all of {len(summary.pairs):,} reach {limit}."]
    listed = "; ".join(
        f"{pair.nodes[0]} and {pair.nodes[1]} ({' and '.join(map(shown, pair.hosts))}) "
        f"{show_bytes(pair.bus_bytes_per_s)}/s"
        for pair in summary.slow_pairs[:_SHOWN_PAIRS]
    )
    more = len(summary.slow_pairs) - _SHOWN_PAIRS
    sentence = (
        f"Slow pairs of nodes, below half of the {show_bytes(usual)}/s that the best quarter "
        f"reach: {listed}"
        f"{f'; and {more:,} more' if more > 0 else ''}."
    )
    common = common_node(pair.nodes for pair in summary.slow_pairs)
    if common is None:
        return [sentence]
    pair = next(pair for pair in summary.slow_pairs if common in pair.nodes)
    host = shown(pair.hosts[pair.nodes.index(common)])
    look = "look at its link first"
    if len({host for pair in summary.pairs for host in pair.hosts}) == 1:
        look = "all nodes are simulated on one host, so no link is slow"
    return [sentence, f"Node {common} ({host}) is in all of them: {look}."]
