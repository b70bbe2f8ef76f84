"""The stacks that ranks write when they are asked for them, and where a rank is by them.

A rank that hangs can open no file, so it needs one beforehand. In the run's directory that would be
two operations of a shared file system for every rank of every run, for the few that hang. So ranks
write into memory that their agent has made, which keeps it as a file as soon as there is something.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.rank.board import make_memory

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)(?: \[(?P<name>.*?)\])?")
_WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")
"""Files whose frames mean that a rank waits for others: collectives, and the backward pass, which
ends when the gradients of all ranks are there."""

_DECORATORS = ("/torch/distributed/c10d_logger.py", "/torch/utils/_contextlib.py")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/hpcdist/rank/")
_ANSWERING = "/hpcdist/rank/pipe.py"
_LAUNCHER = "/hpcdist/agent/rank_process.py"
_STARTERS = ("/hpcdist/agent/", "/hpcdist/workloads/", "runpy.py", "<frozen runpy>")


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


class Stacks:
    """A place in memory for the stacks of each rank of a node, shared with what is forked."""

    def __init__(self, num_ranks: int, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are those of another process's."""
        self.descriptors = list(descriptors) or [
            make_memory("hpcdist-stacks") for _ in range(num_ranks)
        ]
        self._num_kept = [0] * num_ranks
        """Bytes that are in a file already, or for nobody else to read."""

    def only(self, local_rank: int) -> int:
        """Return the descriptor that a rank writes to, for that rank's process: it has no other."""
        for other, descriptor in enumerate(self.descriptors):
            if other != local_rank:
                os.close(descriptor)
        return self.descriptors[local_rank]

    def clear(self) -> None:
        """Forget what ranks wrote that are gone, before others are forked."""
        for local_rank, descriptor in enumerate(self.descriptors):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._num_kept[local_rank] = 0

    def num_bytes(self, local_rank: int) -> int:
        """Return how much a rank has written."""
        return os.fstat(self.descriptors[local_rank]).st_size

    def read(self, local_rank: int, begin: int = 0) -> str:
        """Return what a rank has written from a place on."""
        num_bytes = self.num_bytes(local_rank) - begin
        return os.pread(self.descriptors[local_rank], num_bytes, begin).decode(errors="replace")

    def skip(self, local_rank: int) -> None:
        """Keep nothing of what a rank has written until now: it was for who asked."""
        self._num_kept[local_rank] = self.num_bytes(local_rank)

    def keep(self, local_rank: int, path: Path) -> None:
        """Append what a rank has written since the last call to a file. Raises OSError."""
        if text := self.read(local_rank, self._num_kept[local_rank]):
            self.skip(local_rank)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with open(os.open(path, flags, files.PRIVATE_FILE), "a") as file:
                file.write(text)


def parse(dump: str, names: Mapping[str, str] | None = None) -> list[ThreadStack]:
    """Return the threads that faulthandler has dumped, of several dumps by the newest, without the
    one that answers the agent. Dumps have the main thread last; it is the first here."""
    threads: dict[str, list[Frame]] = {}
    frames: list[Frame] = []
    all_names = dict(names or {})
    for line in dump.splitlines():
        if match := _THREAD.match(line):
            ident = str(int(match["ident"], 16))
            threads.pop(ident, None)
            frames = threads[ident] = []
            all_names.setdefault(ident, match["name"])
        elif match := _FRAME.match(line):
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
    return [
        ThreadStack(name=all_names[ident], frames=frames)
        for ident, frames in reversed(threads.items())
        if not (frames and frames[-1].file.endswith(_ANSWERING))
    ]


def own_frames(frames: list[Frame]) -> list[Frame]:
    """Return a stack's calls without those of how its rank was started; all where no other is."""
    end = next((i for i, one in enumerate(frames) if one.file.endswith(_LAUNCHER)), 0)
    while end and _is_in(frames[end - 1].file, _STARTERS):
        end -= 1
    return frames[:end] or frames


def digest(frames: Sequence[Frame]) -> str | None:
    """Return what is the same where the calls are; None where there are none."""
    return hashlib.sha256(repr(frames).encode()).hexdigest() if frames else None


def place_of(frames: Sequence[Frame]) -> tuple[str | None, str | None, bool]:
    """Return where a thread is by its stack (its innermost line outside installed libraries, or of
    all), the library's function that it called there, and whether it waits for other ranks in
    it."""
    if not frames:
        return None, None, False
    own = [frame for frame in frames if not _is_in(frame.file, _LIBRARIES)]
    innermost = (own or frames)[0]
    below = reversed(frames[: frames.index(innermost)])
    called = next((frame for frame in below if not _is_in(frame.file, _DECORATORS)), None)
    calls = f"{called.function} of {Path(called.file).name}" if called else None
    # It waits where only installed libraries' frames are below one that waits for others.
    files = (frame.file for frame in frames)
    decisive = next((f for f in files if _is_in(f, _WAITING) or not _is_in(f, _LIBRARIES)), "")
    is_waiting = _is_in(decisive, _WAITING)
    place = f"{Path(innermost.file).name}:{innermost.line} ({innermost.function})"
    return place, calls, is_waiting


def _is_in(file: str, places: Iterable[str]) -> bool:
    return any(place in file for place in places)
