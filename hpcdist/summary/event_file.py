"""One event file, each line decoded straight to what the summary reads of it.

Our writer names the kind first in a line, so that the kind is known before anything is decoded, and
what the summary does not read is never built. Lines in which that fails are decoded twice: foreign
order of keys, kinds that are no concern of the summary, torn lines.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from hpcdist.events import decode_event
from hpcdist.summary.records import EVENT_TYPES

_BEGINNING = b'{"event":"'
_BUFFER_BYTES = 1 << 18
_DECODERS = {kind: msgspec.json.Decoder(type_).decode for kind, type_ in EVENT_TYPES.items()}
_FAILURES = (msgspec.DecodeError, UnicodeDecodeError)


class DecodedFile(Struct, kw_only=True):
    """The events of one file by their kinds, and what could not be read."""

    found: dict[str, list[Any]]
    """Kind -> events, in their order; of every kind in `EVENT_TYPES`."""
    num_others: int = 0
    """Events of other kinds."""
    num_odd: int = 0
    """Events whose fields are not as they should be."""
    num_torn: int = 0
    """Lines that are no events."""

    @property
    def is_empty(self) -> bool:
        """Whether no line holds anything."""
        return not (self.num_others or self.num_odd or self.num_torn or any(self.found.values()))


def decode_file(path: Path) -> DecodedFile:
    """Decode an event file; raises OSError, also for what is no regular file."""
    result = DecodedFile(found={kind: [] for kind in EVENT_TYPES})
    ways: dict[bytes, tuple[Callable[[bytes], Any], Callable[[Any], None]]] = {
        _BEGINNING + kind.encode() + b'"': (_DECODERS[kind], result.found[kind].append)
        for kind in EVENT_TYPES
    }
    begun = len(_BEGINNING)
    with _open(path) as file:
        for line in file:
            way = ways.get(line[: line.find(b'"', begun) + 1])
            if way is None:
                _decode_slowly(line, result)
                continue
            decode, append = way
            try:
                append(decode(line))
            except _FAILURES:
                _decode_slowly(line, result)
    return result


def _open(path: Path) -> BinaryIO:
    """A pipe by that name would block its reader for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb", buffering=_BUFFER_BYTES)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def _decode_slowly(line: bytes, result: DecodedFile) -> None:
    """By what the line holds as JSON, whatever the order of its keys."""
    if not line.strip():
        return
    event = decode_event(line)
    if event is None:
        result.num_torn += 1
        return
    kind = event["event"]
    if kind not in EVENT_TYPES:
        result.num_others += 1
        return
    try:
        result.found[kind].append(msgspec.convert(event, EVENT_TYPES[kind], str_keys=True))
    except msgspec.ValidationError:
        result.num_odd += 1
