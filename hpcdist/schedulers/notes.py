"""Notes for node 0's agent from what started the agents, of hosts on which no agent could start: no
connection tells of them.

srun writes no notes, and goes on waiting for the others: its words in the job's log are read.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.runs.events import UNDECODABLE
from hpcdist.schedulers.slurm.nodes import expand_nodes

_MOST_BYTES = 16_000_000

NOTES_VARIABLE = "HPCDIST_LAUNCHER_NOTES"
"""Path of the file with the notes, one JSON object per line."""

SRUN_LOG_VARIABLE = "HPCDIST_SRUN_LOG"
"""The log with srun's errors, behind the length that it had when srun began: 1234:/path/to/log."""

_LAUNCH_FAILED = re.compile(rb"^srun: error: (task (\d+) launch failed: .+)\n", re.MULTILINE)
_LOOK_S = 1.0
"""Between two looks at the log, however many agents join meanwhile."""
_NO_OUTPUT = "could not connect IO"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A host on which no agent could be started."""

    node: int
    host: str
    said: str
    """The last words of what was to start it."""
    is_host_lost: bool = False
    """The host could not be reached: on another one it may succeed."""


_decoder = msgspec.json.Decoder(Note)


def write_note(note: Note) -> None:
    """Add a note; a full disk must not end the writer, and the job."""
    with contextlib.suppress(OSError), open(os.environ[NOTES_VARIABLE], "ab") as file:
        file.write(msgspec.json.encode(note) + b"\n")


def read_notes(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[Note], int]:
    """Return the notes in a file behind an offset, and the offset behind the last whole line: one
    that is being written comes later."""
    notes: list[Note] = []
    try:
        with files.open_regular(os.fspath(path), most_bytes=_MOST_BYTES) as file:
            file.seek(offset)
            whole, newline, _ = file.read(_MOST_BYTES).rpartition(b"\n")
    except OSError:
        return notes, offset
    for line in whole.splitlines():
        with contextlib.suppress(*UNDECODABLE):
            notes.append(_decoder.decode(line))
    return notes, offset + len(whole) + len(newline)


class Notes:
    """Reads each note once."""

    def __init__(self) -> None:
        """The notes are for this process alone: what its ranks start has others, or none."""
        self._path = os.environ.pop(NOTES_VARIABLE, None)
        self._offset = 0
        begin, _, log = os.environ.pop(SRUN_LOG_VARIABLE, "").partition(":")
        self.srun_log = Path(log) if log else None
        """The log with srun's errors; None where srun has not started this process."""
        self.srun_begin = int(begin or 0)
        """The length that it had when srun began."""
        self._look_at_s = 0.0

    def new(self) -> Iterator[Note]:
        """Yield the notes since the last call; a line that is being written comes later."""
        if self._path is not None:
            notes, self._offset = read_notes(self._path, self._offset)
            yield from notes
        if self.srun_log is not None and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_S
            yield from _said_by_srun(self.srun_log, self.srun_begin)


def _said_by_srun(log: Path, begin: int) -> Iterator[Note]:
    """Yield a note for each task that srun could not launch; it has as many as nodes."""
    try:
        with files.open_regular(str(log), most_bytes=math.inf) as file:
            file.seek(begin)
            said = file.read(_MOST_BYTES)
    except OSError:
        return
    hosts = step_hosts()
    for words, task in _LAUNCH_FAILED.findall(said):
        sentence = f"srun said: {words.decode(errors='replace')}"
        if _NO_OUTPUT in sentence:
            sentence += (
                f"; srun says this where the node cannot write {log.parent} (read-only, "
                "full, or not mounted there) or cannot reach the job's first node"
            )
        node = int(task)
        yield Note(node=node, host=hosts.get(node, "unknown"), said=sentence)


def step_hosts() -> dict[int, str]:
    """Return the hosts of the nodes on which srun started agents, by node."""
    return dict(enumerate(expand_nodes(os.environ.get("SLURM_STEP_NODELIST", ""))))
