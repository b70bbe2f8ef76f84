"""Speed against size as text: how many times as fast, how sure that is, and what more would be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.base.statistics import Measure
from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_mean_sd,
    format_number,
    format_percent,
    number_of,
    shown,
    spread_text,
    time_unit,
)
from hpcdist.summary.compare.sizes import by_size, num_gpus
from hpcdist.summary.report.table import Column, Row, Titled
from hpcdist.summary.values import Forecast, RunSummary, SizeSummary


def size_tables(rows: Sequence[Row], *, only_repeated: bool = False) -> Iterator[Titled]:
    """A table for each group of runs that are compared, with a line for each size; only for groups
    of which some size was repeated, where so wanted."""
    by_id = {row.run.run: row.run for row in rows}
    groups = _groups(rows)
    strategies = {_of(runs[0]).strategy for runs in groups}
    for runs in groups:
        if only_repeated and not _is_repeated(runs):
            continue
        lent = [by_id[run] for run in runs[0].compared_with if run in by_id]
        members = list({run.run: run for run in [*lent, *runs]}.values())
        yield _table(members, names_strategy=len(strategies) > 1)


def once_run(rows: Sequence[Row]) -> list[RunSummary]:
    """Runs that are compared, each size of them with a single run."""
    return [run for runs in _groups(rows) if not _is_repeated(runs) for run in runs]


def _groups(rows: Sequence[Row]) -> list[list[RunSummary]]:
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for row in rows:
        if row.run.of_size is not None:
            size = row.run.of_size
            key = (*row.run.compared_with, size.scaling or "", size.strategy or "")
            groups.setdefault(key, []).append(row.run)
    return list(groups.values())


def _is_repeated(runs: Sequence[RunSummary]) -> bool:
    return any(_of(run).num_runs > 1 for run in runs)


def forecast_sentence(forecast: Forecast, baseline: RunSummary) -> str:
    """`Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    unit = "GPU" if baseline.num_cpus is None else "rank"
    told = ", ".join(
        f"{number_of(size.gpus, unit)} {_ends(size.speedup)} times" for size in forecast.sizes
    )
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in forecast.notes)
    error = (
        ""
        if forecast.error is None
        else (
            f" A size that it is fitted without it misses by {format_percent(forecast.error, 1)} %."
        )
    )
    ending = f"as fast as {num_gpus(baseline)}, with 95 % confidence."
    return f"Forecast: {told} {ending}{error}{notes}"


def _ends(measure: Measure) -> str:
    assert measure.interval is not None
    decimals = decimals_for([measure.interval.low])
    ends = (measure.interval.low, measure.interval.high)
    return " to ".join(format_number(end, min(2, decimals)) for end in ends)


def _table(runs: Sequence[RunSummary], *, names_strategy: bool) -> Titled:
    sizes = list(by_size(runs).values())
    firsts = [theirs[0] for theirs in sizes]
    compared = next(run for run in reversed(firsts) if run.of_size)
    forecast = next((run.forecast for run in reversed(firsts) if run.forecast), None)
    told = [*_over(firsts), *([forecast_sentence(forecast, firsts[0])] if forecast else [])]
    caption = _caption(compared)
    if names_strategy:
        caption = f"{shown(_of(compared).strategy or 'no strategy')}: {caption}"
    return Titled(caption, firsts, _columns(firsts, compared), "\n".join(told))


def _caption(compared: RunSummary) -> str:
    size = _of(compared)
    names = {"strong": "Strong scaling", "weak": "Weak scaling", None: "Scaling"}
    samples = size.samples_per_step
    unit = "GPU" if compared.num_cpus is None else "rank"
    batch = ""
    if samples and size.scaling == "strong":
        batch = f" ({samples:,.0f} samples per step, shared by all {unit}s)"
    elif samples and size.scaling == "weak":
        batch = f" ({samples / num_gpus(compared):,.0f} samples per step for each {unit})"
    return f"{names[size.scaling]}{batch}"


def _over(firsts: Sequence[RunSummary]) -> list[str]:
    """What the intervals are over."""
    overs = {run.of_size.speedup.over for run in firsts if run.of_size} - {None}
    if "windows" in overs:
        return ["± is the 95 % confidence interval over windows: how runs differ takes --repeat 3"]
    return ["± is the 95 % confidence interval of the mean over runs"] if overs else []


def _columns(firsts: Sequence[RunSummary], compared: RunSummary) -> list[Column]:
    known = [run.of_size for run in firsts if run.of_size]
    decimals = decimals_for([size.samples_per_s.mean for size in known])
    unit_s, unit = time_unit(max(size.step_time_s or 0.0 for size in known))
    times = [size.step_time_s / unit_s for size in known if size.step_time_s]
    step_decimals = decimals_for(times)
    baseline = compared.compared_with

    def step_time(run: RunSummary) -> str:
        time_s = _of(run).step_time_s
        return format_number(None if time_s is None else time_s / unit_s, step_decimals)

    def speedup(run: RunSummary) -> str:
        return "1 *" if run.run in baseline else f"{spread_text(_of(run).speedup, 2)}  "

    def efficiency(run: RunSummary) -> str:
        return format_percent(1.0 if run.run in baseline else _of(run).efficiency.mean)

    return [
        Column("nodes\nx gpus", lambda run: f"{run.nodes} x {run.gpus_per_node}"),
        Column("runs", lambda run: str(_of(run).num_runs)),
        Column("samples/s", lambda run: _mean_and_half(_of(run).samples_per_s, decimals)),
        Column(f"step\n({unit})", step_time),
        Column("speed-\nup  ", speedup),
        Column("effic.\n(%)", efficiency),
        Column("differs\nfrom *", lambda run: _difference(_of(run)), is_number=False),
    ]


def _mean_and_half(measure: Measure, decimals: int) -> str:
    """Intervals of means are as wide to both sides."""
    if measure.interval is None:
        return format_number(measure.mean, decimals)
    half = (measure.interval.high - measure.interval.low) / 2
    return format_mean_sd(measure.mean, half, decimals)


def _difference(size: SizeSummary) -> str:
    if size.differs_from_baseline is None:
        return UNDEFINED
    return "yes" if size.differs_from_baseline else "no"


def _of(run: RunSummary) -> SizeSummary:
    assert run.of_size is not None
    return run.of_size
