"""A table of typed columns, and its renderers: for the terminal, a page, Markdown and CSV.

A value stays a value until a renderer makes text of it: the column says how, for all of its values
together, so that they get the same decimals. Pages sort by values, and CSV has them as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from hpcdist.base.text import (
    UNDEFINED,
    column_decimals,
    decimals_for,
    format_mean_sd,
    format_number,
    format_percent,
    harmless,
    shown,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment
    from rich.table import Table as RichTable

Row = TypeVar("Row")

Format = Callable[[Sequence[Any]], list[str]]
"""Make text of the values of a column, of which none is None and none is text."""

_GAP = 2
_LEAST_TEXT = 8
"""Characters that a column of words keeps before numbers are folded, too."""
_HYPHENATED = ("speed-", "GPU-", "CPU-")
"""Words that have a hyphen on one line, too."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$])")
_FORMULA = ("=", "+", "-", "@")


def plain(values: Sequence[Any]) -> list[str]:
    """Format values as Python does."""
    return [str(value) for value in values]


def each(show: Callable[[Any], str]) -> Format:
    """Format every value by itself."""
    return lambda values: [show(value) for value in values]


def count(values: Sequence[int]) -> list[str]:
    """Format counts: `12,345`."""
    return [f"{value:,}" for value in values]


def size(values: Sequence[tuple[int, int]]) -> list[str]:
    """Format nodes and GPUs of each: `2 x 4`."""
    return [f"{nodes} x {gpus}" for nodes, gpus in values]


def number(
    decimals: int | None = None,
    *,
    per: float = 1.0,
    most: int | None = None,
    is_wide: bool = False,
) -> Format:
    """Format numbers in a unit that is `per`, with so many decimals.

    Without `decimals` the values decide, up to `most`: three digits of the smallest, at most four
    of the largest; with `is_wide` at least two of the smallest.
    """

    def texts(values: Sequence[float]) -> list[str]:
        scaled = [value / per for value in values]
        places = decimals
        if places is None:
            places = column_decimals(scaled) if is_wide else decimals_for(scaled)
        places = places if most is None else min(most, places)
        return [format_number(value, places) for value in scaled]

    return texts


def percent(decimals: int = 0) -> Format:
    """Format shares in percent."""
    return lambda values: [format_percent(value, decimals) for value in values]


def mean_sd(decimals: int | None = None, *, per: float = 1.0) -> Format:
    """Format means and standard deviations: `12.3 ± 0.4`."""
    return _means(lambda value: value.sd, decimals, per)


def mean_interval(decimals: int | None = None, *, per: float = 1.0) -> Format:
    """Format means and half their intervals, which are as wide to both sides: `12.3 ± 0.4`."""

    def half(value: Any) -> float | None:
        ends = value.interval
        return None if ends is None else float(ends.high - ends.low) / 2

    return _means(half, decimals, per)


def _means(spread_of: Callable[[Any], float | None], decimals: int | None, per: float) -> Format:
    def text(value: Any, places: int) -> str:
        spread = spread_of(value)
        return format_mean_sd(value.mean / per, None if spread is None else spread / per, places)

    def texts(values: Sequence[Any]) -> list[str]:
        places = decimals
        if places is None:
            places = decimals_for([value.mean / per for value in values])
        return [text(value, places) for value in values]

    return texts


class Column(Struct, Generic[Row], frozen=True):
    """One column: its header, the values of its cells, and how they are shown and sorted."""

    header: str
    """Header; line breaks are for narrow terminals."""
    value: Callable[[Row], Any]
    """Return the value of a row: a number, text, a Measure, a tuple; None is not known."""
    format: Format = plain
    """Turns values into text; a value that is text stands as it is in any column."""
    unit: str = ""
    align: Literal["left", "right"] = "right"
    sort: Callable[[Any], float | str | None] | None = None
    """Return what a value is sorted by; by default itself, its mean, or the first of a tuple."""
    style: Callable[[Any], str] | None = None
    """Return the style of a value on a terminal, which is its class on a page."""
    is_marked: Callable[[Row], bool] | None = None
    """Tell whether a row is the reference of others: a `*` stands behind its value."""

    @property
    def title(self) -> str:
        """Header and unit, on several lines."""
        space = " " if "\n" in self.header else "\n"
        return f"{self.header}{space}({self.unit})" if self.unit else self.header

    @property
    def name(self) -> str:
        """Header and unit on one line, without hyphens that only break a word."""
        hyphen = "-" if self.header.startswith(_HYPHENATED) else ""
        return shown(self.title.replace("-\n", hyphen))

    def cells(self, rows: Sequence[Row]) -> list[Cell]:
        """Return a cell for each row."""
        values = [self.value(row) for row in rows]
        as_is = (str, type(None))
        formatted = iter(self.format([value for value in values if not isinstance(value, as_is)]))
        cells = []
        for row, value in zip(rows, values, strict=True):
            if value is None:
                cells.append(Cell(UNDEFINED, "", self.style(None) if self.style else ""))
                continue
            text = shown(value) if isinstance(value, str) else next(formatted)
            mark = " *" if self.is_marked and self.is_marked(row) else ""
            key = self.sort(value) if self.sort else _sort_value(value)
            style = self.style(value) if self.style else ""
            cells.append(Cell(text + mark, "" if key is None else str(key), style))
        return cells


