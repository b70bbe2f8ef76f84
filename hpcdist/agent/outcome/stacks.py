"""Where a rank was when the run hung, read from what faulthandler wrote."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")
"""Files whose frames mean that a rank waits for others: collectives, and the backward pass, which
ends when the gradients of all ranks are there."""

_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the main thread of a rank is."""

    where: str
    """Innermost line outside installed libraries, or the innermost of all."""
    is_waiting: bool


def whereabouts(text: str) -> Whereabouts | None:
    """Read the newest dump in a stacks file; None where there is none."""
    frames = _main_thread_frames(text)
    if not frames:
        return None
    own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARIES)]
    file, line, function = (own or frames)[0]
    return Whereabouts(
        where=f"{Path(file).name}:{line} ({function})",
        is_waiting=_is_waiting(frames),
    )


def _is_waiting(frames: list[tuple[str, str, str]]) -> bool:
    """Only installed libraries' frames stand between the innermost one and a waiting one."""
    for file, _, _ in frames:
        if any(part in file for part in _WAITING):
            return True
        if not any(part in file for part in _LIBRARIES):
            return False
    return False


def _main_thread_frames(text: str) -> list[tuple[str, str, str]]:
    """Frames of the last thread of the dump, innermost first: faulthandler writes the newest
    thread first and the main thread last."""
    frames: list[tuple[str, str, str]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        elif match := _FRAME.match(line):
            frames.append((match["file"], match["line"], match["function"]))
    return frames
