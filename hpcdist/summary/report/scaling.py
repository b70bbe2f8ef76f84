"""Speed against size: how many times as fast, how sure that is, and what more GPUs would bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import (
    decimals_for,
    format_number,
    number_of,
    shown,
    spread_text,
    time_unit,
)
from hpcdist.summary.compare.sizes import by_size, num_gpus
from hpcdist.summary.report.runs import BASELINE_NOTE, Row, gpus_column, interval_note
from hpcdist.summary.values import Forecast, RunSummary, Scaling, SizeSummary

_SCALING_NOTES: dict[Scaling, str] = {
    "weak": "weak scaling: each {unit} keeps its samples per step; ideal: a step takes as long",
    "strong": "strong scaling: a step keeps its samples; ideal: twice the {unit}s, half the time",
}
_YES_NO = {True: "yes", False: "no", None: None}


def size_tables(rows: Sequence[Row], *, only_repeated: bool = False) -> Iterator[Table[RunSummary]]:
    """Yield a table for each group of runs that are compared, with a line for each size; with
    `only_repeated` for groups of which some size was repeated."""
    by_id = {row.run.run: row.run for row in rows}
    groups = _groups(rows)
    strategies = {of_size(runs[0]).strategy for runs in groups}
    for runs in groups:
        if not only_repeated or _is_repeated(runs):
            lent = [by_id[run] for run in runs[0].compared_with if run in by_id]
            members = list({run.run: run for run in [*lent, *runs]}.values())
            yield _table(members, names_strategy=len(strategies) > 1)


def once_run(rows: Sequence[Row]) -> list[RunSummary]:
    """Return the runs of groups that have a single run of each size."""
    return [run for runs in _groups(rows) if not _is_repeated(runs) for run in runs]


def _groups(rows: Sequence[Row]) -> list[list[RunSummary]]:
    groups: dict[tuple[str, ...], list[RunSummary]] = {}
    for _, run in rows:
        if run.of_size is not None:
            key = (*run.compared_with, run.of_size.scaling or "", run.of_size.strategy or "")
            groups.setdefault(key, []).append(run)
    return list(groups.values())


def _is_repeated(runs: Sequence[RunSummary]) -> bool:
    return any(of_size(run).num_runs > 1 for run in runs)


def forecast_sentence(forecast: Forecast, baseline: RunSummary) -> str:
    """Return `Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    unit = "GPU" if baseline.num_cpus is None else "rank"
    ranges = []
    for size in forecast.sizes:
        assert size.speedup.interval is not None
        low, high = size.speedup.interval.low, size.speedup.interval.high
        decimals = min(2, decimals_for([low]))
        times = f"{format_number(low, decimals)} to {format_number(high, decimals)} times"
        ranges.append(f"{number_of(size.gpus, unit)} {times}")
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in forecast.notes)
    ending = f"as fast as {num_gpus(baseline)}, with 95 % confidence."
    return f"Forecast: {', '.join(ranges)} {ending}{notes}"


def _table(runs: Sequence[RunSummary], *, names_strategy: bool) -> Table[RunSummary]:
    sizes = list(by_size(runs).values())
    firsts = [theirs[0] for theirs in sizes]
    compared = next(run for run in reversed(firsts) if run.of_size)
    size = of_size(compared)
    unit = "GPU" if compared.num_cpus is None else "rank"
    caption = {"strong": "Strong scaling", "weak": "Weak scaling", None: "Scaling"}[size.scaling]
    if size.samples_per_step and size.scaling == "strong":
        caption += f" ({size.samples_per_step:,.0f} samples per step, shared by all {unit}s)"
    elif size.samples_per_step and size.scaling == "weak":
        samples = size.samples_per_step / num_gpus(compared)
        caption += f" ({samples:,.0f} samples per step for each {unit})"
    if names_strategy:
        caption = f"{shown(size.strategy or 'no strategy')}: {caption}"
    if compared.differs_in:
        caption = f"{shown(compared.settings_text)}: {caption}"
    notes = [BASELINE_NOTE]
    if size.scaling:
        notes.append(_SCALING_NOTES[size.scaling].format(unit=unit))
    if note := interval_note(run.of_size.speedup for run in firsts if run.of_size):
        notes.append(note)
    spreads = {of_size(run).samples_per_s.over for run in firsts}
    if {"runs", "windows"} <= spreads:
        notes.append("samples/s of a size that was run once: over equal parts of its run")
    forecast = next((run.forecast for run in reversed(firsts) if run.forecast), None)
    if forecast:
        notes.append(forecast_sentence(forecast, firsts[0]))
    return Table(caption, _columns(firsts, compared), firsts, "\n".join(notes))


def _columns(firsts: Sequence[RunSummary], compared: RunSummary) -> list[Column[RunSummary]]:
    unit_s, unit = time_unit(max(of_size(run).step_time_s or 0.0 for run in firsts))

    def is_baseline(run: RunSummary) -> bool:
        return run.run in compared.compared_with

    return [
        gpus_column(lambda run: run),
        Column("runs", lambda run: of_size(run).num_runs),
        Column("samples/s", lambda run: of_size(run).samples_per_s, mean_interval()),
        Column("step", lambda run: of_size(run).step_time_s, number(per=unit_s), unit=unit),
        Column(
            "speed-\nup",
            lambda run: "1" if is_baseline(run) else of_size(run).speedup,
            each(lambda value: spread_text(value, 2)),
            is_marked=is_baseline,
        ),
        Column(
            "effic.",
            lambda run: 1.0 if is_baseline(run) else of_size(run).efficiency.mean,
            percent(),
            unit="%",
        ),
        Column(
            "differs\nfrom *",
            lambda run: _YES_NO[of_size(run).differs_from_baseline],
            align="left",
        ),
    ]


def of_size(run: RunSummary) -> SizeSummary:
    assert run.of_size is not None
    return run.of_size
