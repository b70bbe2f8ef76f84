"""A table of typed columns, and its renderers: for the terminal, a page, Markdown and CSV.

A value stays a value until a renderer makes text of it: the column says how, for all of its values
together, so that they get the same decimals. Pages sort by values, and CSV has them as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_number,
    format_percent,
    harmless,
    shown,
    spread_text,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment

Row = TypeVar("Row")

Format = Callable[[Sequence[Any]], list[str]]
"""Make text of the values of a column, of which none is None and none is text."""

_GAP = 2
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$])")
_FORMULA = re.compile(r"^(?=[=+@-])")
"""Begin of a text that a spreadsheet would take for a formula."""


def each(show: Callable[[Any], str]) -> Format:
    """Format every value by itself."""
    return lambda values: [show(value) for value in values]


def number(decimals: int | None = None, *, per: float = 1.0) -> Format:
    """Format numbers in a unit that is `per`, with so many decimals.

    Without `decimals` the values decide: three digits of the smallest, at most four of the largest,
    and at most four decimals.
    """

    def texts(values: Sequence[float]) -> list[str]:
        scaled = [value / per for value in values]
        places = min(4, decimals_for(scaled)) if decimals is None else decimals
        return [format_number(value, places) for value in scaled]

    return texts


def percent(decimals: int = 0) -> Format:
    """Format shares in percent."""
    return lambda values: [format_percent(value, decimals) for value in values]


def mean_interval(decimals: int | None = None) -> Format:
    """Format means and half their intervals, which are as wide to both sides: `12.3 ± 0.4`."""

    def texts(values: Sequence[Any]) -> list[str]:
        places = decimals_for([value.mean for value in values]) if decimals is None else decimals
        return [spread_text(value, places, is_symmetric=True) for value in values]

    return texts


class Column(Struct, Generic[Row], frozen=True):
    """One column: its header, the values of its cells, and how they are shown and sorted."""

    header: str
    """Header; line breaks are for narrow terminals."""
    value: Callable[[Row], Any]
    """Return the value of a row: a number, text, a Measure, a tuple; None is not known."""
    format: Format = each(str)
    """Turns values into text; a value that is text stands as it is in any column."""
    unit: str = ""
    align: Literal["left", "right"] = "right"
    style: Callable[[Any], str] | None = None
    """Return the style of a value on a terminal, which is its class on a page."""
    is_marked: Callable[[Row], bool] | None = None
    """Tell whether a row is the reference of others: a `*` stands behind its value."""

    @property
    def title(self) -> str:
        """Header and unit, on several lines; the unit has one of its own below a header of one."""
        space = " " if "\n" in self.header else "\n"
        return f"{self.header}{space}({self.unit})" if self.unit else self.header

    @property
    def name(self) -> str:
        """Header and unit on one line."""
        return shown(self.title.replace("-\n", "-"))

    def cells(self, rows: Sequence[Row]) -> list[Cell]:
        """Return a cell for each row."""
        values = [self.value(row) for row in rows]
        as_is = (str, type(None))
        formatted = iter(self.format([value for value in values if not isinstance(value, as_is)]))
        cells = []
        for row, value in zip(rows, values, strict=True):
            style = self.style(value) if self.style else ""
            text = UNDEFINED if value is None else value
            text = shown(text) if isinstance(text, str) else next(formatted)
            text += " *" if self.is_marked and self.is_marked(row) else ""
            cells.append(Cell(text, _sort_key(value), style))
        return cells


def _sort_key(value: Any) -> str:
    first = next(iter(value), None) if isinstance(value, tuple | list) else value
    first = getattr(first, "mean", first)
    return "" if first is None else shown(str(first))


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
        from rich.segment import Segment
        from rich.text import Text

        if self.caption:
            yield Text(harmless(self.caption))
        titles = [[line.rstrip() for line in each.title.split("\n")] for each in self.columns]
        height = max(map(len, titles), default=0)
        # The last lines of headers stand beside each other.
        headers = [[""] * (height - len(lines)) + lines for lines in titles]
        above = [[Cell(text, "", "dim") for text in line] for line in zip(*headers, strict=True)]
        rows = [*above, *self.cells()]
        for number, band in enumerate(_bands(rows, options.max_width)):
            if number:
                yield Segment.line()
            for row in rows:
                yield from self._line(console, row, band)
        if self.footnote:
            yield Text(harmless(self.footnote))

    def _line(
        self, console: Console, row: Sequence[Cell], band: Mapping[int, int]
    ) -> Iterator[Segment]:
        """Yield the cells of one row beside each other, without blanks at the end."""
        from rich.segment import Segment

        blanks = 0
        for place, width in band.items():
            text, style = row[place].text, row[place].style
            rest, is_right = width - _width(text), self.columns[place].align == "right"
            if text:
                yield Segment(" " * (blanks + is_right * rest))
                yield Segment(text, console.get_style(style) if style else None)
                blanks = -width if is_right else -_width(text)
            blanks += width + _GAP
        yield Segment.line()


def _bands(rows: Sequence[Sequence[Cell]], max_width: int) -> list[dict[int, int]]:
    """Return the widths of the columns that stand beside each other, by their places: those that
    do not fit follow below, beside the first column once more.

    rich would lay out and crop every cell by itself, which takes about half a millisecond for each
    row, and fold words.
    """
    widths = [max(_width(cell.text) for cell in cells) for cells in zip(*rows, strict=True)]
    bands = [dict(enumerate(widths[:1]))]
    for place, width in enumerate(widths[1:], start=1):
        band = bands[-1]
        if len(band) > 1 and sum(band.values()) + _GAP * len(band) + width > max_width:
            bands.append({0: widths[0]})
        bands[-1][place] = width
    return bands


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
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.header for column in table.columns])
    for row in table.rows:
        cells = [column.value(row) for column in table.columns]
        texts = [
            _FORMULA.sub("'", shown(cell)) if isinstance(cell, str) else cell for cell in cells
        ]
        writer.writerow(texts)
    return file.getvalue()
