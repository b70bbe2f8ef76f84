"""Notes for node 0's agent on hosts where no agent could be started: no connection tells of them.

Programs that start agents write them, one JSON object per line; srun writes none, and goes on
waiting for the others: its words in the job's log are read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.runs.events import UNDECODABLE

_MOST_BYTES = 16_000_000
NOTES_VARIABLE = "HPCDIST_LAUNCHER_NOTES"
"""Path of the file with the notes."""
SRUN_LOG_VARIABLE = "HPCDIST_SRUN_LOG"
"""The log with srun's errors, behind the length that it had when srun began: 1234:/path/to/log."""
_LOOK_S = 1.0
"""Between two looks at the log, however many agents join meanwhile."""


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


def read_notes(path: str | os.PathLike[str]) -> list[Note]:
    """Return the notes in a file, without a line that is being written, or is damaged."""
    notes: list[Note] = []
    with contextlib.suppress(OSError):
        content = files.read_bytes(os.fspath(path), most_bytes=_MOST_BYTES)
        for line in content.rpartition(b"\n")[0].splitlines():
            with contextlib.suppress(*UNDECODABLE):
                notes.append(_decoder.decode(line))
    return notes


class Notes:
    """Reads each note once."""

    def __init__(self) -> None:
        """The notes are for this process alone: what its ranks start has others, or none."""
        self._path = os.environ.pop(NOTES_VARIABLE, None)
        self._num_read = 0
        begin, _, log = os.environ.pop(SRUN_LOG_VARIABLE, "").partition(":")
        self.srun_log = Path(log) if log else None
        """The log with srun's errors; None where srun has not started this process."""
        self.srun_begin = int(begin or 0)
        """The length that it had when srun began."""
        self._look_at_s = 0.0

    def new(self) -> Iterator[Note]:
        """Yield the notes since the last call."""
        if self._path is not None:
            notes = read_notes(self._path)[self._num_read :]
            self._num_read += len(notes)
            yield from notes
        if self.srun_log is not None and time.monotonic() >= self._look_at_s:
            from hpcdist.schedulers.slurm.nodes import launch_failures

            self._look_at_s = time.monotonic() + _LOOK_S
            for node, host, said in launch_failures(self.srun_log, self.srun_begin):
                yield Note(node=node, host=host, said=said)
