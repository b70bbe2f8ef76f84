"""Reading files one after the other, or several at once where storage answers late.

A local disk, or files that are in memory already, answer at once, and threads would only cost time.
A network file system takes milliseconds for each open, in which a process that waits does nothing.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hpcdist.base.files import read_bytes

LATE_S = 2e-3
"""Reads that take so long on average are worth threads."""
_EARLY_S = 0.3e-3
_LAST = 4
_WORK_S = 0.3e-3
"""About what is done with a file once it is there: so many threads keep one process at work."""
_MOST = 64

_MOST_BYTES = 1_000_000_000
"""Size of a file that is read: the most that the pixels of an image that is decoded take."""

_Read = tuple[float, bytes | OSError]


class Reader:
    """Reads files for one process."""

    def __init__(self, reads: int | None, at_once: int | None = None) -> None:
        """So many at once; None: chosen by how late the first answers come."""
        self._wanted = reads
        self.at_once = at_once or reads or 1
        """Files that are read at once now."""
        self._last_s: deque[float] = deque(maxlen=_LAST)
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: dict[str, Future[_Read]] = {}
        self._pid = 0  # whose threads they are

    def __reduce__(self) -> tuple[Any, ...]:
        """Return no threads: a worker that is started, not forked, makes its own."""
        return Reader, (self._wanted, self.at_once)

    def read_all(
        self, paths: Sequence[str], ahead: Sequence[str] = ()
    ) -> Iterator[bytes | OSError]:
        """Yield the contents of files, in order; an error takes the place of what cannot be read.
        `ahead`: what will be asked for next, which threads begin with meanwhile."""
        for number, path in enumerate(paths):
            if self.at_once > 1:
                yield from self._read_at_once(paths[number:], ahead)
                return
            time_s, content = _timed_read(path)
            self._note(time_s)
            yield content

    def _read_at_once(
        self, paths: Sequence[str], ahead: Sequence[str]
    ) -> Iterator[bytes | OSError]:
        # A forked worker lacks the threads of the rank, which may have read before, and would wait
        # for them for ever.
        if self._threads is None or self._pid != os.getpid():
            self._threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="read")
            self._pid = os.getpid()
            self._ahead = {}
        submit = self._threads.submit
        begun = [self._ahead.get(path) or submit(_timed_read, path) for path in paths]
        self._ahead = {path: submit(_timed_read, path) for path in ahead}
        for reading in begun:
            time_s, content = reading.result()
            self._note(time_s)
            yield content

    def _note(self, time_s: float) -> None:
        """Change over, where the number is not given."""
        if self._wanted is not None:
            return
        self._last_s.append(time_s)
        if len(self._last_s) < _LAST:
            return
        mean_s = sum(self._last_s) / _LAST
        if self.at_once == 1 and mean_s > LATE_S:
            self.at_once = min(_MOST, int(mean_s / _WORK_S) + 1)
        elif self.at_once > 1 and max(self._last_s) < _EARLY_S:
            self.at_once = 1
            if self._threads is not None:
                self._threads.shutdown(wait=False)  # what has begun ends, and is used
                self._threads, self._ahead = None, {}


def read_file(path: str) -> bytes:
    """Return the content of an image's file; OSError where there is no regular one of its size."""
    return read_bytes(path, most_bytes=_MOST_BYTES)


def _timed_read(path: str) -> _Read:
    begin_s = time.perf_counter()
    content: bytes | OSError
    try:
        content = read_file(path)
    except OSError as error:
        content = error
    return time.perf_counter() - begin_s, content
