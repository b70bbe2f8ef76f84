"""One event file, decoded straight to what the summary reads of it.

All lines are decoded at once, as events whose kind tells their type. Where that fails, as for a
torn line, they are decoded one by one, and what cannot be read is counted.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.runs.events import MOST_FILE_BYTES, UNDECODABLE, decode_event
from hpcdist.summary.read.records import EVENT_TYPES, OTHER_KINDS

_OTHERS = [msgspec.defstruct(kind, [], tag_field="event", tag=kind) for kind in OTHER_KINDS]
_TAGGED = {
    type_: kind for kind, type_ in EVENT_TYPES.items() if type_.__struct_config__.tag is not None
}
_ANY: Any = functools.reduce(operator.or_, [*_TAGGED, *_OTHERS])


@functools.cache
def _decoder() -> msgspec.json.Decoder[Any]:
    """Return the decoder of events; it takes a while to make, and a summary of runs that have not
    changed decodes none."""
    return msgspec.json.Decoder(_ANY)


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


def decode_file(path: Path) -> DecodedFile:
    """Decode an event file; raises OSError, also for what is no regular file."""
    result = DecodedFile(found={kind: [] for kind in EVENT_TYPES})
    appends = {type_: result.found[kind].append for type_, kind in _TAGGED.items()}
    lines = files.read_bytes(path, most_bytes=MOST_FILE_BYTES)
    try:
        events = _decoder().decode_lines(lines)
    except UNDECODABLE:
        for line in lines.split(b"\n"):
            _decode_line(line, result)
        return result
    for event in events:
        append = appends.get(event.__class__)
        if append is None:
            result.num_others += 1
        else:
            append(event)
    return result


def _decode_line(line: bytes, result: DecodedFile) -> None:
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
    type_ = EVENT_TYPES[kind]
    with contextlib.suppress(msgspec.ValidationError):
        result.found[kind].append(msgspec.convert(event, type_, str_keys=True))
        return
    result.num_odd += 1