def _sort_value(value: Any) -> float | str | None:
    if isinstance(value, (tuple, list)):
        return _sort_value(value[0]) if value else None
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, (int, float)) or value is None:
        return value
    return getattr(value, "mean", None)


class Cell(NamedTuple):
    """One cell of a table, as it is shown and sorted."""

    text: str
    sort: str
    """A number, or text; empty where the value is not known."""
    style: str = ""


class Table(Struct, Generic[Row], frozen=True):
    """Rows of one type, columns that show their values, and texts above and below."""

    caption: str
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    footnote: str = ""

    def cells(self) -> list[list[Cell]]:
        """Return all cells, row by row."""
        columns = [column.cells(self.rows) for column in self.columns]
        return [[cells[place] for cells in columns] for place in range(len(self.rows))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich, to print the table with its caption and footnote."""
        from rich.text import Text

        if self.caption:
            yield Text(harmless(self.caption))
        lines = _Lines(self)
        fits = lines.width <= options.max_width
        yield from lines.segments(console) if fits else [lines.folded(options.max_width)]
        if self.footnote:
            yield Text(harmless(self.footnote))


class _Lines:
    """The lines of a table on a terminal.

    rich lays out and crops every cell by itself, which takes about half a millisecond for each row.
    Where all cells fit, they are padded with blanks here, which looks the same; else rich folds
    them.
    """

    def __init__(self, table: Table[Any]) -> None:
        self._columns = table.columns
        self._headers = [
            [line.rstrip() for line in column.title.split("\n")] for column in table.columns
        ]
        self._rows = table.cells()
        self._widths = [
            max(*map(_width, header), *(_width(row[place].text) for row in self._rows), 0)
            for place, header in enumerate(self._headers)
        ]
        self.width = sum(self._widths) + _GAP * (len(self._widths) - 1)
        """Width of a line that folds nothing."""

    def segments(self, console: Console) -> Iterator[Segment]:
        """Yield lines with cells below each other; only a whole cell can have a style."""
        from rich.segment import Segment

        height = max(map(len, self._headers), default=0)
        full = [[""] * (height - len(header)) + header for header in self._headers]
        # The last lines of headers stand beside each other.
        lines = [[Cell(text, "") for text in line] for line in zip(*full, strict=True)]
        for number, cells in enumerate((*lines, *self._rows)):
            line_style = console.get_style("dim") if number < height else None
            text = ""  # up to the next cell with a style of its own
            for cell, column, width in zip(cells, self._columns, self._widths, strict=True):
                blanks = " " * (width - _width(cell.text))
                before, after = (blanks, "") if column.align == "right" else ("", blanks)
                if cell.style:
                    yield Segment(text + before, line_style)
                    yield Segment(cell.text, console.get_style(cell.style))
                    text = after + " " * _GAP
                else:
                    text += before + cell.text + after + " " * _GAP
            yield Segment(text.rstrip(), line_style)
            yield Segment.line()

    def folded(self, max_width: int) -> RichTable:
        """Return the table for rich, which folds words, and numbers where that is not enough."""
        from rich.table import Table as RichTable
        from rich.text import Text

        are_right = [column.align == "right" for column in self._columns]
        least = [
            width if is_right else min(width, _LEAST_TEXT)
            for is_right, width in zip(are_right, self._widths, strict=True)
        ]
        keeps_numbers = sum(least) + _GAP * len(least) <= max_width
        table = RichTable(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
        for is_right, header in zip(are_right, self._headers, strict=True):
            table.add_column(
                Text("\n".join(header)),
                justify="right" if is_right else "left",
                vertical="bottom",
                no_wrap=is_right and keeps_numbers,
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
        return table


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def to_markdown(table: Table[Any]) -> list[str]:
    """Return the table as lines of Markdown, with its caption and footnote."""
    lines = [escape_markdown(table.caption), ""] if table.caption else []
    rows = [
        [escape_markdown(column.name) for column in table.columns],
        ["---:" if column.align == "right" else "---" for column in table.columns],
        *([escape_markdown(shown(cell.text)) for cell in row] for row in table.cells()),
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    for note in table.footnote.splitlines():  # lines that follow each other would be run together
        lines += ["", escape_markdown(note)]
    return lines


def escape_markdown(text: str) -> str:
    """Return text in which nothing means anything to Markdown, nor to HTML in it."""
    return _MARKDOWN.sub(r"\\\1", text.replace("&", "&amp;"))


def to_csv(table: Table[Any]) -> str:
    """Return the headers and values as CSV: numbers are not rounded, unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.header for column in table.columns])
    for row in table.rows:
        cells = [column.value(row) for column in table.columns]
        writer.writerow([_harmless(cell) if isinstance(cell, str) else cell for cell in cells])
    return text.getvalue()


def _harmless(text: str) -> str:
    """Text stands on one line; a spreadsheet must not take a name for a formula."""
    line = shown(text)
    return f"'{line}" if line.startswith(_FORMULA) else line
