"""The results of a benchmark: cells of repeated measurements, with tables, pictures and rates of
them, whatever was measured.

The first rank of a benchmark records a `table` for each kind of measurement, a `cell` for all
repeats with one value of each key, and `findings` at its end, all as they are defined here. A
summary shows these, and knows no benchmark by name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from hpcdist.base.plotting import (
    LINES,
    PLAIN_NUMBERS,
    Picture,
    error_bars,
    finish,
    label,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.statistics import (
    MOST_BLOCKS,
    Measure,
    Ratio,
    in_blocks,
    mean,
    measure,
    ratios,
    spread_measure,
)
from hpcdist.base.table import Column, Format, Table, each, number
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_time,
    interval_text,
    number_of,
    show_binary,
    shown,
    spread_text,
    time_unit,
)
from hpcdist.runs.events import Amount, Count, Seconds
from hpcdist.runs.run import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The bounds keep every figure that is computed from damaged files finite, and tables narrow.
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e12)]
_Key = Annotated[int, Meta(ge=0, le=10**15)] | str
Keys = Annotated[dict[str, _Key], Meta(max_length=16)]

_MOST_LINES = len(LINES)
_MOST_TICKS = 7
_WIDE = 8  # from this ratio on an axis of counts is logarithmic
_DECADES = 50.0
"""From this ratio on small values cannot be told apart on a linear axis."""
_UNITS = (
    ("_bytes_per_s", 1e9, "GB/s"),
    ("_per_s", 1.0, "/s"),
    ("_bytes", 1e6, "MB"),
    ("_time_s", 1e-3, "ms"),
)
"""Ends of names of figures, with the units in which tables show them."""


class TimedCell(Struct, frozen=True, kw_only=True):
    """Repeated measurements with one value of each key; times are those of the slowest rank."""

    table: str
    """Name of the table that it belongs to."""
    keys: Keys
    """The settings that were measured, such as batch_size and workers."""
    repeats: Count = 0
    mean_time_s: PositiveSeconds | None = None
    """None where nothing could be timed: `note` says why."""
    sd_time_s: Seconds | None = None
    """Standard deviation, from 20 repeats on of the means of 20 blocks of repeats in a row."""
    rate: Annotated[float, Meta(ge=0, le=1e18)] | None = None
    """Its unit is the table's `rate`."""
    more: Annotated[dict[str, Amount], Meta(max_length=16)] = {}
    """Further figures, with their units in the names; one without is in no table."""
    parts_s: Annotated[dict[str, Seconds], Meta(max_length=16)] = {}
    """Seconds of work in each part of what the table's `parts_of` says."""
    note: str | None = None
    """Why there are no times."""

    @property
    def id(self) -> tuple[str, str]:
        """The cell's id: a later cell of the same id replaces it."""
        return self.table, repr(self.keys)

    @property
    def time_s(self) -> Measure:
        """The mean time with its spread over the repeats."""
        assert self.mean_time_s is not None
        count = min(self.repeats, MOST_BLOCKS)
        return spread_measure(self.mean_time_s, self.sd_time_s, count, over="windows")

    @property
    def rate_measure(self) -> Measure:
        """The rate, whose relative spread is that of the time."""
        time, rate = self.time_s, self.rate or 0.0
        sd = None if time.sd is None else rate * time.sd / time.mean
        return spread_measure(rate, sd, min(self.repeats, MOST_BLOCKS), over="windows")


class CellTable(Struct, frozen=True, kw_only=True):
    """The cells of one kind, and how they are shown."""

    name: str
    caption: str = ""
    time: str = "time"
    """Header of the column of times: the name of the work that is timed."""
    rate: str = "per_s"
    """Name of the rates, with their unit: `images_per_s`."""
    x: str | None = None
    """The key on the x axis of its picture; None: it has none."""
    baseline: Keys = {}
    """The cells that others are compared with: these keys, and all else equal."""
    parts_of: str = "repeat"
    cells: list[TimedCell] = []
    """Empty in the event: they have events of their own."""


class Findings(Struct, frozen=True, kw_only=True):
    """Sentences that follow from the measurements."""

    conclusions: list[str] = []
    """Sentences that answer what the benchmark was run for."""
    details: list[str] = []
    """Sentences with the grounds of the conclusions, and advice."""


