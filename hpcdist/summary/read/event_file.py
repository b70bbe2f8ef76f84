"""One event file, decoded straight to what the summary reads of it.

Whole stretches of lines are decoded at once, as events whose kind tells their type, of this schema
or else of the first. Where both fail, for a torn line or an event of another version, the lines of
the stretch are decoded one by one, and what cannot be read is counted.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from hpcdist.bench.benchmark import Count, Seconds
from hpcdist.runs.events import SCHEMA_VERSION, UNDECODABLE, decode_event, read_lines
from hpcdist.summary.read.records import EVENT_TYPES, OTHER_KINDS, AnyWindow, Bucket, Window


class PhaseTime(Struct, frozen=True, kw_only=True, gc=False):
    """Time of a window's steps that went into one phase; what else stood there nothing read."""

    sum: Seconds


class FirstWindow(AnyWindow, frozen=True, kw_only=True, gc=False):
    """A window of steps as events of schema 1 have it: hpcdist wrote these at first."""

    phases_s: dict[str, PhaseTime] = field(default_factory=dict)
    histogram: dict[Bucket, Count] = field(default_factory=dict)


def to_window(first: FirstWindow) -> Window:
    """Return the same, as it is written today."""
    same = {name: getattr(first, name) for name in AnyWindow.__struct_fields__}
    return Window(
        **same,
        phases_s={phase: time.sum for phase, time in first.phases_s.items()},
        histogram={bucket: [count] for bucket, count in first.histogram.items()},
    )


_OTHERS = [msgspec.defstruct(kind, [], tag_field="event", tag=kind) for kind in OTHER_KINDS]
_TAGGED = {
    type_: kind for kind, type_ in EVENT_TYPES.items() if type_.__struct_config__.tag is not None
}
_ANY: Any = functools.reduce(operator.or_, [*_TAGGED, *_OTHERS])
_FIRST_TYPES = [FirstWindow if type_ is Window else type_ for type_ in _TAGGED]
_ANY_FIRST: Any = functools.reduce(operator.or_, [*_FIRST_TYPES, *_OTHERS])


@functools.cache
def _decoder(schema: int) -> msgspec.json.Decoder[Any]:
    """Return the decoder of the events of a schema; it takes a while to make, and a summary of
    runs that have not changed decodes none."""
    return msgspec.json.Decoder(_ANY_FIRST if schema == 1 else _ANY)


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
    for lines in read_lines(path):
        events = _decode_stretch(lines)
        if events is None:
            for line in lines.split(b"\n"):
                _decode_line(line, result)
        for event in events or ():
            append = appends.get(event.__class__)
            if append is None:
                result.num_others += 1
            else:
                append(event)
    return result


def _decode_stretch(lines: bytes) -> list[Any] | None:
    """Return the events; None where some line is none."""
    with contextlib.suppress(*UNDECODABLE):
        return _decoder(SCHEMA_VERSION).decode_lines(lines)
    with contextlib.suppress(*UNDECODABLE):
        return [
            to_window(event) if event.__class__ is FirstWindow else event
            for event in _decoder(1).decode_lines(lines)
        ]
    return None


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
    if type_ is Window:
        with contextlib.suppress(msgspec.ValidationError):
            first = msgspec.convert(event, FirstWindow, str_keys=True)
            result.found[kind].append(to_window(first))
            return
    result.num_odd += 1
