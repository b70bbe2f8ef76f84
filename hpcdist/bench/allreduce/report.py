"""The tables and pictures of the benchmark allreduce."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdist.base.plotting import (
    LINES,
    Picture,
    finish,
    first,
    label,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, count, each
from hpcdist.base.text import (
    decimals_for,
    show_binary,
    shown,
    spread_text,
    time_unit,
)
from hpcdist.bench.allreduce.figures import (
    AllreduceSummary,
    Collective,
    NodePair,
    PairFigures,
    SizeFigures,
    allreduce_sentences,
    summarize,
)
from hpcdist.bench.benchmark import Benchmark, NumberedResult, rate_measure, three_digits
from hpcdist.runs.run import slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PAIRS = 12
_MOST_RUNS = len(LINES)
_MOST_TICKS = 7
_GB = 1e9


class AllreduceBenchmark(Benchmark[AllreduceSummary]):
    """All-reduces by size, and by pair of nodes."""

    key = "all_reduce"
    events: ClassVar = {"collective": Collective, "pair": NodePair}
    measurements: ClassVar = {"all_reduce": SizeFigures, "pair": PairFigures}
    lines: ClassVar = {"all_reduce": "sizes", "pair": "pairs"}

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> AllreduceSummary | None:
        return summarize(events["collective"], events["pair"])

    def conclusions(self, result: AllreduceSummary) -> list[str]:
        return allreduce_sentences(result)

    def tables(self, result: AllreduceSummary, number: int) -> Iterator[Table[Any]]:
        yield _size_table(result, number)
        if result.pairs:
            yield _pair_table(result, number)

    def rates(self, result: AllreduceSummary) -> Iterator[tuple[str, Measure]]:
        for size in result.sizes:
            rate = rate_measure(size.bus_bytes_per_s / _GB, size.time_s)
            yield f"bus GB/s, {show_binary(size.bytes)}", rate

    def pictures(
        self, job: str, runs: Sequence[NumberedResult[AllreduceSummary]]
    ) -> Iterator[Picture]:
        """List one picture, with a line for each run of several sizes."""
        drawn, left_out = first([run for run in runs if len(run.result.sizes) > 1], _MOST_RUNS)
        if drawn:
            yield Picture(
                name=f"{slug(job)}-allreduce",
                title=f"{label(job)}: all-reduce by size",
                description=f"One line per run.{left_out}",
                draw=functools.partial(_draw, drawn),
                runs=[run.run for run in drawn],
            )


def _size_table(summary: AllreduceSummary, number: int) -> Table[SizeFigures]:
    unit_s, unit = time_unit(min(size.mean_time_s for size in summary.sizes))
    times, rates = three_digits(unit_s), three_digits(_GB)

    def time(measure: Measure) -> str:
        in_unit = measure.times(1 / unit_s)
        return spread_text(in_unit, decimals_for([in_unit.mean]))

    columns: list[Column[SizeFigures]] = [
        Column("size", lambda size: size.bytes, each(show_binary)),
        Column("time", lambda size: size.time_s, each(time), unit=unit, sort=lambda m: m.mean),
        Column("median", lambda size: size.median_time_s, times, unit=unit),
        Column("p95", lambda size: size.p95_time_s, times, unit=unit),
        Column(
            "algorithm\nbandwidth\n",
            lambda size: size.algorithm_bytes_per_s,
            rates,
            unit="GB/s",
        ),
        Column("bus\nbandwidth\n", lambda size: size.bus_bytes_per_s, rates, unit="GB/s"),
        Column("times", lambda size: size.iterations, count),
    ]
    kind = f" of {shown(summary.dtype)}" if summary.dtype else ""
    caption = f"#{number}: all-reduce{kind} by size, slowest of {summary.ranks:,} ranks"
    return Table(caption, columns, summary.sizes)


def _pair_table(summary: AllreduceSummary, number: int) -> Table[PairFigures]:
    slowest = sorted(summary.pairs, key=lambda pair: pair.bus_bytes_per_s)[:_MOST_PAIRS]
    slow = {pair.nodes for pair in summary.slow_pairs}
    of = f", the slowest of {len(summary.pairs):,}" if len(slowest) < len(summary.pairs) else ""
    caption = f"#{number}: pairs of nodes{of}, all-reduce of {show_binary(slowest[0].bytes)}"
    columns: list[Column[PairFigures]] = [
        Column("node", lambda pair: f"{pair.nodes[0]} {pair.hosts[0]}", align="left"),
        Column("node", lambda pair: f"{pair.nodes[1]} {pair.hosts[1]}", align="left"),
        Column("bus\nbandwidth", lambda pair: pair.bus_bytes_per_s, three_digits(_GB), unit="GB/s"),
        Column("", lambda pair: "slow" if pair.nodes in slow else "", align="left"),
    ]
    return Table(caption, columns, slowest)


def _draw(runs: Sequence[NumberedResult[AllreduceSummary]]) -> Figure:
    figure = new_figure(9, 4.4)
    bus_axes, time_axes = figure.subplots(1, 2)
    for run, line in zip(runs, LINES, strict=False):
        style = line | {"label": label(run.name)}
        sizes = run.result.sizes
        counts = [size.bytes for size in sizes]
        rates = [size.bus_bytes_per_s / _GB for size in sizes]
        bus_axes.plot(counts, rates, **style)
        medians = [size.median_time_s * 1e3 for size in sizes]
        above = [max(0.0, size.p95_time_s - size.median_time_s) * 1e3 for size in sizes]
        time_axes.errorbar(counts, medians, yerr=[[0.0] * len(sizes), above], capsize=3, **style)
    drawn = sorted({size.bytes for run in runs for size in run.result.sizes})
    ticks = drawn[:: -(-len(drawn) // _MOST_TICKS)]
    for axes, y in (
        (bus_axes, "bus bandwidth (GB/s)"),
        (time_axes, "time (ms): median, and up to p95"),
    ):
        finish(axes, x="bytes of each rank", y=y)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        axes.set_xticks(ticks, [show_binary(size) for size in ticks], rotation=30)
        axes.tick_params(axis="x", which="minor", bottom=False)
    shared_legend(figure, [bus_axes])
    return figure