class BenchmarkSummary(Findings, frozen=True, kw_only=True):
    """The result of a benchmark."""

    tables: list[CellTable]


EVENT_TYPES: dict[str, type[Struct]] = {
    "table": CellTable,
    "cell": TimedCell,
    "findings": Findings,
}
"""Kinds of events, and their types: without tags, which would stand in the summary, too."""


def summarize(events: Mapping[str, Sequence[Any]]) -> BenchmarkSummary | None:
    """Return the result of one rank's events by kind; None where it measured nothing."""
    cells: dict[tuple[str, str], TimedCell] = {cell.id: cell for cell in events["cell"]}
    if not cells:
        return None
    tables = {table.name: table for table in events["table"]}
    by_table: dict[str, list[TimedCell]] = {name: [] for name in tables}
    for cell in cells.values():
        by_table.setdefault(cell.table, []).append(cell)
    findings = events["findings"][-1] if events["findings"] else Findings()
    return BenchmarkSummary(
        tables=[
            replace(tables.get(name, CellTable(name=name, caption=name)), cells=own)
            for name, own in by_table.items()
            if own
        ],
        conclusions=findings.conclusions,
        details=findings.details,
    )


def timed_cell(
    table: str,
    keys: Mapping[str, int | str],
    times_s: Sequence[float],
    *,
    amount: float = 0.0,
    mean_s: float | None = None,
    **fields: Any,
) -> TimedCell:
    """Return the cell of these repeats, in each of which an `amount` was done. `mean_s` is the mean
    where it was measured over all repeats together."""
    blocks = [time_s for time_s, _ in in_blocks([(time_s, 1.0) for time_s in times_s])]
    mean_s = mean(times_s) if mean_s is None else mean_s
    return TimedCell(
        table=table,
        keys=dict(keys),
        repeats=len(times_s),
        mean_time_s=mean_s,
        sd_time_s=measure(blocks).sd,
        **{"rate": amount / mean_s, **fields},
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Comparison(NamedTuple):
    """A cell beside its baseline."""

    cell: TimedCell
    baseline: TimedCell
    gain: Ratio
    """The cell's rate by the baseline's."""


def compare(cells: Sequence[TimedCell], baseline: Mapping[str, int | str]) -> list[Comparison]:
    """Compare every cell that is timed with the one that has the baseline's keys, and all others
    equal; all are judged together. Cells that have no such one are left out."""
    timed = {repr(cell.keys): cell for cell in cells if cell.mean_time_s}
    pairs = []
    for name, cell in timed.items():
        base = repr({key: baseline.get(key, value) for key, value in cell.keys.items()})
        if base != name and base in timed:
            pairs.append((cell, timed[base]))
    gains = ratios([(base.time_s, cell.time_s) for cell, base in pairs])
    return [Comparison(*pair, gain) for pair, gain in zip(pairs, gains, strict=True)]


def rates(summary: BenchmarkSummary) -> Iterator[tuple[str, Measure]]:
    """List the quantities, with units, that runs are compared by; more is better."""
    for table in summary.tables:
        words, per, unit = _unit_of(table.rate)
        for cell in table.cells:
            if cell.mean_time_s and cell.rate:
                quantity = f"{words} {unit}, {_in_words(cell.keys)}".strip()
                yield quantity, cell.rate_measure.times(1 / per)


def _unit_of(name: str) -> tuple[str, float, str]:
    """Return the words of a figure's name, and its unit: as a number, and by name."""
    for ending, per, unit in _UNITS:
        if name.endswith(ending):
            words = shown(name.removesuffix(ending)).replace("_", " ")
            is_bare = unit == "/s"  # of what, is a part of the unit
            return "" if is_bare else words, per, words + unit if is_bare else unit
    return shown(name).replace("_", " "), 1.0, ""


def _key_text(name: str, value: int | str) -> str:
    is_size = name.endswith("_bytes") and isinstance(value, int)
    return show_binary(int(value)) if is_size else shown(str(value))


def _in_words(keys: Mapping[str, int | str]) -> str:
    """Return `workers 2, batch size 64`."""
    return ", ".join(f"{_unit_of(key)[0]} {_key_text(key, keys[key])}" for key in keys)


def in_line(table: CellTable, cell: TimedCell) -> str:
    """Write a cell on one line, as a log has it."""
    words, per, unit = _unit_of(table.rate)
    if cell.mean_time_s is None:
        return f"{_in_words(cell.keys)}: {cell.note}"
    rate = (cell.rate or 0.0) / per
    rate_text = f"{words} {format_number(rate, decimals_for([rate]))} {unit}".strip()
    time = format_time(cell.mean_time_s)
    return f"{_in_words(cell.keys)}: {time}, {rate_text} ({cell.repeats} times)"


def _differing(cells: Sequence[TimedCell]) -> list[str]:
    """Return the keys of which the cells have several values."""
    names = dict.fromkeys(name for cell in cells for name in cell.keys)
    return [name for name in names if len({cell.keys.get(name) for cell in cells}) > 1]


def to_tables(summary: BenchmarkSummary, run: int) -> Iterator[Table[TimedCell]]:
    """Make the tables of the run with this number."""
    for table in summary.tables:
        rows, caption = table.cells, f"#{run}: {table.caption}"
        if len(repeats := {cell.repeats for cell in rows if cell.repeats}) == 1:
            caption += f" ({number_of(repeats.pop(), 'time')})"
        wanted = [name for name in rows[0].keys if name == table.x or name in _differing(rows)]
        keys = [_key_column(name, rows) for name in wanted or rows[0].keys]
        yield Table(caption, [*keys, *_figure_columns(table, rows)], rows)
        if any(cell.parts_s for cell in rows):
            in_us = number(0, per=1e-6)
            parts = [
                Column(shown(name).replace("_", "-"), _getter("parts_s", name), in_us)
                for name in dict.fromkeys(name for cell in rows for name in cell.parts_s)
            ]
            rows = [cell for cell in rows if cell.parts_s]
            yield Table(f"#{run}: work per {table.parts_of} (µs)", [*keys, *parts], rows)


def _key_column(name: str, rows: Sequence[TimedCell]) -> Column[TimedCell]:
    are_texts = any(isinstance(cell.keys.get(name), str) for cell in rows)
    is_size = name.endswith("_bytes")
    text = each(functools.partial(_key_text, name) if is_size else "{:,}".format)
    header = _unit_of(name)[0].replace(" ", "\n")
    return Column(header, _getter("keys", name), text, align="left" if are_texts else "right")


def _getter(field: str, name: str) -> Callable[[TimedCell], Any]:
    return lambda cell: getattr(cell, field).get(name)


def _figure_columns(table: CellTable, rows: Sequence[TimedCell]) -> Iterator[Column[TimedCell]]:
    unit_s, unit = time_unit(min(cell.mean_time_s or math.inf for cell in rows))

    def time(measure: Measure) -> str:
        in_unit = measure.times(1 / unit_s)
        return spread_text(in_unit, decimals_for([in_unit.mean]))

    yield Column(
        table.time,
        lambda cell: cell.time_s if cell.mean_time_s else cell.note,
        each(time),
        unit=unit,
    )
    yield _column(table.rate, lambda cell: cell.rate)
    for name in dict.fromkeys(name for cell in rows for name in cell.more):
        if _unit_of(name)[2]:
            yield _column(name, _getter("more", name))
    if len({cell.repeats for cell in rows if cell.repeats}) > 1:
        yield Column("times", lambda cell: cell.repeats or None, number(0))
    if table.baseline:
        compared = compare(rows, table.baseline)
        gains = {each.cell.id: interval_text(each.gain, 2) for each in compared}
        against = " ".join(map(str, table.baseline.values()))
        yield Column(f"times as fast\nas {shown(against)}", lambda cell: gains.get(cell.id))


def _column(name: str, value: Callable[[TimedCell], Any]) -> Column[TimedCell]:
    header, per, unit = _unit_of(name)
    text = number(0) if unit.endswith("s/s") else _three_digits(per)
    if not header:  # the unit says all
        return Column(unit, value, text)
    return Column(header.replace(" ", "\n"), value, text, unit=unit)


def _three_digits(per: float) -> Format:
    """Format each value in a unit with three digits, where values differ by powers of ten."""
    return each(lambda value: format_number(value / per, decimals_for([value / per])))


class BenchmarkRun(NamedTuple):
    """The result of one run, with what a report calls the run."""

    id: str
    name: str
    """Its name in pictures, unlike that of others there."""
    result: BenchmarkSummary


def pictures(job: str, runs: Sequence[BenchmarkRun]) -> Iterator[Picture]:
    """List a picture for each kind of cells of the runs of one job, the newest first; none is drawn
    yet. Runs with rates of another unit than the newest one's are left out."""
    tables = [(run, table) for run in runs[::-1] for table in run.result.tables]
    for name, newest in {table.name: table for _, table in reversed(tables)}.items():
        alike = [each for each in tables if (each[1].name, each[1].rate) == (name, newest.rate)]
        found = [
            (run.id, ", ".join(filter(None, [run.name if len(alike) > 1 else "", text])), cells)
            for run, table in alike
            for text, cells in find_lines(table).items()
        ]
        drawn, left_out = found[:_MOST_LINES], ""
        if len(found) > _MOST_LINES:
            left_out = f" Only {_MOST_LINES} of {len(found)} are drawn."
        captions = {table.caption for _, table in alike}
        title = captions.pop() if len(captions) == 1 else shown(name).replace("_", "-")
        if drawn:
            lines = {label(text): cells for _, text, cells in drawn}
            yield Picture(
                name=f"{slug(job)}-{slug(name)}",
                title=f"{label(job)}: {title}",
                description=f"Means with 95 % intervals.{left_out}",
                draw=functools.partial(draw, newest, lines),
                runs=[*dict.fromkeys(run for run, _, _ in drawn)],
            )


def find_lines(table: CellTable) -> dict[str, list[TimedCell]]:
    """Return the cells along the x axis of each combination of other keys, by what tells it from
    others; only those of several points."""
    timed = [c for c in table.cells if c.mean_time_s and isinstance(c.keys.get(table.x or ""), int)]
    names = [name for name in _differing(timed) if name != table.x]
    lines: dict[str, list[TimedCell]] = {}
    for cell in sorted(timed, key=lambda cell: cell.keys[table.x or ""]):
        own = {name: cell.keys[name] for name in names if name in cell.keys}
        lines.setdefault(_in_words(own), []).append(cell)
    return {name: cells for name, cells in lines.items() if len(cells) > 1}


def draw(table: CellTable, lines: Mapping[str, Sequence[TimedCell]]) -> Figure:
    """Draw time and rate of these cells along the x axis: means with their intervals."""
    figure = new_figure(9.5, 4.6)
    x, cells = table.x or "", [cell for own in lines.values() for cell in own]
    unit_s, unit = time_unit(min(cell.time_s.mean for cell in cells))
    words, per, rate_unit = _unit_of(table.rate)
    ticks = sorted({int(cell.keys[x]) for cell in cells})
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS)]
    sides = (
        (f"{table.time} ({unit})", [each.time_s.times(1 / unit_s) for each in cells]),
        (
            f"{words} ({rate_unit})" if words else rate_unit,
            [each.rate_measure.times(1 / per) for each in cells],
        ),
    )
    all_axes: list[Axes] = list(figure.subplots(1, 2))
    for axes, (y, measures) in zip(all_axes, sides, strict=True):
        values = iter(measures)
        for (text, own), style in zip(lines.items(), LINES, strict=False):
            some = [next(values) for _ in own]
            xs, ys = [cell.keys[x] for cell in own], [value.mean for value in some]
            axes.errorbar(xs, ys, yerr=error_bars(some), capsize=4, label=text, **style)
        finish(axes, x=_unit_of(x)[0], y=f"{y}, mean and 95 % interval")
        if ticks[0] and ticks[-1] > _WIDE * ticks[0]:
            axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [_key_text(x, tick) for tick in ticks])
        axes.minorticks_off()
        means = [value.mean for value in measures]
        if 0 < min(means) * _DECADES < max(means):
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
    if len(lines) > 1:
        shared_legend(figure, all_axes[:1])
    return figure
