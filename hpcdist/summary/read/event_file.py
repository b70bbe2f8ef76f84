"""One event file, decoded straight to what the summary reads of it.

All lines are decoded at once, as events whose kind tells their type. Where that fails, as for a
torn line, they are decoded one by one, and what cannot be read is counted.
"""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.text import number_of
from hpcdist.bench import cells
from hpcdist.runs import events
from hpcdist.runs.events import MOST_FILE_BYTES, UNDECODABLE, decode_event

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
    """Kind -> events, in their order; of every kind in `EVENT_TYPES`."""
    faults: list[Fault] = []

    def all(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of a type."""
        return self.events[str(kind.__struct_config__.tag)]

    def last(self, kind: type[EventT]) -> EventT | None:
        """Return the last event of a type; None without any."""
        found = self.all(kind)
        return found[-1] if found else None


@functools.cache
def _decoder() -> tuple[msgspec.json.Decoder[Any], dict[type, str]]:
    """Return the decoder of events, and the kind of each type that has a tag; it takes a while to
    make, and a summary of runs that have not changed decodes none."""
    tagged = {own: kind for kind, own in EVENT_TYPES.items() if own.__struct_config__.tag}
    others = [msgspec.defstruct(kind, [], tag_field="event", tag=kind) for kind in OTHER_KINDS]
    types: Any = functools.reduce(operator.or_, [*tagged, *others])
    return msgspec.json.Decoder(types), tagged


def read_events(path: Path, *, number: int, attempt: int) -> EventFile:
    """Read the event file of a rank or a node; what cannot be read is left out, and a fault."""
    found: dict[str, list[Any]] = {kind: [] for kind in EVENT_TYPES}
    texts = []
    lines = b""
    try:
        lines = files.read_bytes(path, most_bytes=MOST_FILE_BYTES)
        if not lines.strip():
            texts.append("skipped, it is empty")
    except OSError as error:
        texts.append(f"skipped, it cannot be read: {error.strerror}")
    decoder, tagged = _decoder()
    appends = {own: found[kind].append for own, kind in tagged.items()}
    num_torn = num_odd = 0
    try:
        for event in decoder.decode_lines(lines):
            if append := appends.get(event.__class__):
                append(event)
    except UNDECODABLE:
        for fields in map(decode_event, filter(bytes.strip, lines.split(b"\n"))):
            if fields is None:
                num_torn += 1
            elif kind := EVENT_TYPES.get(fields["event"]):
                try:
                    found[fields["event"]].append(msgspec.convert(fields, kind, str_keys=True))
                except msgspec.ValidationError:
                    num_odd += 1
    if num_torn:
        texts.append(f"{number_of(num_torn, 'torn line')} skipped")
    if num_odd:
        odd = number_of(num_odd, "event")
        texts.append(f"{odd} skipped, fields are missing or of the wrong type")
    return EventFile(
        number=number,
        attempt=attempt,
        events=found,
        faults=[Fault(path=f"events/{path.name}", text=text) for text in texts],
    )
