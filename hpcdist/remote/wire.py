"""The messages between a laptop and a host, and their frames: a kind, a length, the content.

The host's first frame follows a line with a word that the laptop has chosen: whatever a shell's
profile prints before it is no part of the conversation.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.runs.remote import BroughtFile
from hpcdist.runs.spec import Accounting
from hpcdist.schedulers.base import Condition

PROTOCOL = 1
"""Grows when the two sides could not understand each other any more."""
MESSAGE, DATA, OUT, ERR = b"m", b"d", b"o", b"e"
"""Kinds of frames: a message, a piece of files, what the command prints on stdout and on stderr."""

_HEADER = struct.Struct(">cI")
_PIECE_BYTES = 1 << 18
_MOST_FRAME_BYTES = 64_000_000
_MOST_MESSAGE_BYTES = 32_000_000
"""Size of a message when it is unpacked: the lists of 200 runs of a thousand ranks. As values it
may take ten times as much, and what comes packed may have a thousandth."""

Kind = TypeVar("Kind")


class Terminal(Struct, frozen=True, kw_only=True):
    """The laptop's terminal."""

    out: bool = False
    """stdout is one."""
    err: bool = False
    columns: int = 80
    lines: int = 24
    variables: dict[str, str] = {}
    """TERM, NO_COLOR and their like."""


class SentEntry(Struct, frozen=True, array_like=True):
    """A file or a link of the work tree."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool
    target: str


class SentTree(Struct, frozen=True, kw_only=True):
    """The laptop's work tree, without the contents of its files."""

    source: str
    """The laptop and the folder."""
    within: str
    """The folder in it that the command is called from."""
    entries: list[SentEntry]
    ignored: list[str]
    """Paths that git ignores: where the project has them at the host, the job finds them."""


class Place(Struct, frozen=True, kw_only=True):
    """The place at the host that a command works in."""

    folder: str
    """Holds the projects."""
    project: str
    runs: str | None = None
    """The folder of the runs, where the user has named one."""


class Call(Struct, frozen=True, kw_only=True, tag="call"):
    """Run a command."""

    argv: list[str]
    place: Place
    tree: SentTree | None = None
    profiles: str | None = None
    """An hpcdist.yaml that counts in place of the host's."""
    submission: str | None = None
    """Name that the laptop gives a submission: a second one of that name is not made."""
    terminal: Terminal = Terminal()


class WantedRun(Struct, frozen=True, kw_only=True):
    """A run, or a sweep, and what the laptop has of it."""

    id: str
    known: dict[str, BroughtFile] = {}


class Bring(Struct, frozen=True, kw_only=True, tag="bring"):
    """Send what summaries need of runs."""

    place: Place
    runs: list[WantedRun] | None
    """None: all that are there."""
    known: dict[str, dict[str, BroughtFile]] = {}
    """The laptop's copies of runs that are not named."""
    files: bool = True
    """False: their states are enough."""


class Signal(Struct, frozen=True, kw_only=True, tag="signal"):
    """Pass a signal on to the command, or the size of the terminal."""

    number: int
    columns: int = 80
    lines: int = 24


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The host's first words."""

    protocol: int
    version: str


class Missing(Struct, frozen=True, kw_only=True, tag="missing"):
    """Contents of the work tree that the host lacks."""

    sha256: list[str]


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    """The command has ended."""

    code: int


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """The host cannot do it."""

    message: str
    hint: str
    code: int


class SentFile(Struct, frozen=True, kw_only=True):
    """A file, or the end of one, whose bytes follow."""

    name: str
    begin: int
    """The laptop has what is before."""
    size_bytes: int
    stamp: int


class SentRun(Struct, frozen=True, kw_only=True):
    """One run as it is now."""

    id: str
    runs: str
    """The folder that it is in."""
    condition: Condition | None = None
    accounting: Accounting | None = None
    is_settled: bool = False
    """It has ended, and nothing of it will change."""
    files: list[SentFile] = []


class Brought(Struct, frozen=True, kw_only=True, tag="brought"):
    """The runs; the bytes of their files follow in order."""

    runs: list[SentRun]
    notes: list[str] = []


Request = Call | Bring | Signal
Reply = Hello | Missing | Ended | Refused | Brought


class WireError(SchedulerError):
    """The bytes that came are no part of the conversation."""


def frame(kind: bytes, content: bytes) -> bytes:
    return _HEADER.pack(kind, len(content)) + content


def message(value: Struct) -> bytes:
    """Return the frame of a message; UserError for a text that is no UTF-8, such as the name of a
    file."""
    try:
        return frame(MESSAGE, zlib.compress(msgspec.json.encode(value), 6))
    except UnicodeEncodeError as error:
        raise UserError(
            f"{error.object!r} cannot be sent to a host: it is not UTF-8",
            hint="rename the file, have git ignore it, or write the argument in UTF-8",
        ) from None


def decode(content: bytes, kind: Any) -> Any:
    """Return the message in a frame; WireError where it is none."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(content, _MOST_MESSAGE_BYTES)
        if unpacker.unconsumed_tail:
            raise WireError("a message from the other side is too large")
        return msgspec.json.decode(text, type=kind)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"a message from the other side cannot be read: {error}") from None


class Frames:
    """Takes frames out of bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        self._rest += data

    def next(self) -> tuple[bytes, bytes] | None:
        """Return the next whole frame; None where more must come first."""
        if len(self._rest) < _HEADER.size:
            return None
        kind, size = _HEADER.unpack_from(self._rest)
        if kind not in (MESSAGE, DATA, OUT, ERR) or size > _MOST_FRAME_BYTES:
            raise WireError("what came from the other side is not part of the conversation")
        end = _HEADER.size + size
        if len(self._rest) < end:
            return None
        content = bytes(self._rest[_HEADER.size : end])
        del self._rest[:end]
        return kind, content


_LEVEL = 6


def pack(contents: Iterable[bytes]) -> Iterator[bytes]:
    """Give the frames of contents that follow each other, packed as one stream."""
    packer = zlib.compressobj(_LEVEL)
    for content in contents:
        if packed := packer.compress(content):
            yield frame(DATA, packed)
    yield frame(DATA, packer.flush())
    yield frame(DATA, b"")


class Unpacker:
    """Contents that come packed; no more is unpacked than is asked for."""

    def __init__(self, packed: Iterable[bytes]) -> None:
        self._packed = iter(packed)
        self._unpacker = zlib.decompressobj()

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """Give the next so many bytes, piece by piece; WireError where they do not come."""
        left = size_bytes
        while left:
            piece = self._read(min(left, _PIECE_BYTES))
            left -= len(piece)
            yield piece

    def finish(self) -> None:
        """Take the end of the stream; WireError where more comes than was announced."""
        try:
            tail = self._unpacker.unconsumed_tail
            while tail or (tail := next(self._packed, b"")):
                if self._unpacker.eof or self._unpacker.decompress(tail, 1):
                    raise WireError("the other side sent more than it had announced")
                tail = self._unpacker.unconsumed_tail
        except zlib.error as error:
            raise WireError(f"what the other side sent cannot be unpacked: {error}") from None

    def _read(self, most_bytes: int) -> bytes:
        tail = self._unpacker.unconsumed_tail
        try:
            while not (piece := self._unpacker.decompress(tail, most_bytes)):
                if not (tail := next(self._packed, b"")):
                    raise WireError("the other side sent less than it had announced")
        except zlib.error as error:
            raise WireError(f"what the other side sent cannot be unpacked: {error}") from None
        return piece
