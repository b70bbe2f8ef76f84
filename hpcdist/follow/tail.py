"""Reading files while others write them: whole lines, as they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcdist.run import Run

_CHUNK_BYTES = 1 << 18
_LONGEST_LINE_BYTES = 1 << 16  # longer ones are cut, so that memory stays bounded


class TailedFile:
    """The lines of one growing file; a line that is not finished yet waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, *, finish: bool = False) -> Iterator[bytes]:
        """The lines that were finished since the last call; with `finish`, the open one too."""
        while chunk := self._read():
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from whole
            if len(self._rest) > _LONGEST_LINE_BYTES:
                yield self._rest
                self._rest = b""
        if finish and self._rest:
            yield self._rest
            self._rest = b""

    def _read(self) -> bytes:
        # Opened each time: a run on a thousand ranks must not need a thousand descriptors.
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                chunk = file.read(_CHUNK_BYTES) or b""
        except OSError:
            return b""
        self._offset += len(chunk)
        return chunk


class LogTail:
    """New lines of the logs of some ranks of a run, over all attempts."""

    def __init__(self, run: Run, wanted: Callable[[int], bool] = lambda _: True) -> None:
        self._run = run
        self._wanted = wanted
        self._files: dict[Path, tuple[int, TailedFile]] = {}

    def lines(self, *, finish: bool = False) -> Iterator[tuple[int, str]]:
        """(rank, line) of what was written since the last call."""
        for rank, _, path in self._run.log_files():
            if self._wanted(rank) and path not in self._files:
                self._files[path] = (rank, TailedFile(path))
        for rank, file in self._files.values():
            for line in file.lines(finish=finish):
                yield rank, shown_line(line)


def shown_line(line: bytes) -> str:
    """A line of a log as a terminal would have left it: what a carriage return replaced is gone."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a file; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LONGEST_LINE_BYTES))
            content = file.read()
    except OSError:
        return []
    return [shown_line(line) for line in content.splitlines()[-count:]]
