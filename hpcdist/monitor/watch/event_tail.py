"""The events of one rank's file as they come, without reading the whole of a long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdist.runs.events import decode_event

_HEAD_BYTES = 1 << 12  # the first events: start, model, setup, resume
_TAIL_BYTES = 1 << 13  # some five windows of steps
_CHUNK_BYTES = 1 << 20


class EventTail:
    """Reads what is new in one growing file; of what was there at first, the beginning and the end.

    A line that is not finished yet waits for its end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def events(self, size: int) -> Iterator[dict[str, Any]]:
        """The events since the last call, from a file that is `size` bytes long now.

        A file that is no longer is not opened: that costs more than all else, on a shared file
        system above all.
        """
        if size == self._offset:
            return
        if size < self._offset:  # replaced by another
            self._offset, self._rest = 0, b""
        is_first = self._offset == 0
        yield from self._read(_HEAD_BYTES if is_first else _CHUNK_BYTES)
        if is_first and size - _TAIL_BYTES > self._offset:
            # The line that is cut there is no event, and is left out like any torn one.
            self._offset, self._rest = size - _TAIL_BYTES, b""
        while self._offset < size:
            before = self._offset
            yield from self._read(_CHUNK_BYTES)
            if self._offset == before:  # gone, or not ours to read
                return

    def _read(self, most_bytes: int) -> Iterator[dict[str, Any]]:
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                chunk = file.read(most_bytes) or b""
        except OSError:
            return
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if (event := decode_event(line)) is not None:
                yield event
