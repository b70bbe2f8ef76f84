"""From the events of the benchmarks to their summaries, and what these say in words: pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.text import format_time, number_of, show_binary, show_bytes, shown
from hpcdist.bench.allreduce.pairs import (
    SLOW_SHARE,
    common_node,
    pair_bandwidth,
    slow_pairs,
    usual_bandwidth,
)
from hpcdist.bench.dataload.conclusion import conclude as conclude_loading
from hpcdist.bench.dataload.figures import LoadingCell, StepTime
from hpcdist.bench.inference.conclusion import conclude
from hpcdist.bench.inference.figures import Cell
from hpcdist.summary.figures.benchmark_values import (
    AllReduceSummary,
    InferenceSummary,
    Latency,
    LoadingSummary,
    PairFigures,
    SizeFigures,
)
from hpcdist.summary.read.records import Collective, NodePair

_SHOWN_PAIRS = 3


def all_reduce_summary(
    collectives: Sequence[Collective], pairs: Sequence[NodePair]
) -> AllReduceSummary | None:
    """Of one rank's events; None where it measured no all-reduce."""
    measured = {event.bytes: event for event in collectives if event.bytes and event.iterations}
    if not measured:
        return None
    sizes = [_size(measured[number]) for number in sorted(measured)]
    found = {event.nodes: _pair(event) for event in pairs}  # a later event corrects an earlier
    slow = slow_pairs({nodes: pair.bus_bytes_per_s for nodes, pair in found.items()})
    first = next(iter(measured.values()))
    return AllReduceSummary(
        ranks=first.ranks,
        dtype=first.dtype,
        latency=Latency(
            bytes=sizes[0].bytes,
            median_time_s=sizes[0].median_time_s,
            p95_time_s=sizes[0].p95_time_s,
        ),
        sizes=sizes,
        pairs=[found[nodes] for nodes in sorted(found)],
        slow_pairs=[found[nodes] for nodes in slow],
    )


def inference_summary(cells: Sequence[Cell]) -> InferenceSummary | None:
    """Of one rank's events; None where it timed no inference."""
    if not cells:
        return None
    return InferenceSummary(cells=list(cells), conclusions=conclude(cells))


def loading_summary(
    cells: Sequence[LoadingCell], steps: Sequence[StepTime]
) -> LoadingSummary | None:
    """Of one rank's events; None where it loaded nothing. A later event of the same way on the same
    node has more passes, and replaces the earlier."""
    if not cells:
        return None
    newest = list({(cell.node, cell.setting): cell for cell in cells}.values())
    told = conclude_loading(newest, steps)
    return LoadingSummary(
        cells=newest, steps=list(steps), conclusions=told.headlines, details=told.details
    )


def all_reduce_sentences(summary: AllReduceSummary) -> list[str]:
    """Latency and bandwidth, then what is slow."""
    best = max(summary.sizes, key=lambda size: size.bus_bytes_per_s)
    latency = summary.latency
    checked = all(size.checked for size in summary.sizes)
    told = (
        f"all-reduce over {number_of(summary.ranks, 'rank')}: "
        f"{format_time(latency.median_time_s)} with {show_binary(latency.bytes)} "
        f"(p95 {format_time(latency.p95_time_s)}){_bandwidth(best)}; "
        f"{'all sums right' if checked else 'sums not checked'}."
    )
    return [told, *_pair_sentences(summary)]


def _bandwidth(best: SizeFigures) -> str:
    """One rank sends nothing."""
    if not best.bus_bytes_per_s:
        return ""
    return (
        f", at most {show_bytes(best.bus_bytes_per_s)}/s bus bandwidth, "
        f"with {show_binary(best.bytes)}"
    )


def _pair_sentences(summary: AllReduceSummary) -> list[str]:
    if not summary.pairs:
        return []
    usual = usual_bandwidth(pair.bus_bytes_per_s for pair in summary.pairs)
    if not summary.slow_pairs:
        limit = f"{show_bytes(SLOW_SHARE * usual)}/s, half of what the best quarter reach"
        return [f"No pair of nodes is slow: all of {len(summary.pairs):,} reach {limit}."]
    listed = "; ".join(map(_pair_words, summary.slow_pairs[:_SHOWN_PAIRS]))
    more = len(summary.slow_pairs) - _SHOWN_PAIRS
    told = (
        f"Slow pairs of nodes, below half of the {show_bytes(usual)}/s that the best quarter "
        f"reach: {listed}"
        f"{f'; and {more:,} more' if more > 0 else ''}."
    )
    common = common_node(pair.nodes for pair in summary.slow_pairs)
    if common is None:
        return [told]
    pair = next(pair for pair in summary.slow_pairs if common in pair.nodes)
    host = shown(pair.hosts[pair.nodes.index(common)])
    return [told, f"Node {common} ({host}) is in all of them: look at its link first."]


def _pair_words(pair: PairFigures) -> str:
    a, b = pair.nodes
    hosts = " and ".join(map(shown, pair.hosts))
    return f"{a} and {b} ({hosts}) {show_bytes(pair.bus_bytes_per_s)}/s"


def _size(event: Collective) -> SizeFigures:
    return SizeFigures(
        bytes=event.bytes,
        iterations=event.iterations,
        mean_time_s=event.mean_time_s,
        median_time_s=event.median_time_s,
        p95_time_s=event.p95_time_s,
        min_time_s=event.min_time_s,
        algorithm_bytes_per_s=event.algorithm_bytes_per_s,
        bus_bytes_per_s=event.bus_bytes_per_s,
        checked=event.checked,
    )


def _pair(event: NodePair) -> PairFigures:
    return PairFigures(
        nodes=event.nodes,
        hosts=event.hosts,
        bytes=event.bytes,
        mean_time_s=event.mean_time_s,
        median_time_s=event.median_time_s,
        bus_bytes_per_s=pair_bandwidth(event.bytes, event.median_time_s),
        alone=event.alone,
    )
