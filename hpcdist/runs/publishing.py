"""The writer of parcels: brings what is new in a run directory to the folder that outlives it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hpcdist.base import files
from hpcdist.runs import parcels
from hpcdist.runs.parcels import Entry

_MOST_INLINE_BYTES = 1 << 20
_MOST_TAIL_BYTES = 1 << 23
_MOST_TOGETHER_BYTES = 1 << 25
_CHUNK_BYTES = 1 << 20
_SETTLED_S = 2.0
"""A file that was written to that shortly ago may be half written."""
_RENAMED = "checkpoints/step-"
"""These are written aside and renamed: the newest may be replaced before it is that old."""
_STEP_S = 0.001
_MOST_AHEAD_S = 86400.0
"""Clocks do not differ by more, unless a parcel lies."""
_GROWING = (("events/", ".jsonl"), ("logs/", ""))
_URGENT = ("checkpoints/", "attempts/", "verdict.json")


Signature: TypeAlias = tuple[int, int, int]
"""Size, time of the last change, and inode of a file."""
_UNKNOWN: Signature = (-1, -1, -1)


class _Sent(NamedTuple):
    """A file as it was published last."""

    signature: Signature
    size: int
    data: str | None


class _Batch:
    """The contents of one parcel."""

    def __init__(self, run: Path, folder: Path, number: int) -> None:
        self.entries: list[Entry] = []
        self.contents: list[bytes] = []
        self.sent: dict[str, _Sent] = {}
        self.gone: list[str] = []
        self.dropped: list[str | None] = []
        self.size = 0
        self._run = run
        self._folder = folder
        self._number = number

    def remove(self, path: str) -> None:
        self.entries.append(Entry(path=path, is_gone=True))
        self.gone.append(path)

    def add(self, path: str, sign: Signature, before: _Sent | None) -> bool:
        """Add a file, or what it has grown by; return whether that is not all of it."""
        if not _is_growing(path):
            self._add_whole(path, sign)
            return False
        begin = before.size if before is not None and before.size <= sign[0] else 0
        with files.open_regular(self._run / path, most_bytes=float("inf")) as file:
            file.seek(begin)
            content = file.read(_MOST_TAIL_BYTES)
        is_all = begin + len(content) >= sign[0]
        entry = Entry(path=path, offset=begin, size=len(content))
        self._add(entry, content, sign if is_all else _UNKNOWN)
        return not is_all

    def _add_whole(self, path: str, sign: Signature) -> None:
        if sign[0] <= _MOST_INLINE_BYTES:
            content = files.read_bytes(self._run / path, most_bytes=float("inf"))
            self._add(Entry(path=path, size=len(content)), content, sign)
        elif (copied := self._copy(path, sign)) is not None:
            self._add(copied, b"", sign)

    def _add(self, entry: Entry, content: bytes, sign: Signature) -> None:
        self.entries.append(entry)
        self.contents.append(content)
        self.size += len(content)
        self.sent[entry.path] = _Sent(sign, entry.offset + entry.size, entry.data)

    def _copy(self, path: str, sign: Signature) -> Entry | None:
        """Copy a large file beside its parcel; None where it changed meanwhile."""
        digest, size = hashlib.sha256(), 0
        data = f"{self._number:08d}-{len(self.entries)}.data"
        with (
            files.open_regular(self._run / path, most_bytes=float("inf")) as file,
            open(self._folder / data, "xb") as copy,
        ):
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
                size += len(chunk)
            status = os.fstat(file.fileno())
        if _signature(status) != sign or size != status.st_size:
            (self._folder / data).unlink(missing_ok=True)
            return None
        return Entry(path=path, size=size, data=data, sha256=digest.hexdigest())


class Publisher:
    """Publishes the run directory of one start of a node."""

    def __init__(
        self,
        run: Path,
        output: Path,
        *,
        node: int,
        after_s: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Begin with a parcel: by it, others know of this start. What the directory holds by now is
        there already. `after_s` is the time of the newest parcel of former starts: where this
        node's clock is behind that of theirs, it counts on from there. Raises OSError."""
        self._run = run
        self._now = now
        self._ahead_s = min(max(0.0, after_s - now() + _STEP_S), _MOST_AHEAD_S)
        name = f"{int(self._time_s() * 1e9):019d}-{secrets.token_hex(4)}"
        self._folder = output / f"node-{node:05d}" / name
        self._folder.mkdir(parents=True)
        self._number = 1
        self._sent = {
            path: _Sent(sign, status.st_size, None) for path, sign, status in self._scan()
        }
        self._write([], [])

    def _time_s(self) -> float:
        return self._now() + self._ahead_s

    def is_urgent(self) -> bool:
        """Return whether a checkpoint, or the end of an attempt, has yet to be published."""
        return any(path.startswith(_URGENT) for path, *_ in self._changed(is_final=False))

    def publish(self, *, is_final: bool = False) -> None:
        """Write what is new, as parcels. `is_final`: nobody writes to the directory any more, so
        that nothing is half written. Raises OSError, after which it may be called again."""
        while True:
            batch = _Batch(self._run, self._folder, self._number)
            self._number += 1  # a name that could not be written whole is not used again
            has_more = self._gather(batch, is_final=is_final)
            if not batch.entries:
                self._number -= 1
                return
            self._write(batch.entries, batch.contents)
            for path in batch.gone:
                batch.dropped.append(self._sent.pop(path).data)
            batch.dropped += [
                before.data for path in batch.sent if (before := self._sent.get(path))
            ]
            self._sent |= batch.sent
            for data in filter(None, batch.dropped):  # what counts does not name it any more
                (self._folder / data).unlink(missing_ok=True)
            if not has_more:
                return

    def _gather(self, batch: _Batch, *, is_final: bool) -> bool:
        """Add what is new to a batch; return whether that is not all."""
        present = {path for path, *_ in self._scan()}
        for path in self._sent.keys() - present:
            batch.remove(path)
        has_more = False
        for path, sign in list(self._changed(is_final=is_final)):
            if batch.size >= _MOST_TOGETHER_BYTES:
                return True
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                has_more |= batch.add(path, sign, self._sent.get(path))
        return has_more

    def _write(self, entries: list[Entry], contents: list[bytes]) -> None:
        with open(self._folder / f"{self._number - 1:08d}.parcel", "xb") as file:
            file.write(parcels.encode(self._time_s(), entries, contents))

    def _changed(self, *, is_final: bool) -> Iterator[tuple[str, Signature]]:
        for path, sign, status in self._scan():
            before = self._sent.get(path)
            age_s = self._now() - status.st_mtime
            is_whole = _is_growing(path) or path.startswith(_RENAMED) or age_s >= _SETTLED_S
            is_settled = is_final or is_whole
            if (before is None or before.signature != sign) and is_settled:
                yield path, sign

    def _scan(self) -> Iterator[tuple[str, Signature, os.stat_result]]:
        """Yield the regular files of the run directory that parcels may have."""
        for parent, folders, names in os.walk(self._run):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = os.path.relpath(os.path.join(parent, name), self._run)
                try:
                    status = os.lstat(self._run / path)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode) and parcels.is_wanted(path):
                    yield path, _signature(status), status


def _is_growing(path: str) -> bool:
    return any(path.startswith(folder) and path.endswith(end) for folder, end in _GROWING)


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino
