"""Turn a program's output into the lines that a terminal would show.

Progress bars write one line again and again: back to its begin by a carriage return, up to the bar
above by an escape sequence. `TerminalLines` keeps the rows that can still change, and gives each
line once: when the cursor has left it for good.
"""

from __future__ import annotations

import codecs
import math
import os
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from hpcdist.base.files import open_regular

_MOST_ROWS = 64
"""Rows that the cursor can go back to: more than bars take."""
_LONGEST_LINE = 1 << 16
"""In characters; what is longer is cut, so that memory stays bounded."""
_LONGEST_KEPT = 1000
"""Longest line that can be written over once the cursor has left it: bars are short."""
_LONGEST_ESCAPE = 256
_MOST_STYLES = 8
_MOST_DIGITS = 6
_MOST_COLUMNS = 1000
"""To which an escape sequence can go: wider than any terminal."""
_RESET = "\x1b[0m"

_TOKEN = re.compile(
    r"(?P<newline>\n)"
    r"|(?P<text>[^\x00-\x08\n-\x0c\x0e-\x1f\x7f-\x9f]+)"  # with tabs and carriage returns
    r"|\x1b\[(?P<arguments>[0-?]*)[ -/]*(?P<command>[@-~])"
    r"|(?P<back>\x08)"
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b\n]*\x1b\\"
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|.",
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STYLE = re.compile(r"[0-9;:]{0,48}")
_UNFINISHED = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[PX^_][^\x1b\n]*\x1b?|[ -/]*)", re.DOTALL
)

_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 22


class _Row:
    """One row of the terminal: a cell per character, which has its style before it."""

    __slots__ = ("cells", "given", "is_redrawn", "is_styled")

    def __init__(self) -> None:
        self.cells: list[str] = []
        self.given: str | None = None
        """The text that was given as a line last."""
        self.is_styled = False
        self.is_redrawn = False
        """Some of it was written over: then blanks at its end are what cleared the rest."""

    def text(self) -> str:
        line = "".join(self.cells)
        if self.is_styled:
            parts = []
            for style, run in groupby(self.cells, key=lambda cell: cell[:-1]):
                text = "".join(cell[-1] for cell in run)
                parts.append(f"{style}{text}{_RESET}" if style else text)
            line = "".join(parts)
        return line.rstrip(" ") if self.is_redrawn else line

    def is_open(self) -> bool:
        """Return True if it has text that was not given."""
        text = self.text()
        return bool(text) and text != self.given

    def cut(self, column: int) -> None:
        """Erase from this column on."""
        if len(self.cells) > column:
            del self.cells[column:]
            self.is_redrawn = True


