"""The events that a rank records: one JSON object per line, one file per rank and attempt.

`EventWriter` writes, `read_events` reads. The events and their fields are described in
docs/events.md; units stand in the names. A killed rank leaves a torn last line: it is counted,
never fatal. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.text import as_utf8

SCHEMA_VERSION = 2
LONGEST_LINE_BYTES = 1 << 20
"""Longer lines are torn, for whoever reads them: no event has a tenth of it."""
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by decoders at lines that are no events; the last at those that are nested too deep."""
MOST_FILE_BYTES = 250_000_000
"""Size of a file that is read; a rank that steps for a year writes less."""
_STRETCH_BYTES = 1 << 20
_TORN = b"{"
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])


class EventWriter:
    """Appends events to one file, each line with one write call, so that lines never mix.

    A disk that fills up must not end a training that is hours old: the first failed write is
    reported on stderr, and recording stops.
    """

    def __init__(self, path: Path | None) -> None:
        """Open `path` for appending; None makes a writer that drops everything."""
        self.path = path
        self._file: int | None = None
        self._num_windows = 0
        if path is not None:
            self._open(path)

    def _open(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._identity, self._place = _identity(self._file), _place(self._file)

    def _is_own(self) -> bool:
        """Return whether the descriptor is still that of the file. The place is known without a
        file server, which would have to write what it was sent before it answers."""
        assert self._file is not None
        if self._place is not None and _place(self._file) == self._place:
            return True
        return _identity(self._file) == self._identity

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; `time_s` (unix time) is added."""
        if self._file is None:
            return
        content = {"event": event, "time_s": time.time(), **fields}
        try:
            line = _encoder.encode(content) + b"\n"
        except UnicodeEncodeError:  # what is no Unicode, as the names of some files are
            line = _encoder.encode(_escaped(msgspec.to_builtins(content))) + b"\n"
        try:
            if not self._is_own():
                assert self.path is not None
                self._open(self.path)
            os.write(self._file, line)
        except OSError as error:
            reason = f"hpcdist: recording stopped: {self.path}: {error.strerror}"
            files.print_line(reason, sys.stderr)
            self.close()

    def number_window(self) -> int:
        """Return the number of the next window of steps in this file: a reader sees by it whether
        lines are missing, there twice, or out of order."""
        self._num_windows += 1
        return self._num_windows - 1

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        if self._file is not None:
            if self._is_own():
                with contextlib.suppress(OSError):
                    os.close(self._file)
            self._file = None


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return the identity of the file behind a descriptor; None where it is closed.

    A program may close all descriptors, as daemons do, and then its own file has the number.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _place(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value


class EventFile(msgspec.Struct):
    """The events of one file, and how many of its lines could not be read."""

    events: list[dict[str, Any]] = []
    torn_lines: int = 0


def read_events(path: Path) -> EventFile:
    """Read one event file; lines that are torn or not events are counted and left out."""
    result = EventFile()
    for lines in read_lines(path):
        for line in lines.split(b"\n"):
            if (event := decode_event(line)) is not None:
                result.events.append(event)
            elif line.strip():
                result.torn_lines += 1
    return result


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an event file, many at a time, of which the last has no newline. Too long
    a line becomes one that is torn. Raises OSError, also where it is no regular file."""
    rest = b""
    with files.open_regular(path, most_bytes=MOST_FILE_BYTES) as file:
        while piece := file.read(_STRETCH_BYTES):
            lines, newline, after = piece.rpartition(b"\n")
            if newline:
                yield rest + lines
                rest = after
            else:
                rest = rest + after if len(rest) < LONGEST_LINE_BYTES else _TORN
    if rest:
        yield rest


def decode_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of one line; None where it is torn, or no event."""
    try:
        event = _decoder.decode(line)
    except UNDECODABLE:
        return None
    return event if isinstance(event.get("event"), str) else None
