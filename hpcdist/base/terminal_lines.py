"""Turn a program's output into the lines that stay on a terminal.

Progress bars write one line again and again: of a line stays what follows its last carriage return.
The lower one of nested bars is left upwards each time that it was drawn: it is open, and no line.
"""

from __future__ import annotations

import codecs
import math
import os
import re
from pathlib import Path

from hpcdist.base.files import open_regular

_LONGEST_LINE = 1 << 16
"""In characters; what is longer is cut, so that memory stays bounded."""
_RESET = "\x1b[0m"
_LEFT_UPWARDS = re.compile(r"\n[^\n]*?\x1b\[A")
_UPWARDS = re.compile(r"\x1b\[(\d{0,2})[AF]")
_MOST_UPWARDS = 30
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,48}m")
_CONTROL = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,48}m)"
    r"|\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\-~]?"
    r"|[\x00-\x08\n-\x1f\x7f-\x9f]"
)
_DELETED = re.compile(r"[^\x08]\x08")

_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 22


class TerminalLines:
    """Takes what is written to a terminal, and gives the lines that stay."""

    def __init__(self, *, styled: bool = True) -> None:
        """`styled` keeps colours."""
        self._keeps_style = styled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""
        """Text that was written since the last line that was given."""
        self._below: str | None = None
        """The bar below, as it was left last; None before there was one."""

    def feed(self, data: bytes) -> list[str]:
        """Take what was written next; the lines that it finished."""
        return self._take(self._decoder.decode(data.translate(None, b"\0")))

    def finish(self) -> list[str]:
        """Return the lines that were not finished: nothing more is written."""
        lines = self._take(self._decoder.decode(b"", final=True))
        rest, self._open = self._open.removesuffix("\n"), ""
        return [*lines, *self._shown(rest.split("\n") if rest else [])]

    def open_lines(self) -> list[str]:
        """Return the lines that are not finished, as they are now."""
        shown = [self._line(text) for text in (*self._open.split("\n"), self._below or "")]
        return [line for line in shown if line.strip()]

    def _take(self, text: str) -> list[str]:
        text = self._open + text
        if "\x1b[" in text:
            text = _UPWARDS.sub(_single_steps, text)
            while (shorter := _LEFT_UPWARDS.sub(self._leave, text)) != text:
                text = shorter
        finished, newline, self._open = text.rpartition("\n")
        lines = finished.split("\n") if newline else []
        is_lowest = not self._open.strip("\r")
        if lines and is_lowest and self._below is not None and _is_redrawn(lines[-1]):
            # A bar below it may be drawn next, from which the cursor comes back.
            self._open = f"{lines.pop()}\n{self._open}"
        elif len(self._open) > _LONGEST_LINE:
            self._open = self._open.rstrip("\r").rpartition("\r")[2]
            while len(self._open) > _LONGEST_LINE:
                lines.append(self._open[:_LONGEST_LINE])
                self._open = self._open[_LONGEST_LINE:]
        return self._shown(lines)

    def _leave(self, found: re.Match[str]) -> str:
        self._below = found[0].removeprefix("\n")
        return ""

    def _shown(self, texts: list[str]) -> list[str]:
        """Return texts as lines, but for bars that were cleared."""
        lines = [(self._line(text), text) for text in texts]
        return [line for line, text in lines if line or not _is_redrawn(text.strip("\r"))]

    def _line(self, text: str) -> str:
        if text.isprintable():
            return text
        is_redrawn = _is_redrawn(text)
        text = text.rstrip("\r").rpartition("\r")[2]
        while (shorter := _DELETED.sub("", text)) != text:
            text = shorter
        kept = (lambda found: found["colour"] or "") if self._keeps_style else ""
        text = _CONTROL.sub(kept, text)
        if is_redrawn:
            text = text.rstrip(" ")
        colours = _COLOUR.findall(text)
        return text + _RESET if colours and colours[-1][2:-1].strip("0;") else text


def _is_redrawn(text: str) -> bool:
    return "\r" in text.rstrip("\r") or "\x1b[A" in text


def _single_steps(found: re.Match[str]) -> str:
    return "\x1b[A" * min(int(found[1] or 1), _MOST_UPWARDS)


def terminal_lines(data: bytes, *, styled: bool = True) -> list[str]:
    """Return the lines that stay on a terminal in the end."""
    lines = TerminalLines(styled=styled)
    return [*lines.feed(data), *lines.finish()]


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log, without colours; none where it cannot be read."""
    return end_of_log(path, count)[-count:] if count else []


def end_of_log(path: Path, count: int) -> list[str]:
    """Return the end of a log in lines without colours: at least so many, if it has them; none
    where it cannot be read.

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
