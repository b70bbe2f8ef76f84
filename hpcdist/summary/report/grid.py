"""A table of many rows, printed in one go where it fits the console.

rich lays out and crops every cell by itself, which takes about half a millisecond for each row. A
cell that needs no folding can be padded with blanks instead, which looks the same; what does not
fit stays rich's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

_GAP = 2


class Grid:
    """Headers, which may have several lines, and rows of cells of one line each."""

    def __init__(self, headers: Sequence[str], *, are_numbers: Sequence[bool]) -> None:
        self._headers = [[line.rstrip() for line in header.split("\n")] for header in headers]
        self._are_numbers = are_numbers
        self._rows: list[Sequence[str | Text]] = []

    def add_row(self, cells: Sequence[str | Text]) -> None:
        """Add a row; only a whole cell can have a style. Blanks at the end of a number count as
        none, as rich has it."""
        self._rows.append(
            [
                cell.rstrip() if is_number and isinstance(cell, str) else cell
                for cell, is_number in zip(cells, self._are_numbers, strict=True)
            ]
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        widths = self._widths()
        if sum(widths) + _GAP * (len(widths) - 1) > options.max_width:
            yield self.table()
            return
        dim = console.get_style("dim")
        for line in self._header_lines():
            yield from self._line(console, line, widths, dim)
        for row in self._rows:
            yield from self._line(console, row, widths, None)

    def _widths(self) -> list[int]:
        return [
            max(*map(cell_len, header), *(_width(row[place]) for row in self._rows), 0)
            for place, header in enumerate(self._headers)
        ]

    def _header_lines(self) -> Iterable[list[str]]:
        """The last lines of all headers stand beside each other."""
        height = max(map(len, self._headers))
        full = ([""] * (height - len(header)) + header for header in self._headers)
        return map(list, zip(*full, strict=True))

    def _line(
        self,
        console: Console,
        cells: Sequence[str | Text],
        widths: Sequence[int],
        style: Style | None,
    ) -> Iterator[Segment]:
        text = ""  # up to the next cell with a style of its own
        for cell, width, is_number in zip(cells, widths, self._are_numbers, strict=True):
            blanks = " " * (width - _width(cell))
            before, after = (blanks, "") if is_number else ("", blanks)
            if isinstance(cell, Text):
                yield Segment(text + before, style)
                yield Segment(cell.plain, console.get_style(cell.style))
                text = after + " " * _GAP
            else:
                text += before + cell + after + " " * _GAP
        yield Segment(text.rstrip(), style)
        yield Segment.line()

    def table(self) -> Table:
        """The same as rich lays it out."""
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
        for header, is_number in zip(self._headers, self._are_numbers, strict=True):
            table.add_column(
                Text("\n".join(header)),
                justify="right" if is_number else "left",
                vertical="bottom",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in self._rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        return table


def _width(cell: str | Text) -> int:
    text = cell.plain if isinstance(cell, Text) else cell
    return len(text) if text.isascii() else cell_len(text)
