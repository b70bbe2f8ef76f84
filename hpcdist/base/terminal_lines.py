"""Turn a program's output into the lines that stay on a terminal.

Progress bars write one line again and again: of a line stays what follows its last carriage return.
A bar below another one, which the cursor leaves upwards, is no line.
"""

from __future__ import annotations

import codecs
import math
import os
import re
from contextlib import suppress
from pathlib import Path

from hpcdist.base.files import open_regular

_LONGEST_LINE = 1 << 16
"""In characters; what is longer is cut, so that memory stays bounded."""
_RESET = "\x1b[0m"
_LEFT_UPWARDS = re.compile(r"\n[^\n]*?\x1b\[A")
_MAY_GO_UP = re.compile(r"(\r[^\r]*)?")
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,48}m")
_CONTROL = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]{0,48}m)"
    r"|\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\-~]?"
    r"|[\x00-\x08\n-\x1f\x7f-\x9f]"
)
_READ_BYTES = 1 << 19


class TerminalLines:
    """Takes what is written to a terminal, and gives the lines that stay, with their colours."""

    def __init__(self, *, styled: bool = True) -> None:
        """`styled` keeps colours."""
        self._keeps_style = styled
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = ""
        """Text that was written since the last line that was given."""

    def feed(self, data: bytes, *, is_last: bool = False) -> list[str]:
        """Take what was written next; the lines that it finished, and with `is_last` the one that
        it did not."""
        text = self._open + self._decoder.decode(data.translate(None, b"\0"), final=is_last)
        while "\x1b[A" in text and (shorter := _LEFT_UPWARDS.sub("", text)) != text:
            text = shorter
        *lines, self._open = text.split("\n")
        if len(self._open) > _LONGEST_LINE:
            self._open = self._open.rstrip("\r").rpartition("\r")[2]
            while len(self._open) > _LONGEST_LINE:
                lines.append(self._open[:_LONGEST_LINE])
                self._open = self._open[_LONGEST_LINE:]
        if is_last and self._open:
            lines, self._open = [*lines, self._open], ""
        elif lines and not is_last and _is_redrawn(lines[-1]) and _MAY_GO_UP.fullmatch(self._open):
            # A bar below it may have been drawn, after which the cursor goes back into this line.
            self._open = f"{lines.pop()}\n{self._open}"
        shown = [(self._line(text), text) for text in lines]
        # A bar that was cleared leaves no empty line behind.
        return [line for line, text in shown if line or not _is_redrawn(text.strip("\r"))]

    def open_lines(self) -> list[str]:
        """Return the line that is not finished, as it is now."""
        line = self._line(self._open)
        return [line] if line.strip() else []

    def _line(self, text: str) -> str:
        if text.isprintable():
            return text
        is_redrawn = _is_redrawn(text)
        text = text.rstrip("\r").rpartition("\r")[2]
        text = _CONTROL.sub(lambda found: (self._keeps_style and found["colour"]) or "", text)
        colours = _COLOUR.findall(text)
        has_colour = colours and colours[-1][2:-1].strip("0;")
        return (text.rstrip(" ") if is_redrawn else text) + (_RESET if has_colour else "")


def _is_redrawn(text: str) -> bool:
    return "\r" in text.rstrip("\r")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log, without colours; none where it cannot be read."""
    with suppress(OSError), open_regular(path, most_bytes=math.inf) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
        lines = TerminalLines(styled=False).feed(file.read(_READ_BYTES), is_last=True)
        return lines[-count:] if count else []
    return []
