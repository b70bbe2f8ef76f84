"""The stacks that ranks write when they are asked for them.

A rank that hangs can open no file, so it needs one beforehand. In the run's directory that would be
two operations of a shared file system for every rank of every run, for the few that hang. So ranks
write into memory that their agent has made, which keeps it as a file as soon as there is something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdist.base import files
from hpcdist.rank.board import make_memory
from hpcdist.runs.requests import Frame, ThreadStack

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)(?: \[(?P<name>.*?)\])?")
_ANSWERING = "/hpcdist/rank/pipe.py"


class StackMemory:
    """Memory for the stacks of each rank of a node, shared with the processes that are forked."""

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
