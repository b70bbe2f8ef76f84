"""Notes for node 0's agent from what started the agents, where no signal or connection tells it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

NOTES_VARIABLE = "HPCDIST_LAUNCHER_NOTES"
"""Path of the file with the notes, one JSON object per line."""


def write_note(**note: Any) -> None:
    """Add a note: {signal}, or {node, host, said} of a host on which no agent could be started."""
    with contextlib.suppress(OSError), open(os.environ[NOTES_VARIABLE], "a") as file:
        file.write(json.dumps(note) + "\n")  # a full disk must not end the writer, and the job


class Notes:
    """Reads each note once."""

    def __init__(self) -> None:
        """The notes are for this process alone: what its ranks start has others, or none."""
        self._path = os.environ.pop(NOTES_VARIABLE, None)
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Those that have come since the last call; a line that is being written comes later."""
        if self._path is None:
            return
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self._offset += len(whole) + len(newline)
        for line in whole.splitlines():
            yield json.loads(line)
