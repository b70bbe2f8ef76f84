"""One event file, decoded straight to what the summary reads of it.

All lines are decoded at once, as events whose kind tells their type. Where that fails, as for a
torn line, they are decoded one by one, and what cannot be read is counted.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.text import number_of
from hpcdist.bench import cells
from hpcdist.runs import events
from hpcdist.runs.events import MOST_FILE_BYTES, UNDECODABLE, Window, decode_event

EVENT_TYPES: dict[str, type[Struct]] = {**events.EVENT_TYPES, **cells.EVENT_TYPES}
"""Events that the summary reads. Their tags are their kinds; those of benchmarks that stand in the
summary as they are have none, as a tag would stand there too."""

OTHER_KINDS = ("collective", "place")
"""Events of ours that are no concern of the summary; there may be more."""

EventT = TypeVar("EventT", bound=events.Event)


class Fault(Struct, frozen=True, kw_only=True):
    """Something of a run that could not be read."""

    path: str
    """Relative to the run directory; `.` is the directory itself."""
    text: str
    """The reason, and what was left out: the end of a sentence that begins with the path."""


class EventFile(Struct, frozen=True, kw_only=True):
    """The events of one rank, or of one node, in one attempt."""

    number: int
    """The rank, or the node."""
    attempt: int
    events: dict[str, list[Any]]
    """Kind -> events, in their order; of every kind in `EVENT_TYPES`. Windows of steps stand in the
    order in which they were written, each once, however they stand in the file."""
    num_displaced: int = 0
    """Windows that are missing, there twice, or not where they were written."""
    faults: list[Fault] = []

    def all(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of a type."""
        return self.events[str(kind.__struct_config__.tag)]

    def last(self, kind: type[EventT]) -> EventT | None:
        """Return the last event of a type; None without any."""
        found = self.all(kind)
        return found[-1] if found else None


def read_events(path: Path, *, number: int, attempt: int) -> EventFile:
    """Read the event file of a rank or a node; what cannot be read is left out, and a fault."""
    found: dict[str, list[Any]] = {kind: [] for kind in EVENT_TYPES}
    texts = []
    try:
        lines = files.read_bytes(path, most_bytes=MOST_FILE_BYTES)
    except OSError as error:
        texts.append(f"skipped, it cannot be read: {error.strerror}")
    else:
        unread = _decode(lines, found)
        if not lines.strip():
            texts.append("skipped, it is empty")
        if unread["torn"]:
            texts.append(f"{number_of(unread['torn'], 'torn line')} skipped")
        if unread["odd"]:
            odd = number_of(unread["odd"], "event")
            texts.append(f"{odd} skipped, fields are missing or of the wrong type")
    found["steps"], num_displaced = in_order(found["steps"])
    return EventFile(
        number=number,
        attempt=attempt,
        events=found,
        num_displaced=num_displaced,
        faults=[Fault(path=f"events/{path.name}", text=text) for text in texts],
    )


@functools.cache
def _decoder() -> tuple[msgspec.json.Decoder[Any], dict[type, str]]:
    """Return the decoder of events, and the kind of each type that has a tag; it takes a while to
    make, and a summary of runs that have not changed decodes none."""
    tagged = {own: kind for kind, own in EVENT_TYPES.items() if own.__struct_config__.tag}
    others = [msgspec.defstruct(kind, [], tag_field="event", tag=kind) for kind in OTHER_KINDS]
    types: Any = functools.reduce(operator.or_, [*tagged, *others])
    return msgspec.json.Decoder(types), tagged


def _decode(lines: bytes, found: dict[str, list[Any]]) -> Counter[str]:
    """Sort the events of lines by their kinds; return how many lines are torn, and how many events
    have fields that are not as they should be."""
    unread: Counter[str] = Counter()
    decoder, tagged = _decoder()
    appends = {own: found[kind].append for own, kind in tagged.items()}
    try:
        decoded = decoder.decode_lines(lines)
    except UNDECODABLE:
        decoded = []
    else:
        lines = b""
    for event in decoded:
        if append := appends.get(event.__class__):
            append(event)
    for line in filter(bytes.strip, lines.split(b"\n")):
        fields = decode_event(line)
        if fields is None:
            unread["torn"] += 1
        elif kind := EVENT_TYPES.get(fields["event"]):
            try:
                found[fields["event"]].append(msgspec.convert(fields, kind, str_keys=True))
            except msgspec.ValidationError:
                unread["odd"] += 1
    return unread


def in_order(windows: list[Window]) -> tuple[list[Window], int]:
    """Return the windows of a file as they were written, by their numbers, and how many are
    missing, there twice, or not where they were written."""
    numbers = [window.number for window in windows]
    if numbers == [*range(len(windows))]:
        return windows, 0
    first: dict[int, Window] = {}
    for window in windows:
        if window.number is not None:
            first.setdefault(window.number, window)
    missing = max(first, default=-1) + 1 - len(first)
    newest = itertools.accumulate(first, max)
    moved = sum(number < latest for number, latest in zip(first, newest, strict=True))
    return [first[number] for number in sorted(first)], len(windows) - len(first) + missing + moved