class TerminalLines:
    """Takes what is written to a terminal, and gives the lines that stay."""

    def __init__(self, *, hold: int = 0, styled: bool = True) -> None:
        """`hold`: rows to wait for a cursor that comes back, as for what is printed when all is
        over; else a row waits once the cursor has come back. `styled` keeps colours."""
        self._hold = min(hold, _MOST_ROWS // 2)
        self._keeps_style = styled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._escape = ""
        """The begin of an escape sequence whose end is still to be written."""
        self._style = ""
        self._lines: list[str] = []
        self._clear()

    def feed(self, data: bytes) -> list[str]:
        """Take what was written next; the lines that it finished."""
        if b"\0" in data:  # a file with holes has gigabytes of them
            data = data.translate(None, b"\0")
        self._take(self._decoder.decode(data))
        # Not before all was taken: a cursor that goes one line down most often comes back at once.
        self._settle(len(self._rows) - 1 - self._reach)
        lines, self._lines = self._lines, []
        return lines

    def open_lines(self) -> list[str]:
        """The lines that are not finished, as they are now."""
        return [row.text() for row in self._rows[self._settled :] if row.is_open()]

    def give_open(self) -> list[str]:
        """The same; they are finished lines only if they change again."""
        rows = [row for row in self._rows[self._settled :] if row.is_open()]
        for row in rows:
            row.given = row.text()
        return [row.given or "" for row in rows]

    def finish(self) -> list[str]:
        """Nothing more is written: the lines that were not finished."""
        self._take(self._decoder.decode(b"", final=True))
        rows = self._rows
        if not rows[-1].text():  # the cursor is there, and no line
            rows.pop()
        while len(rows) > self._settled and rows[-1].is_redrawn and not rows[-1].text():
            rows.pop()  # a bar that was cleared
        self._settle(len(rows))
        lines, self._lines = self._lines, []
        self._clear()
        return lines

    def _clear(self) -> None:
        self._rows = [_Row()]
        self._row = self._column = 0
        self._settled = 0
        """The rows before this one were given as they are."""
        self._reach = self._hold
        """So many rows above the lowest the cursor may come back to."""
        self._rows_since_up = 0

    def _take(self, text: str) -> None:
        text = self._escape + text
        self._escape = ""
        begin = text.rfind("\x1b", -_LONGEST_ESCAPE)
        if begin >= 0 and _UNFINISHED.fullmatch(text, begin):
            text, self._escape = text[:begin], text[begin:]
        for token in _TOKEN.finditer(self._pass_plain(text)):
            kind = token.lastgroup
            if kind == "text":
                self._print(token[0])
            elif kind == "newline":
                self._next_row()
            elif kind == "command":
                self._command(token["command"], token["arguments"])
            elif kind == "back":
                self._column = max(0, self._column - 1)

    def _pass_plain(self, text: str) -> str:
        """Give the lines of plain text at once that no cursor can come back to; the rest of it."""
        if self._style or self._row < len(self._rows) - 1 or _CONTROL.search(text):
            return text
        first, *lines = text.split("\n")
        if len(lines) <= 2 * _MOST_ROWS or max(map(len, lines)) > _LONGEST_LINE:
            return text
        self._put(first)
        self._settle(len(self._rows))
        self._lines += lines[:-_MOST_ROWS]
        self._clear()
        return "\n".join(lines[-_MOST_ROWS:])

    def _print(self, text: str) -> None:
        first, *others = text.split("\r")
        self._put(first)
        if others:
            self._column = 0
            # Each is written over the former: of that, what is longer stays.
            shown = others[-1]
            for earlier in reversed(others[:-1]):
                shown += earlier[len(shown) :]
            self._put(shown)
            if len(others) > 1:
                self._rows[self._row].is_redrawn = True
            self._column = min(self._column, len(others[-1]))

    def _put(self, text: str) -> None:
        while text:
            row = self._rows[self._row]
            is_lowest = self._row == len(self._rows) - 1
            longest = _LONGEST_LINE if is_lowest else _LONGEST_KEPT
            if self._column >= longest:
                self._next_row()
                continue
            piece = text[: longest - self._column]
            end = self._column + len(piece)
            if missing := self._column - len(row.cells):
                if missing > 0:
                    row.cells += " " * missing
                else:
                    row.is_redrawn = True
            row.is_styled = row.is_styled or bool(self._style)
            cells: Iterable[str] = piece
            if self._style:  # cells share their texts: styles can be long
                styled = {character: self._style + character for character in set(piece)}
                cells = [styled[character] for character in piece]
            row.cells[self._column : end] = cells
            self._column = end
            text = text[len(piece) :]

    def _next_row(self) -> None:
        self._row += 1
        self._column = 0
        if self._row < len(self._rows):
            return
        if len(self._rows[-1].cells) > _LONGEST_KEPT:
            self._settle(len(self._rows))
        self._rows.append(_Row())
        self._rows_since_up += 1
        if self._rows_since_up > self._reach + 1:  # more than it takes to draw one bar anew
            self._reach = self._hold
        if len(self._rows) > 2 * _MOST_ROWS:
            self._settle(_MOST_ROWS)
            del self._rows[:_MOST_ROWS]
            self._row -= _MOST_ROWS
            self._settled -= _MOST_ROWS

    def _settle(self, end: int) -> None:
        """Give the rows before this one that were not given as they are."""
        for row in self._rows[self._settled : end]:
            text = row.text()
            if text != row.given:
                self._lines.append(text)
                row.given = text
            if len(row.cells) > _LONGEST_KEPT:
                row.cells, row.given = [], ""
        self._settled = max(self._settled, end)

    def _command(self, command: str, arguments: str) -> None:
        number = int(arguments[:_MOST_DIGITS]) if arguments.isdigit() else 0
        if command == "m":
            self._set_style(arguments)
        elif command in "AF":
            self._row = max(0, self._row - max(1, number))
            self._reach = max(self._reach, len(self._rows) - 1 - self._row)
            self._settled = min(self._settled, self._row)
            self._rows_since_up = 0
        elif command in "BE":
            for _ in range(min(max(1, number), _MOST_ROWS)):
                column = self._column if command == "B" else 0
                self._next_row()
                self._column = column
        elif command in "CDG":
            steps = max(1, number)
            column = {"C": self._column + steps, "D": self._column - steps, "G": steps - 1}[command]
            self._column = max(0, min(column, max(self._column, _MOST_COLUMNS)))
        elif command == "K":
            self._erase_line(number)
        elif command == "J" and number == 0:
            for row in self._rows[self._row + 1 :]:
                row.cut(0)
            self._rows[self._row].cut(self._column)
        if command == "F":
            self._column = 0

    def _set_style(self, arguments: str) -> None:
        if not self._keeps_style or not _STYLE.fullmatch(arguments):
            return
        if arguments.strip("0;") == "":
            self._style = ""
            return
        codes = [*self._style.removeprefix("\x1b[").split("\x1b["), f"{arguments}m"]
        self._style = "".join(f"\x1b[{code}" for code in codes[-_MOST_STYLES:] if code)

    def _erase_line(self, number: int) -> None:
        row = self._rows[self._row]
        if number == 0:
            row.cut(self._column)
        elif number == 1:
            erased = min(self._column + 1, len(row.cells))
            row.cells[:erased] = " " * erased
            row.is_redrawn = True
        else:
            row.cut(0)


def terminal_lines(data: bytes, *, styled: bool = True) -> list[str]:
    """The lines that a terminal would show in the end."""
    lines = TerminalLines(hold=_MOST_ROWS, styled=styled)
    return [*lines.feed(data), *lines.finish()]


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log, without colours; none where it cannot be read."""
    return end_of_log(path, count)[-count:] if count else []


def end_of_log(path: Path, count: int) -> list[str]:
    """The end of a log in lines without colours: at least so many, if it has them; none where it
    cannot be read.

    A bar that was drawn a thousand times is one line: then more is read.
    """
    num_bytes = _FIRST_BYTES
    try:
        with open_regular(path, most_bytes=math.inf) as file:
            size = file.seek(0, os.SEEK_END)
            while True:
                file.seek(max(0, size - num_bytes))
                lines = terminal_lines(file.read(num_bytes), styled=False)
                if len(lines) > count or num_bytes >= min(size, _MOST_BYTES):
                    return lines
                num_bytes *= 8
    except OSError:
        return []
