"""The stacks of a process' own Python threads, as a thread of it sees them."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import msgspec

_MOST_THREADS = 64
_MOST_FRAMES = 100
"""Of each thread: more is recursion, whose innermost calls say enough."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call of a stack."""

    file: str
    line: int
    function: str


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """Where one thread is."""

    name: str | None = None
    """None where that is not known."""
    frames: list[Frame] = []
    """Innermost first."""


def own_threads() -> list[ThreadStack]:
    """Return the stacks of all Python threads but the one that asks, the main one first.

    Names are looked up without the lock of `threading`, which a thread that hangs may hold.
    """
    asking, main = threading.get_ident(), threading.main_thread().ident
    names = {ident: thread.name for ident, thread in list(threading._active.items())}  # type: ignore[attr-defined] # noqa: SLF001
    found = sorted(sys._current_frames().items(), key=lambda each: each[0] != main)  # noqa: SLF001
    return [
        ThreadStack(name=names.get(ident), frames=_frames(innermost))
        for ident, innermost in found
        if ident != asking
    ][:_MOST_THREADS]


def _frames(innermost: FrameType) -> list[Frame]:
    frames: list[Frame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        frames.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return frames
