"""The verdict of an agent in a container image, which it leaves in the run directory: the process
outside of the image concludes, for the image has none of the scheduler's commands."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

INSIDE_VARIABLE = "HPCDIST_IN_CONTAINER"
"""The runtime, for an agent that is in an image."""


class EndOfAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The file that an agent leaves for the process outside of its image."""

    verdict: Verdict | None = None
    """None: it has begun, and not ended."""
    newest: int = -1
    """The newest attempt that it knows."""
    has_begun: bool = False
    """It took part in an attempt."""
    hears_signals: bool = False
    """It has begun so far that a signal does not end it."""
    time_s: float = 0.0
    """Unix time in the image as it was written."""


def take_note() -> bool:
    """Return whether this agent is in an image, and another process concludes for it; what its
    ranks start is not told so."""
    return os.environ.pop(INSIDE_VARIABLE, None) is not None


def leave(run: Run, node: int, end: EndOfAgent) -> None:
    """Leave what the agent of a node knows at its begin, or end, with the time of it."""
    end = msgspec.structs.replace(end, time_s=time.time())
    files.write_json(end_file(run, node), msgspec.to_builtins(end))


def end_file(run: Run, node: int) -> Path:
    """Return the file of a node's agent."""
    return run.launch_folder / f"container-{node:05d}.json"
