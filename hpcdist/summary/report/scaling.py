"""Speed against size: how many times as fast, how sure that is, and what more GPUs would bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    number_of,
    shown,
    spread_text,
    time_unit,
)
from hpcdist.summary.compare.sizes import by_size, num_gpus
from hpcdist.summary.report.runs import Row, gpus_column
from hpcdist.summary.values import Forecast, RunSummary, SizeSummary


def size_tables(rows: Sequence[Row], *, only_repeated: bool = False) -> Iterator[Table[RunSummary]]:
    """Yield a table for each group of runs that are compared, with a line for each size; with
    `only_repeated` for groups of which some size was repeated."""
    by_id = {row.run.run: row.run for row in rows}
    groups = _groups(rows)
    strategies = {of_size(runs[0]).strategy for runs in groups}
    for runs in groups:
        if only_repeated and not _is_repeated(runs):
            continue
        lent = [by_id[run] for run in runs[0].compared_with if run in by_id]
        members = list({run.run: run for run in [*lent, *runs]}.values())
        yield _table(members, names_strategy=len(strategies) > 1)


def once_run(rows: Sequence[Row]) -> list[RunSummary]:
    """Return the runs of groups that have a single run of each size."""
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
    return any(of_size(run).num_runs > 1 for run in runs)


def forecast_sentence(forecast: Forecast, baseline: RunSummary) -> str:
    """Return `Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    unit = "GPU" if baseline.num_cpus is None else "rank"
    speedups = ", ".join(
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
    return f"Forecast: {speedups} {ending}{error}{notes}"


def _ends(measure: Measure) -> str:
    assert measure.interval is not None
    decimals = decimals_for([measure.interval.low])
    ends = (measure.interval.low, measure.interval.high)
    return " to ".join(format_number(end, min(2, decimals)) for end in ends)


def _table(runs: Sequence[RunSummary], *, names_strategy: bool) -> Table[RunSummary]:
    sizes = list(by_size(runs).values())
    firsts = [theirs[0] for theirs in sizes]
    compared = next(run for run in reversed(firsts) if run.of_size)
    forecast = next((run.forecast for run in reversed(firsts) if run.forecast), None)
    notes = [*_over(firsts), *([forecast_sentence(forecast, firsts[0])] if forecast else [])]
    caption = _caption(compared)
    if names_strategy:
        caption = f"{shown(of_size(compared).strategy or 'no strategy')}: {caption}"
    return Table(caption, _columns(firsts, compared), firsts, "\n".join(notes))


def _caption(compared: RunSummary) -> str:
    size = of_size(compared)
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
    """Say what the intervals are over."""
    overs = {run.of_size.speedup.over for run in firsts if run.of_size} - {None}
    if "windows" in overs:
        return ["± is the 95 % confidence interval over windows: how runs differ takes --repeat 3"]
    return ["± is the 95 % confidence interval of the mean over runs"] if overs else []


def _columns(firsts: Sequence[RunSummary], compared: RunSummary) -> list[Column[RunSummary]]:
    unit_s, unit = time_unit(max(of_size(run).step_time_s or 0.0 for run in firsts))

    def speedup(run: RunSummary) -> Measure | int:
        return 1 if is_baseline(run) else of_size(run).speedup

    def efficiency(run: RunSummary) -> float:
        return 1.0 if is_baseline(run) else of_size(run).efficiency.mean

    def is_baseline(run: RunSummary) -> bool:
        return run.run in compared.compared_with

    return [
        gpus_column(lambda run: run),
        Column("runs", lambda run: of_size(run).num_runs),
        Column("samples/s", lambda run: of_size(run).samples_per_s, mean_interval()),
        Column("step", lambda run: of_size(run).step_time_s, number(per=unit_s), unit=unit),
        Column("speed-\nup", speedup, each(_speedup), is_marked=is_baseline),
        Column("effic.", efficiency, percent(), unit="%"),
        Column("differs\nfrom *", _difference, align="left"),
    ]


def _speedup(value: Measure | int) -> str:
    return str(value) if isinstance(value, int) else spread_text(value, 2)


def _difference(run: RunSummary) -> str | None:
    differs = of_size(run).differs_from_baseline
    return None if differs is None else "yes" if differs else "no"


def of_size(run: RunSummary) -> SizeSummary:
    assert run.of_size is not None
    return run.of_size
