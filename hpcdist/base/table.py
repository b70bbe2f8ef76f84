"""A table of typed columns, and its renderers: for the terminal, a page, Markdown and CSV.

A value stays a value until a renderer makes text of it: the column says how, for all of its values
together, so that they get the same decimals. Pages sort by values, and CSV has them as they are.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

Row = TypeVar("Row")

Format = Callable[[Sequence[Any]], list[str]]
"""Make text of the values of a column, of which none is None and none is text."""

_GAP = 2
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
        """Header and unit, on several lines; the unit has one of its own below a header of one
        line, or of one that ends with a line break."""
        space = "" if self.header.endswith("\n") else " " if "\n" in self.header else "\n"
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
        yield from _Lines(self).segments(console, options.max_width)
        if self.footnote:
            yield Text(harmless(self.footnote))


class _Lines:
    """The lines of a table on a terminal, none of which breaks a word.

    Where a line is too wide, texts are wrapped between words; where that is not enough, the columns
    that do not fit follow below, beside the first columns once more: as many as tell the rows
    apart. rich would lay out and crop every cell by itself, which takes about half a millisecond
    for each row, and fold words.
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

    def segments(self, console: Console, max_width: int) -> Iterator[Segment]:
        """Yield lines with cells below each other; only a whole cell can have a style."""
        from rich.segment import Segment

        for number, widths in enumerate(self._bands(max_width)):
            if number:
                yield Segment.line()
            yield from self._band(console, widths)

    def _bands(self, max_width: int) -> Iterator[dict[int, int]]:
        """Yield the widths of the columns that stand beside each other, by their places."""
        left = dict(enumerate(self._widths))
        if _whole_width(left.values()) <= max_width:
            yield left
            return
        first = self._first(max_width)
        # A word that is wider than the line stands beside the first columns, broken.
        most = max_width - _GAP - _whole_width(first.values())
        least = {place: min(self._least(place), most) for place in left} | first
        while left:
            band: dict[int, int] = {}
            for place in list(left):
                widths = [*band.values(), least[place]]
                if band and _whole_width(widths) > max_width:
                    break
                band[place] = least[place]
                del left[place]
            yield self._widened(band, max_width)
            if left and _whole_width([*first.values(), least[next(iter(left))]]) <= max_width:
                left = {**first, **left}

    def _first(self, max_width: int) -> dict[int, int]:
        """Return the widths of the first columns, as many as tell the rows apart, by their places;
        of the very first where that takes more than half a line, or all do not."""
        widths: dict[int, int] = {}
        for place in range(len(self._columns)):
            widths[place] = self._least(place)
            rows = {tuple(row[one].text for one in widths) for row in self._rows}
            if len(rows) == len(self._rows) and _whole_width(widths.values()) <= max_width // 2:
                return widths
        return {0: min(self._least(0), max_width // 2)}

    def _least(self, place: int) -> int:
        """Return the width of the longest word of a column of texts; numbers are not wrapped."""
        if self._columns[place].align == "right":
            return self._widths[place]
        cells = [row[place].text for row in self._rows]
        words = [word for text in (*cells, *self._headers[place]) for word in text.split()]
        return max(map(_width, words), default=0)

    def _widened(self, band: dict[int, int], max_width: int) -> dict[int, int]:
        """Give columns of texts what is left of the line, the first ones first."""
        free = max_width - _whole_width(band.values())
        for place, width in band.items():
            more = min(free, self._widths[place] - width)
            band[place] = width + max(0, more)
            free -= max(0, more)
        return band

    def _band(self, console: Console, widths: Mapping[int, int]) -> Iterator[Segment]:
        from rich.segment import Segment

        header = [[Cell(text, "") for text in self._headers[place]] for place in widths]
        height = max(map(len, header), default=0)
        # The last lines of headers stand beside each other.
        above = [[Cell("", "")] * (height - len(cells)) + cells for cells in header]
        rows: list[tuple[str, list[list[Cell]]]] = [("dim", above)]
        rows += [
            ("", [_wrapped(row[place], widths[place]) for place in widths]) for row in self._rows
        ]
        columns = [self._columns[place] for place in widths]
        for style, wrapped in rows:
            line_style = console.get_style(style) if style else None
            for cells in itertools.zip_longest(*wrapped, fillvalue=Cell("", "")):
                yield from _line(console, cells, columns, list(widths.values()), line_style)
                yield Segment.line()


def _line(
    console: Console,
    cells: Sequence[Cell],
    columns: Sequence[Column[Any]],
    widths: Sequence[int],
    line_style: Any,
) -> Iterator[Segment]:
    from rich.segment import Segment

    text = ""  # up to the next cell with a style of its own
    for cell, column, width in zip(cells, columns, widths, strict=True):
        blanks = " " * (width - _width(cell.text))
        before, after = (blanks, "") if column.align == "right" else ("", blanks)
        if cell.style and cell.text:
            yield Segment(text + before, line_style)
            yield Segment(cell.text, console.get_style(cell.style))
            text = after + " " * _GAP
        else:
            text += before + cell.text + after + " " * _GAP
    yield Segment(text.rstrip(), line_style)


def _wrapped(cell: Cell, width: int) -> list[Cell]:
    """Return the lines of a cell; only a word that is wider than the column is broken."""
    if _width(cell.text) <= width:
        return [cell]
    from rich.console import Console
    from rich.text import Text

    lines = Text(cell.text).wrap(Console(width=width), width, overflow="fold")
    return [cell._replace(text=line.plain.rstrip()) for line in lines]


def _whole_width(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + _GAP * (len(each) - 1)


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
